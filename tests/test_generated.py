"""What is generated or measured and kept in the tree is small: a clone is mostly source."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
GENERATED = (
    "docs/images", "docs/ladder", "benchmarks/results", "csrc/xgemm/dispatch/select_table.inc",
)  # fmt: skip
LIMIT = 2_000_000


def sizes() -> dict[str, int]:
    files = [
        file
        for name in GENERATED
        for path in [ROOT / name]
        for file in (path.rglob("*") if path.is_dir() else [path])
        if file.is_file()
    ]
    return {str(file.relative_to(ROOT)): file.stat().st_size for file in files}


def test_what_is_generated_is_below_two_megabytes():
    found = sizes()
    assert all(any(file.startswith(name) for file in found) for name in GENERATED)
    largest = sorted(found, key=lambda file: -found[file])[:8]
    assert sum(found.values()) < LIMIT, (
        f"{sum(found.values())} bytes of {LIMIT}; the largest: "
        + ", ".join(f"{file} {found[file]}" for file in largest)
    )
