"""docs/notebook.ipynb runs from top to bottom, and shows what its text says."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import xgemm_torch
from xgemm_torch.course import counts

ROOT = Path(xgemm_torch.__file__).resolve().parents[1]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
STAGES = xgemm_torch.stages()
FILES = list((ROOT / "csrc" / "xgemm" / "stages").glob("*/*.cu"))
BOOK = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
CODE = ["".join(cell["source"]) for cell in BOOK["cells"] if cell["cell_type"] == "code"]
TEXT = "".join("".join(c["source"]) for c in BOOK["cells"] if c["cell_type"] == "markdown")


def test_it_is_short_and_has_no_outputs():
    assert BOOK["nbformat"] == 4 and 10 <= len(BOOK["cells"]) <= 24
    for cell in BOOK["cells"]:
        assert cell["cell_type"] in ("code", "markdown") and cell["id"]
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
    assert all(len(source.splitlines()) <= 22 for source in CODE)
    assert len({cell["id"] for cell in BOOK["cells"]}) == len(BOOK["cells"])


def test_cells_are_python_and_links_resolve():
    for source in CODE:  # nothing that only IPython knows
        ast.parse(source)
    targets = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert targets and all((NOTEBOOK.parent / target).exists() for target in targets)


@pytest.mark.skipif(len(STAGES) < len(FILES), reason="this build leaves stages out")
def test_it_runs_from_top_to_bottom(capsys):
    names: dict[str, object] = {"__name__": "notebook"}
    said = []
    for number, source in enumerate(CODE):
        exec(compile(source, f"cell {number}", "exec"), names)
        said.append(capsys.readouterr().out)
    assert all(text or "import" in source for text, source in zip(said, CODE, strict=True))
    # Coalescing and banks: as the emulator counts.
    for name in ("naive", "coalesced"):
        assert f"{counts.of(name)['sectors_per_request']:.1f} sectors a request" in said[1]
    assert "32 ways, 32.0 wavefronts" in said[2] or "32 ways, 16.5 wavefronts" in said[2]
    # A barrier that is left out is reported by file and line; both are needed.
    assert len(names["reports"]) == 2
    assert any("race on shared memory" in text for text in names["reports"].values())
    assert all(re.search(r"at 05_smem_tiled\.cu:\d+", text) for text in names["reports"].values())
    # By hand and counted.
    for hand, counted in re.findall(r"= ([\d.]+), counted ([\d.]+)", "".join(said)):
        assert float(hand) == pytest.approx(float(counted), rel=0.06)
    # An exercise with a race, and without.
    assert [v.kind for v in names["verdicts"].values()] == ["race", "good"]
    # Limbs are as good as a chain, TF32 is not.
    rms = {name: found.rms for name, found in names["errors"].items()}
    assert rms["fp16 x 3"] <= rms["one FP32 chain"] and rms["bf16 x 6"] <= rms["one FP32 chain"]
    assert rms["TF32's operands"] > 20 * rms["one FP32 chain"]


def test_on_a_gpu_the_last_cell_times_what_runs_there(capsys, monkeypatch):
    """With stand-ins for the GPU: on sm_80 the rungs for sm_90 are left out."""
    names: dict[str, object] = {}
    exec(CODE[0], names)
    timing = names["timing"]
    monkeypatch.setattr(names["torch"].cuda, "is_available", lambda: True)
    monkeypatch.setattr(names["torch"].cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(timing, "heat", lambda: None)
    monkeypatch.setattr(timing, "operands", lambda *sizes: [])
    monkeypatch.setattr(
        timing, "interleaved", lambda calls, sets, rounds: dict.fromkeys(calls, [2e-3, 1e-3, 3e-3])
    )
    able = {n: s for n, s in names["STAGES"].items() if s.cuda and s.min_sm <= 80 and not s.max_sm}
    capsys.readouterr()
    exec(CODE[-1], names)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split() == ["torch.mm", "8.6", "TFLOP/s"]
    assert {line.split()[0] for line in lines[:-1]} == set(names["PATH"]) & set(able)
