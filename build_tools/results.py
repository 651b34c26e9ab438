"""What was measured: the records that benchmarks/h200.py leaves in benchmarks/results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

H200 = Path("benchmarks", "results", "h200")


def measured(folder: Path) -> dict[str, dict[str, Any]]:
    """Gives for each stage, and torch.mm, the newest run that has it: its cases, date, device.

    ``cases`` has for a size and a layout the TFLOP/s and the share of torch.mm's in the same run.
    """
    newest: dict[str, dict[str, Any]] = {}
    runs = []
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if "marks" in record:
            runs.append((record["facts"]["date"], path.name, record))
    for date, name, record in sorted(runs, key=lambda run: run[:2]):
        for case in record["cases"]:
            for stage, times in case["times"].items():
                facts = newest.get(stage)
                if facts is None or facts["run"] != name:
                    facts = newest[stage] = {
                        "run": name, "date": date[:10], "device": record["facts"]["device"],
                        "torch": record["facts"]["torch"], "cases": {},
                    }  # fmt: skip
                facts["cases"][case["size"], case["layout"]] = times["tflops"], times["share"]
    return newest
