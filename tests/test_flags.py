"""No setting of torch is written, and no device is started: at import, by a call, by convert."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import problems
import pytest
import torch

import xgemm_torch


def settings() -> dict[str, object]:
    """The settings of torch that numbers and code paths depend on."""
    return {
        "matmul fp32_precision": torch.backends.cuda.matmul.fp32_precision,
        "cudnn conv fp32_precision": torch.backends.cudnn.conv.fp32_precision,
        "cudnn rnn fp32_precision": torch.backends.cudnn.rnn.fp32_precision,
        "fp32_precision": torch.backends.fp32_precision,
        "mkldnn matmul fp32_precision": torch.backends.mkldnn.matmul.fp32_precision,
        "fp16 reduction": torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        "bf16 reduction": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "cudnn benchmark": torch.backends.cudnn.benchmark,
        "cudnn deterministic": torch.backends.cudnn.deterministic,
        "preferred blas": torch.backends.cuda.preferred_blas_library(),
        "preferred linalg": torch.backends.cuda.preferred_linalg_library(),
        "mha fast path": torch.backends.mha.get_fastpath_enabled(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic, warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "grad": torch.is_grad_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "autocast cpu": torch.is_autocast_enabled("cpu"),
        "autocast cuda": torch.is_autocast_enabled("cuda"),
        "threads": torch.get_num_threads(),
        "interop threads": torch.get_num_interop_threads(),
        "rng": torch.get_rng_state().tolist(),
        "dispatch modes": len(torch.utils._python_dispatch._get_current_dispatch_mode_stack()),
        "suppress errors": torch._dynamo.config.suppress_errors,
        "recompile limit": torch._dynamo.config.recompile_limit,
        "cuda": torch.cuda.is_initialized(),
    }


def calls() -> dict[str, object]:
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    layer = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), layer)

    def train() -> None:
        xgemm_torch.sgemm(a.clone().requires_grad_(), b, activation="gelu").sum().backward()

    def convert_and_revert() -> None:
        xgemm_torch.convert(model)
        model(torch.ones(2, 3, 4))
        xgemm_torch.revert(model)

    def simt() -> None:
        with xgemm_torch.simt.configure(order="reverse", seed=5):
            for stage in problems.STAGES:
                xgemm_torch.sgemm(a, b, kernel=stage)
        xgemm_torch.simt.sites()

    def failing() -> None:
        for wrong in ((a, a), (a.double(), b), (a, None)):
            with pytest.raises((TypeError, ValueError)):
                xgemm_torch.sgemm(*wrong)

    def explain() -> None:
        str(xgemm_torch.explain(a, b))
        xgemm_torch.stages()

    return {
        "sgemm": lambda: xgemm_torch.sgemm(a, b),
        "ieee": lambda: xgemm_torch.sgemm(a, b, precision="ieee"),
        "operator": lambda: torch.ops.xgemm.sgemm(a, b),
        "out": lambda: xgemm_torch.sgemm(a, b, out=torch.empty(3, 5)),
        "train": train,
        "transforms": lambda: torch.func.hessian(lambda a: xgemm_torch.sgemm(a, b).sum())(a),
        "vmap": lambda: torch.func.vmap(lambda a: xgemm_torch.linear(a, b.T))(a),
        "matmul": lambda: xgemm_torch.matmul(a, b),
        "convert": convert_and_revert,
        "simt": simt,
        "failing": failing,
        "explain": explain,
    }


@pytest.mark.parametrize("name", calls())
def test_calls_write_no_setting(name):
    call = calls()[name]
    torch.manual_seed(1)
    before = settings()
    call()
    assert settings() == before


def test_random_numbers_are_drawn_by_initial_values_alone():
    torch.manual_seed(1)
    torch.nn.Linear(4, 5)
    want = torch.get_rng_state()
    torch.manual_seed(1)
    xgemm_torch.nn.Linear(4, 5)
    assert torch.equal(torch.get_rng_state(), want)


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_torchs_precision_setting_is_neither_needed_nor_changed(precision):
    """Once the new setting is written, torch's old one raises when it is read: it must not be."""
    code = f"""
        import torch, xgemm_torch
        torch.backends.cuda.matmul.fp32_precision = "{precision}"
        a = torch.ones(3, 4, requires_grad=True)
        xgemm_torch.sgemm(a, torch.ones(4, 5)).sum().backward()
        model = torch.nn.Linear(4, 5)
        xgemm_torch.convert(model)
        model(torch.ones(2, 4))
        assert torch.backends.cuda.matmul.fp32_precision == "{precision}"
    """
    _run(code)


def _run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:xgemm_torch", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_writes_no_setting_and_starts_no_device():
    code = """
        import os, sys, random, threading
        import torch
        sys.path.insert(0, "tests")
        rng, environment = random.getstate(), dict(os.environ)
        def started(*args, **kwargs):
            raise AssertionError("CUDA was started")
        torch._C._cuda_init = torch.cuda._lazy_init = started
        import torch._dynamo
        names = ("get_default_dtype", "get_num_threads", "get_num_interop_threads",
                 "are_deterministic_algorithms_enabled", "is_grad_enabled", "initial_seed")
        def state():
            return (
                [getattr(torch, name)() for name in names],
                torch.get_rng_state().tolist(),
                torch.backends.cuda.matmul.fp32_precision,
                torch.backends.fp32_precision,
                torch.backends.cudnn.benchmark,
                torch.backends.mha.get_fastpath_enabled(),
            )
        before, threads = state(), threading.active_count()
        import xgemm_torch
        assert state() == before
        assert threading.active_count() == threads
        assert random.getstate() == rng
        assert dict(os.environ) == environment
        assert not torch.cuda.is_initialized()
        assert not torch.cuda._is_in_bad_fork()
    """
    _run(code)


def test_import_can_be_forked():
    """A process that imported the package and computed on the CPU can fork workers."""
    code = """
        import multiprocessing, torch, xgemm_torch
        a = torch.ones(4, 4)
        xgemm_torch.sgemm(a, a)
        def work(q):
            q.put(xgemm_torch.sgemm(a, a, precision="ieee").sum().item())
        q = multiprocessing.get_context("fork").Queue()
        p = multiprocessing.get_context("fork").Process(target=work, args=(q,))
        p.start()
        assert q.get(timeout=60) == 64.0
        p.join()
    """
    _run(code)


def test_import_brings_no_heavy_packages():
    code = """
        import sys, torch
        before = set(sys.modules)
        import xgemm_torch
        new = {name.split(".")[0] for name in set(sys.modules) - before}
        print(*sorted(new))
    """
    new = set(_run(code).split())
    heavy = {"matplotlib", "rich", "numpy", "pytest", "hypothesis", "triton", "sympy", "setuptools"}
    assert "xgemm_torch" in new
    assert not new & heavy


@pytest.mark.parametrize("first", ["xgemm_torch", "torch.utils.flop_counter"])
def test_import_leaves_the_counter_of_flops_to_those_who_count(first):
    code = f"""
        import sys, torch
        finders = list(sys.meta_path)
        import {first}
        if {first!r} == "xgemm_torch":
            assert "torch.utils.flop_counter" not in sys.modules
        import xgemm_torch
        from torch.utils.flop_counter import FlopCounterMode
        assert sys.meta_path == finders
        a = torch.ones(4, 4)
        with FlopCounterMode(display=False) as counter:
            xgemm_torch.sgemm(a, a)
        assert counter.get_total_flops() == 128
    """
    _run(code)


def test_threads_may_call_at_once():
    import threading

    a, b = problems.normal(40, 30), problems.normal(30, 20)
    want = xgemm_torch.sgemm(a, b, precision="ieee")
    wrong = []

    def work(kernel: str) -> None:
        for _ in range(3):
            got = xgemm_torch.sgemm(a, b, kernel=kernel, precision="ieee")
            leaf = a.clone().requires_grad_()
            xgemm_torch.sgemm(leaf, b, precision="ieee").sum().backward()
            if not torch.equal(got, want) or leaf.grad is None:
                wrong.append(kernel)

    threads = [threading.Thread(target=work, args=(k,)) for k in ("auto", *problems.STAGES[:3])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_simt_settings_are_restored():
    with xgemm_torch.simt.configure() as before:
        pass
    with xgemm_torch.simt.configure(order="reverse", seed=7) as inner:
        assert (inner["order"], inner["seed"]) == ("reverse", 7)
        with xgemm_torch.simt.configure(order="forward") as innermost:
            assert (innermost["order"], innermost["seed"]) == ("forward", 7)
        with xgemm_torch.simt.configure() as now:
            assert now == inner
    with pytest.raises(KeyError), xgemm_torch.simt.configure(order="forward"):
        raise KeyError
    with xgemm_torch.simt.configure() as after:
        assert after == before
    with (
        pytest.raises(ValueError, match="no order named 'up'; there are: forward, reverse, random"),
        xgemm_torch.simt.configure(order="up"),
    ):
        pass


def test_simt_counts_barriers():
    stage = next(s for s in xgemm_torch.stages() if s.tiles[0].buffers)
    xgemm_torch.sgemm(torch.ones(3, 4), torch.ones(4, 5), kernel=stage.name)
    file = stage.file.rpartition("/")[2]
    assert any(site.startswith(file + ":") for site in xgemm_torch.simt.sites("barrier"))
