"""The models that benchmarks/steps.py times: on a CPU in small sizes, converted and not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import xgemm_torch

FOLDER = Path(xgemm_torch.__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(FOLDER))
try:
    import steps
    import workloads
finally:
    sys.path.remove(str(FOLDER))

NAMES = list(workloads.WORKLOADS)


@pytest.mark.parametrize("name", NAMES)
def test_every_way_takes_the_same_steps(name):
    workload = workloads.WORKLOADS[name].small()
    losses = {}
    for way in ("stock", "converted"):
        job = steps.Job(workload, way, "cpu", compiled=False)
        before = [p.detach().clone() for p in job.model.parameters()]
        losses[way] = [float(job.step()) for _ in range(3)]
        assert not any(map(torch.equal, before, job.model.parameters()))
    assert min(losses["stock"]) > 0
    torch.testing.assert_close(losses["converted"], losses["stock"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_all_layers_of_a_model_are_converted(name):
    workload = workloads.WORKLOADS[name].small()
    model = workload.make(workload.sizes)
    linears = sum(isinstance(m, torch.nn.Linear) for m in model.modules())
    assert len(xgemm_torch.convert(model).swapped) == linears > 0


def test_flop_of_layers_alone():
    job = steps.Job(workloads.WORKLOADS["mlp"].small(), "stock", "cpu", compiled=False)
    # Four layers, three products each but the first one's gradient of its input.
    assert steps.product_flop(job) == 11 * 2 * 16 * 32 * 32


@pytest.mark.parametrize(
    "kernel, family",
    [
        ("void xgemm::cuda::wgmma_kernel<(xgemm::Half)0, 128, 2, 7>(xgemm::WgmmaJob)",
         "products of limbs"),
        ("void xgemm::cuda::decompose_kernel<(xgemm::Half)0, 128, 4, 0, 1>(", "decompositions"),
        ("void xgemm::cuda::recompute<128, true, false>(xgemm::RecomputeJob)", "recomputed"),
        ("void xgemm::cuda::split_k<...>(xgemm::Gemm)", "strict products"),
        ("void xgemm::cuda::gemv_kernel<...>(xgemm::Gemm)", "strict products"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8", "stock products"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", "attention"),
        ("void at::native::vectorized_elementwise_kernel<4, ...>", "rest"),
    ],
)  # fmt: skip
def test_families_of_kernels(kernel, family):
    assert steps.family_of(kernel) == family


def test_shows_a_record(tmp_path, capsys):
    model = {
        "what": "a model", "ms": {"stock": 30.0, "tf32": 12.0, "converted": 15.0},
        "peak_mib": {"stock": 100.0, "tf32": 100.0, "converted": 104.0},
        "losses": {}, "largest_difference": {"tf32": 1e-3, "converted": 1e-6}, "need_ms": 9.0,
        "families_ms": dict.fromkeys((*steps.FAMILIES, steps.REST), 1.0), "kernels_ms": {},
    }  # fmt: skip
    record = {"facts": {"device": "a GPU"}, "compiled": False, "models": {"mlp": model}}
    path = tmp_path / "steps.json"
    path.write_text(json.dumps(record))
    assert steps.main(["--show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "2.00" in shown and "1.04" in shown
    for wrong in ([], ["--show", str(path), "--json", str(path)]):
        with pytest.raises(SystemExit):
            steps.main(wrong)
        assert "--json" in capsys.readouterr().err
