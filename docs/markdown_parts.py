"""Parts of pages that several scripts of docs write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from xgemm_torch.registry import Stage


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Give the lines of a Markdown table; None is an empty cell."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join('' if c is None else str(c) for c in row)} |" for row in rows]


def stem(stage: Stage) -> str:
    """``"05_smem_tiled"``."""
    return Path(stage.file).stem


def link(stage: Stage) -> str:
    """Link to a stage's page from another."""
    return f"[`{stage.name}`]({stem(stage)}.md)"


def tflops(value: float) -> str:
    """One decimal: what a run repeats."""
    return f"{value:.1f}"
