"""python -m xgemm_torch accuracy: its reference, its statistics, its verdict, its output."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest
import torch

import xgemm_torch
from xgemm_torch.__main__ import main
from xgemm_torch.tools import accuracy, environment

U = 2.0**-24
SMALL = ["--size", "24", "--k", "1", "33"]


def tf32_product(a, b):
    return xgemm_torch.sgemm(accuracy.tf32(a), accuracy.tf32(b), precision="ieee")


@pytest.fixture
def only_sgemm(monkeypatch):
    """The stages are computed in test_emulated.py."""
    real = accuracy.under_contract("cpu")["sgemm"]
    monkeypatch.setattr(accuracy, "under_contract", lambda device: {"sgemm": real})


@pytest.mark.parametrize("name", accuracy.DISTRIBUTIONS)
def test_the_reference_is_exact(name):
    """Against rational arithmetic, in which nothing is rounded and nothing under- or overflows."""
    a, b = accuracy.DISTRIBUTIONS[name].make(accuracy.Draw("cpu", 1), 3, 2, 21)
    reference = accuracy.Exact(a, b)
    for i in range(3):
        for j in range(2):
            terms = [Fraction(a[i, k].item()) * Fraction(b[k, j].item()) for k in range(21)]
            size = sum(abs(term) for term in terms)
            if size:
                off = abs(Fraction(reference.product[i, j].item()) - sum(terms)) / size
                assert off < 1e-6 * U
                assert abs(Fraction(reference.size[i, j].item()) / size - 1) < 1e-6


def test_errors_of_known_results():
    a, b = torch.ones(2, 4), torch.ones(4, 2)
    found = accuracy.errors(torch.full((2, 2), 4.0), a, b)
    assert found == accuracy.Errors(0.0, 0.0, 0.0, 0)
    # 4 (1 + 2^-22) and 4 (1 - 2^-23): 4 u too large, 2 u too small.
    found = accuracy.errors(torch.tensor([[4.0 + 2**-20, 4.0], [4.0, 4.0 - 2**-21]]), a, b)
    assert found == accuracy.Errors(math.sqrt(20 / 4), 4.0, 0.5, 0)
    found = accuracy.errors(torch.tensor([[4.0, math.inf], [math.nan, 4.0]]), a, b)
    assert found == accuracy.Errors(0.0, 0.0, 0.0, 2)
    # A sum of zeros is zero, and nothing else.
    zeros = torch.zeros(2, 4)
    assert accuracy.errors(torch.tensor([[0.0, -0.0], [1e-45, 0.0]]), zeros, b).misplaced == 1


def test_tf32_rounds_to_nearest_even():
    half, last = 2.0**-11, 2.0**-10
    given = [
        1.0,
        1 + half,
        1 + half + 2**-23,
        1 + 3 * half,
        -(1 + half),
        2 - 2**-23,
        0.0,
        2.0**-149,
    ]
    want = [1.0, 1.0, 1 + last, 1 + 2 * last, -1.0, 2.0, 0.0, 0.0]
    assert accuracy.tf32(torch.tensor(given)).tolist() == want
    large = torch.tensor([accuracy.FLT_MAX, math.inf, -math.inf])
    assert accuracy.tf32(large).tolist() == [math.inf, math.inf, -math.inf]


def test_the_contract_has_four_terms():
    chain = accuracy.Errors(2.0, 8.0, -5.0, 3)

    def terms(chain=chain, **changes):
        found = accuracy.Errors(
            **{"rms": 2.0, "largest": 12.0, "mean": 5.0, "misplaced": 3} | changes
        )
        return set(accuracy.broken(found, chain))

    assert terms() == set()
    assert terms(rms=2.01) == {"rms"}
    assert terms(largest=12.1) == {"largest"}
    assert terms(mean=-5.1) == {"mean"}
    assert terms(misplaced=2) == {"misplaced"}
    assert terms(rms=math.nan) == {"rms"}
    none = accuracy.Errors(0.0, 0.0, 0.0, 3)
    assert terms(none, rms=1.6, largest=8.0, mean=-4.0) == set()
    assert terms(none, rms=1.61, largest=8.1, mean=4.1) == {"rms", "largest", "mean"}


def test_distributions_are_what_they_are_called():
    made = {
        name: kind.make(accuracy.Draw("cpu", 3), 40, 50, 200)
        for name, kind in accuracy.DISTRIBUTIONS.items()
    }
    least = torch.finfo(torch.float32).tiny
    for name, (a, b) in made.items():
        assert a.shape == (40, 200) and b.shape == (200, 50) and a.dtype == b.dtype == torch.float32
        assert bool(a.isfinite().all()) and bool(b.isfinite().all())
        positive = bool((a >= 0).all() and (b >= 0).all())
        assert positive == (name in ("uniform", "relu")), name
        assert bool(xgemm_torch.sgemm(a, b, precision="ieee").isfinite().all()), name
    sizes = made["wide"][0].abs().log2()
    assert sizes.min() < -18 and sizes.max() > 18
    for x in (made["outlier"][0], made["outlier"][1].T):
        top = x.abs().topk(2).values
        assert bool((top[:, 0] > 8 * top[:, 1]).all())
    assert made["scaled"][0].abs().amax(1).log2().std() > 20
    assert made["graded"][0].abs().amax(0).log2().std() > 10
    assert bool((made["subnormal"][0].abs() < least).all())
    a, b = made["underflow"]
    assert bool((a.double().abs() @ b.double().abs() < 200 * least).all())
    assert made["largest"][0].max() == accuracy.FLT_MAX


@pytest.mark.parametrize("name", accuracy.DISTRIBUTIONS)
def test_coarser_products_are_found(name, monkeypatch):
    """What does not keep the contract is seen on every distribution, also in a few elements."""
    monkeypatch.setattr(accuracy, "under_contract", lambda device: {"coarse": tf32_product})
    row = accuracy.measure(name, 150, size=20)
    assert set(row["broken"]["coarse"]) >= {"rms", "largest"}
    assert row["errors"]["coarse"] == row["errors"]["TF32"]


def test_the_chain_keeps_its_own_contract(monkeypatch):
    ieee = {"strict": lambda a, b: xgemm_torch.sgemm(a, b, precision="ieee")}
    monkeypatch.setattr(accuracy, "under_contract", lambda device: ieee)
    for name in accuracy.DISTRIBUTIONS:
        assert accuracy.measure(name, 150, size=20)["broken"] == {}


def test_the_contract_is_asked_of_all_that_give_it():
    others = [stage.name for stage in xgemm_torch.stages() if not stage.strict]
    assert list(accuracy.under_contract("cpu")) == ["sgemm", *others]
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    for product in accuracy.under_contract("cpu").values():
        assert torch.equal(product(a, b), torch.full((3, 5), 4.0))


@pytest.mark.usefixtures("only_sgemm")
def test_the_command_as_json_and_picture(tmp_path, capsys):
    picture, before = tmp_path / "a.png", environment.fp32_state()
    assert main(["accuracy", *SMALL, "--json", "--png", str(picture)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [(row["distribution"], row["k"]) for row in facts["rows"]] == [
        (name, k) for name in accuracy.DISTRIBUTIONS for k in (1, 33)
    ]
    assert facts["kept"] is True and facts["size"] == 24
    for row in facts["rows"]:
        assert list(row["errors"]) == ["chain", "torch.mm", "TF32", "sgemm"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert environment.fp32_state() == before


@pytest.mark.usefixtures("only_sgemm")
def test_the_command_as_a_table(capsys):
    assert main(["accuracy", *SMALL]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in (*accuracy.DISTRIBUTIONS, "chain", "TF32", "sgemm"))
    assert "The contract is kept" in text


def test_a_broken_contract_is_the_exit_code(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(accuracy, "under_contract", lambda device: {"coarse": tf32_product})
    arguments = ["accuracy", "--size", "8", "--k", "40", "--png", str(tmp_path / "a.png")]
    assert main(arguments) == 1
    text = capsys.readouterr().out
    assert "The contract is broken" in text
    assert "coarse, wide, K = 40: rms" in " ".join(text.split())


@pytest.mark.parametrize("arguments", [["--size", "0"], ["--k", "5", "0"]])
def test_sizes_below_one_are_refused(arguments, capsys):
    assert main(["accuracy", *arguments]) == 2
    assert "must be at least 1, got 0" in capsys.readouterr().err


@pytest.mark.gpu
def test_the_command_on_a_gpu(capsys):
    assert main(["accuracy", "--json", "--size", "256", "--k", "64", "512"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["gpu"] and facts["kept"]
