"""examples/: each in small size on a CPU, converted and not, and what their page says of them."""

from __future__ import annotations

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import examples_page
import make_readme
import pytest
import records
import run_examples
import torch
import ways
from run_examples import PLANS
from torch.utils._python_dispatch import TorchDispatchMode

import xgemm_torch

ROOT = Path(xgemm_torch.__file__).resolve().parents[1]
FILES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem != "ways")
NAMES = [path.stem for path in FILES]
PAGE = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
# Steps that are enough to see an error fall.
STEPS = {"pinn": 18, "gaussian_process": 60, "orthogonalize": 12, "neural_operator": 20,
         "gpt": 20, "vit": 50}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small products gain nothing by two, and lose much where others run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def example(name):
    return importlib.import_module(name)


def job_of(name, way, **sizes):
    module = example(name)
    return module.Job(replace(module.SIZES["small"], **sizes), way, 0, "cpu")


# --- what an example is ---------------------------------------------------------------------------


def test_every_example_is_run_and_on_the_page():
    assert set(NAMES) == set(PLANS) == set(STEPS)
    assert sum(plan.share for plan in PLANS.values()) == pytest.approx(1)
    for path in FILES:
        assert f"[{path.name}](../examples/{path.name})" in PAGE
        text = path.read_text(encoding="utf-8")
        assert 60 <= len(text.splitlines()) <= 175, path.name
        assert f"python examples/{path.name} --way stock" in text
        assert "xgemm_torch" in text and "fp32_precision" not in text


@pytest.mark.parametrize("name", NAMES)
def test_the_ways_agree_and_errors_fall(name):
    found = {}
    for way in ("stock", "converted"):
        job = job_of(name, way, steps=STEPS[name])
        first = job.error()
        losses = [float(job.step()) for _ in range(STEPS[name])]
        found[way] = losses, job.error()
        assert found[way][1] < 0.95 * first
    # By auto, which is ATen's BLAS on a CPU.
    for stock, converted in zip(*found.values(), strict=True):
        torch.testing.assert_close(torch.tensor(converted), torch.tensor(stock), rtol=1e-2, atol=0)
    assert found["converted"][0][0] == pytest.approx(found["stock"][0][0], rel=1e-5)


@pytest.mark.parametrize("name", ["pinn", "neural_operator", "gpt", "vit"])
def test_all_layers_are_converted(name):
    job = job_of(name, "converted")
    model = job.field if name == "pinn" else job.model
    linears = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    assert linears and all(isinstance(m, xgemm_torch.nn.Linear) for m in linears)


def test_tf32_is_put_back():
    backend = torch.backends.cuda.matmul
    before = backend.fp32_precision
    for way, inside in (("tf32", "tf32"), ("stock", "ieee"), ("converted", "ieee")):
        with pytest.raises(KeyError), ways.products(way):
            assert backend.fp32_precision == inside
            raise KeyError
        assert backend.fp32_precision == before


def test_command_line(tmp_path, capsys, monkeypatch):
    out = tmp_path / "out.json"
    module = example("orthogonalize")
    monkeypatch.setattr(
        sys, "argv",
        ["x", "--size", "small", "--steps", "3", "--device", "cpu", "--json", str(out)],
    )  # fmt: skip
    ways.main(module.Job, module.SIZES, module.ERROR)
    assert module.ERROR in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert (found["way"], found["steps"], len(found["losses"])) == ("converted", 3, 3)


# --- their mathematics ----------------------------------------------------------------------------


def test_derivatives_are_those_of_autograd():
    pinn = example("pinn")
    field = pinn.Field(3, 16)
    at = torch.rand(9, 2, requires_grad=True)
    _, u_x, u_y, lap = field(at)
    u, true = pinn.solution(field, at)
    for value, derivatives, laplacian in ((field(at)[0], (u_x, u_y), lap), (u, None, true)):
        (first,) = torch.autograd.grad(value.sum(), at, create_graph=True)
        seconds = [
            torch.autograd.grad(first[:, i].sum(), at, retain_graph=True)[0][:, i] for i in (0, 1)
        ]
        torch.testing.assert_close(laplacian[:, 0], sum(seconds), rtol=1e-4, atol=1e-4)
        for i, derivative in enumerate(derivatives or ()):
            torch.testing.assert_close(derivative[:, 0], first[:, i], rtol=1e-4, atol=1e-5)


def test_burgers_is_solved():
    """Against half the step and twice the points; the mean stays, the energy falls."""
    operator = example("neural_operator")
    fine = operator.states(3, 256, torch.Generator().manual_seed(0))
    last = operator.burgers(fine)
    torch.testing.assert_close(operator.burgers(fine, 400), last, rtol=0, atol=1e-5)
    torch.testing.assert_close(operator.burgers(fine[:, ::2]), last[:, ::2], rtol=0, atol=1e-3)
    torch.testing.assert_close(last.mean(1), fine.mean(1), rtol=0, atol=1e-5)
    assert (last.norm(dim=1) < fine.norm(dim=1)).all()


class Rounded(TorchDispatchMode):
    """Products of operands with 10 bits of mantissa, as TF32's are, summed in FP32."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        first = {torch.ops.aten.mm.default: 0, torch.ops.aten.addmm.default: 1}.get(function)
        if first is not None and args[first].dtype is torch.float32:
            args = (*args[:first], *map(self.rounded, args[first : first + 2]), *args[first + 2 :])
        return function(*args, **(kwargs or {}))

    @staticmethod
    def rounded(x):
        bits = x.contiguous().view(torch.int32)
        return (bits + 0xFFF + (bits >> 13 & 1) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize(
    "name, times", [("orthogonalize", 300), ("gaussian_process", 4), ("pinn", 3)]
)
def test_where_tf32_is_too_coarse(name, times):
    steps = example(name).SIZES["small"].steps
    fine = job_of(name, "stock")
    with Rounded():
        coarse = job_of(name, "stock")
    for _ in range(steps):
        fine.step()
        with Rounded():
            coarse.step()
    assert coarse.error() > times * fine.error()


def test_where_tf32_is_as_good():
    jobs = {True: job_of("neural_operator", "stock"), False: job_of("neural_operator", "stock")}
    for rounded, job in jobs.items():
        for _ in range(20):
            if rounded:
                with Rounded():
                    job.step()
            else:
                job.step()
    assert jobs[True].error() == pytest.approx(jobs[False].error(), rel=0.01)


# --- the record and its page ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A record of small sizes, of one example, through a file."""
    path = tmp_path_factory.mktemp("record") / "x-examples.json"
    arguments = ["--json", str(path), "--examples", "gaussian_process", "--size", "small"]
    assert run_examples.main([*arguments, "--seconds", "20"]) == 0
    return records.read(path)


def test_a_record_has_all_ways(record, tmp_path, capsys):
    entry = record["examples"]["gaussian_process"]
    assert set(entry["ways"]) == set(ways.WAYS)
    for mine in entry["ways"].values():
        assert mine["error"] == mine["errors"][0] == mine["curve"][-1][2]
        assert mine["curve"][-1][0] == entry["steps"] and mine["ms"] > 0
        assert mine["details"]["test points"] == 16
    (tmp_path / "x.json").write_text(records.text(record))
    assert run_examples.main(["--show", str(tmp_path / "x.json")]) == 0
    assert "gaussian_process" in capsys.readouterr().out


def test_an_example_ends_with_its_time():
    module = example("orthogonalize")
    size = replace(module.SIZES["small"], steps=10**6)
    found, cut = run_examples.compared(module, size, 0, "cpu", 0.0)
    assert cut and [mine["curve"][-1][0] for mine in found.values()] == [1, 1, 1]


def test_the_page_is_made_of_a_record(record, tmp_path):
    record = {**record, "examples": dict.fromkeys(NAMES, record["examples"]["gaussian_process"])}
    lines = examples_page.rows(record, make_readme.table)
    assert len(lines) == 2 + len(NAMES) and len({line.count(" | ") for line in lines}) == 1
    said = "\n".join([*examples_page.details(record), examples_page.alternative(record)])
    assert "Negative variances" in said and "stock FP32" in said
    pytest.importorskip("matplotlib")
    data = examples_page.shown(record)
    data["examples"]["pinn"]["curves"]["tf32"] = [[1, 0.5, float("nan")]]  # it may diverge
    path = tmp_path / "x.svg"
    examples_page.draw(data, make_readme.digest(data), path)
    assert make_readme.digest(data) in path.read_text() and path.stat().st_size < 20_000


def test_figures_of_the_page_are_the_records():
    found = make_readme.if_any("examples")["examples"]
    assert not make_readme.stale_examples()
    (block,) = re.findall(r"<!-- figures: examples -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    table = [re.split(r" (?<!\\)\| ", line[2:-2]) for line in block.splitlines()[2:]]
    assert set(found) == set(NAMES)
    for cells, (name, entry) in zip(table, found.items(), strict=True):
        mine = entry["ways"]
        assert cells[0].startswith(f"[{name}]") and cells[1] == str(entry["steps"])
        ms = [float(cell.split()[0]) for cell in cells[2:5]]
        assert ms == [pytest.approx(mine[way]["ms"], rel=0.006) for way in ways.WAYS]
        assert cells[4].endswith(f"({mine['stock']['ms'] / mine['converted']['ms']:.2f}x)")
