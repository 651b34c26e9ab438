"""What convert and patch reach, as benchmarks/reach.py measures it, on models made here."""

from __future__ import annotations

from pathlib import Path

import architectures
import pytest
import reach
import reach_page
import records
import torch
from torch import nn

import xgemm_torch

FOLDER = Path(xgemm_torch.__file__).resolve().parents[1] / "benchmarks"


class Half(nn.Module):
    """A layer, and as large a product by hand."""

    def __init__(self):
        super().__init__()
        self.layer, self.weight = nn.Linear(8, 8, bias=False), nn.Parameter(torch.randn(8, 8))
        self.late = nn.Parameter(torch.zeros(8, 8))

    def forward(self, x):
        return (self.layer(x) @ self.weight).matmul(self.late)


class Like(nn.Module):
    """A layer that is none of torch's."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))

    def forward(self, x):
        return x @ self.weight.T


def broken():
    raise OSError("no | such file\nmore")


def measured(make, package="torch"):
    return reach.measure(architectures.Architecture("one", package, make), "cpu", "ieee")


def test_shares_and_errors():
    entry = measured(lambda: (Half(), (torch.randn(5, 8),)))
    assert entry["status"] == "ok"
    assert entry["modules"] == [1, 1]
    forward = 2 * 5 * 8 * 8
    # Three products, and two gradients of each but the first, whose input needs none.
    assert entry["patch"]["flops"] == entry["convert"]["flops"] == 8 * forward
    assert entry["patch"]["share"] == 1
    assert entry["patch"]["left"] == {}
    assert entry["convert"]["share"] == 2 / 8
    assert entry["convert"]["left"] == {"mm": 6 * forward}
    for way in reach_page.WAYS:
        assert all(0 < error < 1e-5 for error in entry["errors"][way])
    assert entry["errors"]["patch"] != entry["errors"]["stock"], "other products, other bits"
    (line,) = reach_page.rows({"models": {"half": entry}})
    assert line[1:6] == ("half", "5.12 k", "25%", "100%", "-")
    assert line[-1] == "ok"


def test_a_wrong_result_is_an_error_in_the_table(monkeypatch):
    """Of a product that is off by one part in a thousand."""
    monkeypatch.setattr(xgemm_torch.convert.__globals__["Linear"], "forward",
                        lambda self, x: 1.001 * nn.functional.linear(x, self.weight))  # fmt: skip
    entry = measured(lambda: (Half(), (torch.randn(5, 8),)))
    assert all(error > 5e-4 for error in entry["errors"]["convert"])
    assert all(error < 1e-5 for error in entry["errors"]["patch"])


def test_classes_that_convert_is_told_of():
    a = architectures.Architecture(
        "one", "torch", lambda: (Like(), (torch.randn(5, 4),)), f"{__name__}.Like"
    )
    entry = reach.measure(a, "cpu", "ieee")
    assert entry["convert"]["share"] == 1
    (line,) = reach_page.rows({"models": {"like": entry}})
    assert line[3:5] == ("100% (types=Like)", "100%")


def test_what_does_not_run_is_a_row():
    models = {
        "there": measured(broken),
        "not there": measured(broken, "no-such-package"),
        "integers": measured(lambda: (nn.Identity(), (torch.ones(2),))),
    }
    assert [line[-1] for line in reach_page.rows({"models": models})] == [
        "stock: OSError: no / such file",
        reach.NOT_INSTALLED,
        "stock: RuntimeError: no output depends on a parameter",
    ]


def test_operators_by_kind():
    patch = {
        "flops": 1000, "unknown": 2, "left": {
            "_scaled_dot_product_flash_attention_for_cpu": 100, "mm": 10,
            "_scaled_dot_product_flash_attention_for_cpu_backward": 250, "bmm": 1,
        },
    }  # fmt: skip
    assert reach_page.left(patch) == "attention 35%, mm 1%, 2 calls of unknown FLOP"
    assert reach_page.percent(0.99999) == "99.9%"


def test_complex_and_packed_outputs():
    layer = nn.LSTM(3, 4)
    entry = measured(lambda: (layer, (torch.randn(5, 2, 3),)))
    assert entry["status"] == "ok"
    assert entry["patch"]["share"] < 1

    class Spectral(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))

        def forward(self, x):
            return torch.fft.irfft(torch.fft.rfft(x) @ self.weight)

    entry = measured(lambda: (Spectral(), (torch.randn(5, 6),)))
    assert entry["errors"]["stock"][1] < 1e-5
    assert entry["patch"]["share"] == 0


@pytest.mark.parametrize(
    "a",
    [a for a in architectures.ARCHITECTURES if a.name in ("nn.MultiheadAttention", "nn.LSTMCell")],
    ids=lambda a: a.name,
)
def test_two_that_need_no_library(a):
    entry = reach.measure(a, "cpu", "ieee")
    assert entry["status"] == "ok"
    ours, stock = entry["errors"]["patch"], entry["errors"]["stock"]
    assert all(x <= 4 * y + 1e-6 for x, y in zip(ours, stock, strict=True))


def test_the_record_has_every_architecture():
    (path,) = sorted((FOLDER / "results").glob("*/*-reach.json"))[-1:]
    models = records.read(path)["models"]
    names = [a.name for a in architectures.ARCHITECTURES]
    assert len(set(names)) == len(names) >= 30
    assert list(models) == names
    assert len({entry["package"] for entry in models.values()}) >= 10
