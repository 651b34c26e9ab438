"""What a finished job says: the comparisons as numbers, and the tables that show them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.text import Text

from ..tools.console import Column, Fitted
from .config import RUNS, Config

FINAL_STEPS = 20


def tokens_per_second(config: Config, step_ms: Sequence[float | None]) -> str:
    """Speed of recent steps as text; "warming up" while none has been timed."""
    timed = [ms for ms in step_ms if ms is not None]
    if not timed:
        return "warming up"
    return f"{config.tokens_per_step / median(timed) * 1e3:,.0f} tokens/s"


def printable(text: bytes) -> str:
    """Decode a sample for a terminal: tabs become four spaces, what is not text a mark."""
    decoded = text.decode("utf-8", "replace").expandtabs(4)
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in decoded)


def complete(summary: dict[str, Any]) -> None:
    """Add to a summary what follows from its runs: medians, final losses, differences.

    ``recomputed`` is added where units of products were counted (`_recomputed`).
    """
    tokens = summary["config"]["batch"] * summary["config"]["seq"]
    for run in summary["runs"].values():
        timed = [ms for ms in run["step_ms"] if ms is not None]
        run["first_loss"] = run["losses"][0]
        run["final_loss"] = fmean(run["losses"][-FINAL_STEPS:])
        run["median_step_ms"] = median(timed) if timed else None
        run["tokens_per_s"] = tokens / run["median_step_ms"] * 1e3 if timed else None
        if all(n is None for n in run.get("recomputed", [])):  # not counted
            run.pop("recomputed", None)
    summary["interleaved_ms"] = {name: summary["runs"][name]["median_step_ms"] for name in RUNS}
    if (anew := _recomputed(summary)) is not None:
        summary["recomputed"] = anew
    stock, converted = (summary["runs"][name]["losses"] for name in RUNS)
    gaps = [abs(one - other) for one, other in zip(stock, converted, strict=True)]
    largest = max(range(len(gaps)), key=gaps.__getitem__)
    summary["difference"] = {
        "largest": gaps[largest],
        "largest_at_step": largest + 1,
        "first_nonzero_step": next((i + 1 for i, gap in enumerate(gaps) if gap), None),
        "mean": fmean(gaps),
    }


def _recomputed(summary: dict[str, Any]) -> dict[str, Any] | None:
    """Units of products that were made anew in the converted run, or None where there are none.

    Returns:
        ``per_step``: the mean of its timed steps, of all where none was timed; ``steps``: how many
        these are; ``units``: those of all products of a step.
    """
    run = summary["runs"][RUNS[1]]
    counts = run.get("recomputed", [])
    units = sum(row["count"] * (row["units"] or 0) for row in summary.get("products", []))
    timed = [n for n, ms in zip(counts, run["step_ms"], strict=False) if ms is not None]
    counted = [n for n in timed or counts if n is not None]
    if not units or not counted:
        return None
    return {"per_step": fmean(counted), "steps": len(counted), "units": units}


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} ms"


def _runs_table(summary: dict[str, Any]) -> Fitted:
    runs = [summary["runs"][name] for name in RUNS]
    table = Fitted(
        "Two runs, one seed, the same batches",
        [
            Column("", words=24),
            Column("stock nn.Linear", right=True),
            Column("converted", right=True),
        ],
    )

    def row(label: str, values: list[str]) -> None:
        table.add_row(label, *values)

    unit = "nats/byte"
    row("first loss", [f"{run['first_loss']:.4f}" for run in runs])
    row(
        f"final loss, mean of the last {min(FINAL_STEPS, len(runs[0]['losses']))} steps ({unit})",
        [f"{run['final_loss']:.4f}" for run in runs],
    )
    row(f"validation loss ({unit})", [f"{run['validation']:.4f}" for run in runs])
    row("step, median, turn by turn", [_ms(run["median_step_ms"]) for run in runs])
    row(
        "tokens/s",
        ["-" if run["tokens_per_s"] is None else f"{run['tokens_per_s']:,.0f}" for run in runs],
    )
    if anew := summary.get("recomputed"):
        row("units made anew a step", ["-", f"{anew['per_step']:,.1f} of {anew['units']:,}"])
    row("share of time in GEMMs", [f"{run['shares']['gemm_share']:.0%}" for run in runs])
    row("GEMM time a step", [_ms(run["shares"]["gemm_ms"]) for run in runs])
    return table


def _difference_line(summary: dict[str, Any]) -> Text:
    gap = summary["difference"]
    if gap["first_nonzero_step"] is None:
        return Text("loss curves: equal in every bit of every step")
    return Text(
        f"loss curves: largest difference {gap['largest']:.2e} at step {gap['largest_at_step']}, "
        f"mean {gap['mean']:.2e}, equal before step {gap['first_nonzero_step']}"
    )


def _products_table(summary: dict[str, Any]) -> Fitted:
    table = Fitted(
        "Which kernel ran where",
        [
            Column("layer"),
            Column("layers", right=True, spare=3),
            Column("product"),
            Column("layout", spare=2),
            Column("M", right=True),
            Column("N", right=True),
            Column("K", right=True),
            Column("kernel"),
            Column("on an H200", spare=1),
        ],
    )
    layer = None
    for row in summary["products"]:
        new = row["layer"] != layer
        layer = row["layer"]
        table.add_row(
            layer if new else "", str(row["count"]) if new else "", row["product"], row["layout"],
            str(row["m"]), str(row["n"]), str(row["k"]), row["kernel"],
            row["kernel_on_h200"],
        )  # fmt: skip
    return table


def _check_line(check: dict[str, Any]) -> Text:
    compared = (
        f"{check['kernel']} against {check['against']}, {check['steps']} training steps of a tiny "
        f"model ({check['model']}): {check['numbers_compared']:,} numbers of loss and gradients"
    )
    if check["equal"]:
        return Text(f"bits: {compared}, all equal", style="green")
    return Text(f"bits: {compared}; NOT equal: {', '.join(check['unequal'])}", style="bold red")


def show(summary: dict[str, Any], console: Console) -> None:
    """Print the job's tables, its verdicts and its sample."""
    swapped = sum(bool(row["swapped"]) for row in summary["layers"])
    left = len(summary["layers"]) - swapped
    console.print(
        Group(
            Text(),
            _runs_table(summary),
            _difference_line(summary),
            Text(),
            _products_table(summary),
            Text(f"{swapped} layers converted, {left} left as they were"),
            _check_line(summary["check"]),
            Panel(
                Text(summary["runs"]["converted"]["sample"]),
                title="what the converted model writes",
                title_align="left",
            ),
        )
    )
