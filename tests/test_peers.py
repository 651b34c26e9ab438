"""benchmarks/peers.py: other libraries' products, told apart from those that are not there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path

import peers
import pytest
import recording
import records
import torch

from xgemm_torch.tools import accuracy, environment, timing
from xgemm_torch.tools.contenders import Problem

ROOT = Path(__file__).parent.parent
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NO_GPU = not torch.cuda.is_available()
SMALL = Problem("square 64", 64, 48, 80, "NT")


def stand_in(name, call, version="1.0"):
    """A library that multiplies by a function of two stored tensors."""

    def load(device):
        return version, lambda p, sets: peers.Called(
            lambda a, b: call(
                a.t() if p.layout[0] == "T" else a, b.t() if p.layout[1] == "T" else b
            ),
            sets,
        )

    return peers.Peer(name, "stand-in", peers.GRAPH, load)


def absent(name, why="not installed"):
    def load(device):
        raise peers.Absent(why)

    return peers.Peer(name, "stand-in", peers.GRAPH, load)


def refuses(a, b):
    raise RuntimeError("no such algorithm\nand a long trace")


LIBRARIES = (
    stand_in("torch FP32", torch.mm),
    stand_in("coarse TF32", lambda a, b: accuracy.tf32(a) @ accuracy.tf32(b)),
    stand_in("broken x", refuses),
    absent("nowhere y"),
)


@pytest.fixture
def record(monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "PEERS", LIBRARIES)
    monkeypatch.setattr(peers, "ON_CPU", (SMALL, Problem("row", 1, 40, 33)))
    monkeypatch.setattr(peers, "PROBLEMS", peers.ON_CPU)
    assert peers.main(["--json", str(tmp_path / "peers.json")]) == 0
    return tmp_path / "peers.json"


def test_errors_are_those_against_float64(record):
    entry = records.read(record)["products"]["square 64"]
    a, b = timing.operands(64, 48, 80, "NT", device=DEVICE, seed=1)[0]
    want = accuracy.errors(a @ b.t(), a, b.t())
    assert entry["errors"]["torch FP32"]["rms"] == pytest.approx(want.rms, rel=1e-4)
    assert 100 < entry["errors"]["coarse TF32"]["rms"] < 5000
    assert all(us > 0 for us in entry["us"].values())


def test_nobody_is_dropped(record, capsys):
    found = records.read(record)
    assert list(found["peers"]) == [peer.name for peer in LIBRARIES]
    assert found["peers"]["nowhere y"]["absent"] == "not installed"
    assert found["finished"] and list(found["products"]) == ["square 64", "row"]
    for entry in found["products"].values():
        assert entry["failed"] == {"broken x": "RuntimeError: no such algorithm"}
        assert set(entry["us"]) == set(entry["errors"]) == {"torch FP32", "coarse TF32"}
    capsys.readouterr()
    assert peers.main(["--show", str(record)]) == 0
    said = capsys.readouterr().out
    assert said.count("nowhere y") == said.count("not installed") == 2
    assert said.count("broken x") == said.count("no such") == 2


def test_it_goes_on_where_it_stopped(record, monkeypatch, capsys):
    before = records.read(record)
    del before["products"]["row"]
    records.write(record, before | {"finished": False})
    measured = []
    real = peers.measure
    monkeypatch.setattr(
        peers, "measure", lambda p, *rest: measured.append(p.label) or real(p, *rest)
    )
    assert peers.main(["--json", str(record), "--seconds", "-1"]) == 3  # time is up
    assert measured == [] and not records.read(record)["finished"]
    assert peers.main(["--json", str(record)]) == 0
    assert measured == ["row"] and records.read(record)["finished"]
    now = records.read(record)["products"]["square 64"]
    assert now == before["products"]["square 64"]
    monkeypatch.setattr(peers, "PEERS", LIBRARIES[:1])
    with pytest.raises(SystemExit, match="of other peers"):
        peers.main(["--json", str(record)])


def test_torch_is_as_it_was(monkeypatch):
    """TF32 is on inside the measurement alone."""
    seen = []
    before = environment.fp32_state()
    tf32 = peers.Called(
        lambda a, b: seen.append(torch.backends.cuda.matmul.fp32_precision) or a @ b,
        timing.operands(8, 8, 8, "NN", device="cpu", rotate=False),
        lambda: recording.tf32(True),
    )
    tf32.result()
    tf32.sample()
    assert len(seen) > 2 and set(seen) == {"tf32"}
    assert environment.fp32_state() == before
    with pytest.raises(RuntimeError, match="no such"):
        peers.Called(refuses, [(None, None)], lambda: recording.tf32(True)).result()
    assert environment.fp32_state() == before


@pytest.mark.skipif(NO_GPU is False, reason="there is a GPU")
def test_what_is_not_here_says_so(monkeypatch):
    for name in ("triton", "jax", "cupy"):
        monkeypatch.setitem(sys.modules, name, None)  # an import of it is an ImportError
    _, told = peers.load(peers.PEERS, "cpu")
    for name, entry in told.items():
        if name.partition(" ")[0] in ("triton", "jax", "cupy"):
            assert entry["absent"] and entry["version"] is None
    assert told["torch TF32"]["absent"] == "TF32 needs a GPU"
    assert not told["xgemm fp32"]["absent"] and not told["xgemm ieee"]["absent"]


def test_a_library_that_does_not_load_says_why(monkeypatch):
    def broken(name):
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(peers.importlib, "import_module", broken)
    with pytest.raises(peers.Absent, match="does not load: OSError: libcudart"):
        peers.installed("cupy")


def fake_jax(platform):
    """What peers.py uses of JAX, by torch."""

    def dot_general(a, b, over, *, precision, preferred_element_type):
        ((of_a,), (of_b,)), _ = over
        return (a.t() if of_a == 0 else a) @ (b.t() if of_b == 1 else b)

    jax = types.ModuleType("jax")
    jax.__version__ = "9.9"
    jax.devices = lambda: [types.SimpleNamespace(platform=platform)]
    jax.jit = lambda function: function
    jax.block_until_ready = lambda made: made
    jax.numpy = types.SimpleNamespace(float32="float32")
    jax.dlpack = types.SimpleNamespace(from_dlpack=lambda tensor: tensor)
    presets = types.SimpleNamespace(BF16_BF16_F32_X3="x3", TF32_TF32_F32_X3="tx3")
    jax.lax = types.SimpleNamespace(dot_general=dot_general, DotAlgorithmPreset=presets)
    return jax


@pytest.mark.parametrize("layout", list(timing.LAYOUTS))
def test_jax_multiplies_operands_as_they_are_stored(layout, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", fake_jax("cpu"))
    version, prepare = peers.of_jax("BF16_BF16_F32_X3")("cpu")
    p = Problem("x", 9, 7, 5, layout)
    made = prepare(p, timing.operands(9, 7, 5, layout, device="cpu", rotate=False))
    a, b = timing.operands(9, 7, 5, layout, device="cpu", rotate=False)[0]
    torch.testing.assert_close(made.result(), timing.torch_mm(layout)(a, b))
    assert version == "9.9" and made.sample() > 0


def test_a_jax_without_cuda_or_without_an_algorithm_is_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", fake_jax("cpu"))
    with pytest.raises(peers.Absent, match="jax 9.9 is installed without CUDA"):
        peers.of_jax("BF16_BF16_F32_X3")("cuda")
    with pytest.raises(peers.Absent, match="jax 9.9 has no BF16_BF16_F32_X6"):
        peers.of_jax("BF16_BF16_F32_X6")("cpu")


TRITON = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")

INTERPRETED = """
import torch, triton_mm
from xgemm_torch.tools import accuracy

for m, n, k in ((70, 50, 45), (64, 64, 64), (3, 130, 64)):
    for a in (torch.randn(m, k), torch.randn(k, m).t()):
        for b in (torch.randn(k, n), torch.randn(n, k).t()):
            error = accuracy.errors(triton_mm.mm(a, b, "tf32x3"), a, b)
            assert error.largest < 8 and not error.misplaced, error
triton_mm.MOST_ELEMENTS = 10
try:
    triton_mm.mm(a, b, "tf32x3")
except ValueError as error:
    print(error)
"""
COMPILED = """
import triton, triton_mm
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

function = triton_mm.product_kernel.fn
bm, bn, bk, warps, slots = triton_mm.TILES[0]
for precision in ("tf32x3", "bf16x6"):
    constants = {"PRECISION": precision, "GROUP": 8, "EVEN_K": True, "BM": bm, "BN": bn, "BK": bk}
    constants |= {"ak": 1, "bn_": 1}
    types = dict.fromkeys(function.arg_names, "i32") | dict.fromkeys(("a", "b", "d"), "*fp32")
    types |= dict.fromkeys(constants, "constexpr")
    aligned = {(i,): [["tt.divisibility", 16]]
               for i, name in enumerate(function.arg_names) if name not in constants}
    source = ASTSource(function, signature=types, constexprs=constants, attrs=aligned)
    text = triton.compile(source, target=GPUTarget("cuda", 90, 32),
                          options={"num_warps": warps, "num_stages": slots}).asm["ptx"]
    products = [line.split()[0] for line in text.splitlines() if "wgmma.mma_async" in line]
    print(precision, len(products), *sorted({name.split(".")[-1] for name in products}))
"""


def with_triton(code, interpreted):
    """What code prints in a process of its own: the interpreter is chosen when Triton loads."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
    variables = os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1" if interpreted else "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=variables
    )
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("this Triton's interpreter needs an older numpy")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@TRITON
def test_tritons_kernel_in_its_interpreter():
    """All strides, and edges that blocks do not divide."""
    (line,) = with_triton(INTERPRETED, True)
    assert line == "triton_mm: 3 x 130 x 64 needs offsets of more than 32 bits"


@TRITON
def test_tritons_kernel_multiplies_by_tensor_cores():
    """Compiled for an H100, which needs none: three products of TF32, six of bf16, by wgmma."""
    # 128 x 128 x 32 by two warpgroups: four steps of 8 along K, or two of 16.
    assert with_triton(COMPILED, False) == ["tf32x3 12 tf32", "bf16x6 12 bf16"]


@TRITON
@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32x3", "bf16x6"])
def test_tritons_kernel_on_a_gpu(precision):
    import triton_mm

    if not triton_mm.supported(precision):
        pytest.skip(f"this Triton has no {precision}")
    for a in (torch.randn(300, 500, device="cuda"), torch.randn(500, 300, device="cuda").t()):
        for b in (torch.randn(500, 200, device="cuda"), torch.randn(200, 500, device="cuda").t()):
            assert accuracy.errors(triton_mm.mm(a, b, precision), a, b).rms < 2
