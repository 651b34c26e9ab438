"""benchmarks/attention.py: its shapes, what it compares with, and where its record is shown."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import attention
import attention_page
import make_readme
import provenance
import pytest
import recording
import records
import report
import torch
import torch.nn.functional as F

import xgemm_torch

ROOT = Path(xgemm_torch.__file__).resolve().parents[1]
TINY = attention.Case("tiny", 2, 3, 20, 12, 8)
CASES = (
    TINY,
    replace(TINY, causal=True),
    replace(TINY, masked=True),
    replace(TINY, queries=12, causal=True, data="peaked", group="data"),
    replace(TINY, data="zeros", group="data"),
    replace(TINY, data="wide", group="data"),
    replace(TINY, name="random 0", width=5, group="random"),
)
FACTS = {"device": "NVIDIA H100 80GB HBM3", "torch": "2", "date": "2026-11-28T00:00:00+00:00",
         "commit": "c" * 40, "command": "python benchmarks/attention.py"}  # fmt: skip


@pytest.fixture
def no_gpu(monkeypatch):
    """A CPU in place of one: ours is torch's function, and takes half the time."""
    monkeypatch.setattr(
        xgemm_torch, "scaled_dot_product_attention", F.scaled_dot_product_attention, raising=False
    )
    monkeypatch.setattr(
        attention, "turns",
        lambda calls: {clock: {"torch": 3.0, "xgemm": 1.5} for clock in ("device_ms", "call_ms")},
    )  # fmt: skip


@pytest.fixture
def record(no_gpu):
    entries = {case.label: attention.measured(case, "cpu") for case in CASES}
    return {"facts": FACTS, "seed": 71, "attention": entries, "finished": True}


def test_random_shapes_are_of_their_seed():
    found = attention.random_cases(5, 40)
    assert found == attention.random_cases(5, 40) != attention.random_cases(6, 40)
    assert found[:7] == attention.random_cases(5, 7)
    for case in found:
        assert 1 <= case.queries <= 4096 and 1 <= case.keys <= 4096 and 16 <= case.width <= 128
        assert 0.5e9 <= 2 * case.flop <= 40e9 and case.bytes <= 1 << 30
    assert {case.causal for case in found} == {False, True}
    assert len({case.label for case in (*attention.MODELS, *found)}) == len(attention.MODELS) + 40


def test_shapes_of_models():
    labels = {case.label for case in attention.MODELS}
    assert {
        "GPT-2 8x12x1024x64 causal", "ViT-B 64x12x197x64", "BERT 32x12x512x64",
        "Llama 0.3B 4x16x2048x64 causal", "Llama 7B 1x32x4096x128 causal", "cross 4x16x1024x333x64",
        "long 2x16x8192x64 causal", "small 32x4x64x32", "BERT 32x12x512x64, wide",
        "ViT-B 64x12x197x64 dropout 0.1",
    } <= labels  # fmt: skip
    assert {case.data for case in attention.MODELS} == set(attention.DATA)


@pytest.mark.parametrize("queries, keys", [(6, 6), (9, 4), (4, 9)])
def test_flop_are_of_what_is_seen(queries, keys):
    """The diagonal counts half, so that a square is half of all."""
    case = replace(TINY, queries=queries, keys=keys)
    assert case.flop == 2 * 6 * queries * keys * 8
    seen = torch.ones(queries, keys).tril()
    want = float(seen.sum()) - 0.5 * min(queries, keys)
    assert replace(case, causal=True).flop == 2 * 6 * want * 8


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_what_is_right_is_autograds_in_float64(case):
    x = attention.operands(case, "cpu")
    leaves = [t.double().requires_grad_() for t in (x.q, x.k, x.v)]
    out = F.scaled_dot_product_attention(*leaves, attn_mask=x.mask, is_causal=case.causal)
    want = (out, *torch.autograd.grad(out, leaves, x.grad.double()))
    seen = x.mask
    if case.causal:
        seen = torch.ones(case.queries, case.keys, dtype=torch.bool).tril()
    found = attention.exact(*(t.detach() for t in leaves), x.grad.double(), seen)
    assert list(found) == ["out", "dq", "dk", "dv"]
    for (value, size), right in zip(found.values(), want, strict=True):
        torch.testing.assert_close(value, right.detach(), rtol=1e-12, atol=1e-14)
        assert (value.abs() <= size * (1 + 1e-9)).all()


def test_what_is_right_with_dropout_is_autograds():
    """Of weights that the kernels drop by the same seed, in float64."""
    case = replace(TINY, dropout=0.4, causal=True)
    x, left = attention.operands(case, "cpu"), attention.left_by(case, torch.device("cpu"))
    seen = torch.ones(case.queries, case.keys, dtype=torch.bool).tril()
    leaves = [t.double().requires_grad_() for t in (x.q, x.k, x.v)]
    q, k, v = leaves
    logits = (case.width**-0.5 * q @ k.mT).masked_fill(~seen, -torch.inf)
    out = (left * logits.softmax(-1)) @ v
    want = (out, *torch.autograd.grad(out, leaves, x.grad.double()))
    found = attention.exact(*(t.detach() for t in leaves), x.grad.double(), seen, left.double())
    for (value, size), right in zip(found.values(), want, strict=True):
        torch.testing.assert_close(value, right.detach(), rtol=1e-12, atol=1e-14)
        assert (value.abs() <= size * (1 + 1e-9)).all()
    forward = torch.ops.xgemm.attention_forward
    seeds = torch.tensor(attention.SEED), torch.tensor(0)
    mine, _ = forward(x.q, x.k, x.v, None, True, case.width**-0.5, case.dropout, *seeds)
    torch.testing.assert_close(mine.double(), out.detach(), rtol=1e-5, atol=1e-6)


def test_memory_is_as_layers_leave_it():
    x = attention.operands(TINY, "cpu")
    for t in (x.q, x.k, x.v, x.grad):
        assert t.transpose(1, 2).is_contiguous() and not t.is_contiguous()


def test_data():
    plain, peaked, zeros, wide = (
        attention.operands(replace(TINY, data=data), "cpu") for data in attention.DATA
    )
    assert torch.equal(peaked.q, 8 * plain.q) and torch.equal(peaked.k, plain.k)
    assert zeros.grad[:, :, 10:].eq(0).all() and zeros.grad[:, :, :10].ne(0).all()
    assert zeros.k[:, :, 6:].eq(0).all() and zeros.k[:, :, :6].ne(0).all()
    ratio = (wide.grad / plain.grad).log2()
    assert -60 <= ratio.min() < -50 and -10 < ratio.max() <= 0
    assert (ratio.std(-1) < 1e-4).all()  # a row's elements have one factor
    masked = attention.operands(replace(TINY, masked=True), "cpu").mask
    assert masked.shape == (2, 1, 1, 12) and masked[..., :6].all()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_errors_tell_fp32_from_less(case):
    """torch's FP32 is within some u; operands of 11 bits, as TF32's, and a wrong scale are not."""
    x = attention.operands(case, "cpu")

    def results(q, k, v, grad, scale=None):
        leaves = [t.detach().clone().requires_grad_() for t in (q, k, v)]
        out = F.scaled_dot_product_attention(
            *leaves, attn_mask=x.mask, is_causal=case.causal, scale=scale
        )
        return (out.detach(), *torch.autograd.grad(out, leaves, grad))

    def short(t):
        return (t.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)

    every = (x.q, x.k, x.v, x.grad)
    found = attention.check(
        case, x,
        {
            "fp32": results(*every), "tf32": results(*map(short, every)),
            "scale": results(*every, scale=1.001 * case.width**-0.5),
            "nan": [t.index_fill(2, torch.tensor(1), float("nan")) for t in results(*every)],
        },
    )  # fmt: skip
    for name, e in found["fp32"].items():
        assert 0 <= e["rms"] <= e["largest"] < 64, name
        assert found["tf32"][name]["rms"] > 100 * e["rms"], name
        assert not found["nan"][name]["rms"] == found["nan"][name]["rms"]
    assert found["scale"]["dq"]["rms"] > 100


def test_pairs_are_sampled_where_a_reference_would_be_large(monkeypatch):
    """An error in one pair of batch and head is seen if that pair is among them."""
    x = attention.operands(TINY, "cpu")
    right = [value.float() for value, _ in attention.exact(
        *(t.double() for t in (x.q, x.k, x.v, x.grad)), None
    ).values()]  # fmt: skip
    seen = 0
    monkeypatch.setattr(attention, "REFERENCE_ELEMENTS", 2 * TINY.queries * TINY.keys)
    for pair in range(6):
        wrong = [t.clone() for t in right]
        wrong[0][pair // 3, pair % 3] += 1
        found = attention.check(TINY, x, {"xgemm": wrong})["xgemm"]
        assert found["dv"]["largest"] <= 1
        seen += found["out"]["largest"] > 1e3
    assert seen == 2


def test_whose_operator_it_was(no_gpu, monkeypatch):
    assert attention.measured(TINY, "cpu")["by"] == "torch"

    def ours(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False):
        return (
            F.scaled_dot_product_attention(q, k, v) + 0 * xgemm_torch.mm(q[0, 0], k[0, 0].mT)[0, 0]
        )

    monkeypatch.setattr(xgemm_torch, "scaled_dot_product_attention", ours)
    entry = attention.measured(TINY, "cpu")
    assert entry["by"] == "xgemm" and entry["errors"]["xgemm"]["dq"]["rms"] < 4


def test_what_a_record_has(record):
    entry = record["attention"]["tiny 2x3x20x12x8 causal"]
    assert entry["causal"] and entry["group"] == "models" and entry["keys"] == 12
    seen = 12 * 12 / 2 + 8 * 12
    assert entry["forward"]["tflops"]["xgemm"] == pytest.approx(2 * 2 * 6 * seen * 8 / 1.5e9)
    assert entry["backward"]["tflops"]["torch"] == pytest.approx(5 * 2 * 6 * seen * 8 / 3e9)
    assert attention_page.gain(entry) == 2
    assert records.text(record)


def test_the_page_of_measurements_shows_it(record, monkeypatch):
    monkeypatch.setattr(make_readme, "if_any", lambda kind: None)
    (line,) = make_readme.BLOCKS["attention"]()
    assert line.startswith("No record yet")
    entry = record["attention"]["tiny 2x3x20x12x8"]
    entry["by"] = "xgemm"
    entry["forward"]["tflops"]["xgemm"], entry["backward"]["tflops"]["xgemm"] = 91.4, 77.7
    entry["backward"]["device_ms"] = {"torch": 12.345, "xgemm": 4.0}
    entry["backward"]["call_ms"] = {"torch": 1.0, "xgemm": 2.0}
    for way, value in (("torch", 0.5), ("xgemm", 0.25)):
        entry["errors"][way] = {name: {"rms": value} for name in ("out", "dq", "dk", "dv")}
        entry["errors"][way]["dk"]["rms"] = 3 * value
    monkeypatch.setattr(make_readme, "if_any", lambda kind: record)
    lines = [line[2:-2].split(" | ") for line in make_readme.BLOCKS["attention"]()]
    assert len(lines) == 2 + len(CASES) and {len(line) for line in lines} == {len(lines[0])}
    assert lines[2] == [
        "tiny 2x3x20x12x8", "3", "1.5 (2.00x)", "12.3", "4 (3.09x)", "91, 78", "2.00x, 0.50x",
        "0.5, 0.25", "1.5, 0.75",
    ]  # fmt: skip
    assert lines[3][0] == "tiny 2x3x20x12x8 causal (by torch)"
    assert lines[-1][:3] == ["1 random shapes", "-", "2.00x (2.00 to 2.00)"]


def test_the_report_shows_it(record, tmp_path):
    path, page = tmp_path / "2026-11-28-attention.json", tmp_path / "report.html"
    records.write(path, record)
    (read,) = report.read([path])
    assert read.form == "attention"
    assert report.headlines(read)["random: geometric mean ratio to torch's own, both"] == 2
    report.main(["--html", str(page), str(path)])
    text = page.read_text()
    rows = [line.split("<td>") for line in text.splitlines() if line.startswith("<tr><td>H100<td>")]
    rows = [row for row in rows if "forward" in row or "backward" in row]
    assert len(rows) == 2 * len(CASES)
    assert text.count("Attention beside torch&#x27;s, ") or text.count("Attention beside torch's, ")


@pytest.fixture
def measures(no_gpu, monkeypatch):
    """What main asks of a GPU; the labels of what it measures."""
    labels = []
    measured = attention.measured

    def noted(case, seed):
        labels.append(case.label)
        return measured(TINY, "cpu", seed) | {"group": case.group}

    for owner, name, stand_in in (
        (recording, "require_yardstick", lambda who: None), (provenance, "facts", lambda: FACTS),
        (attention.timing, "heat", lambda seconds: None), (attention, "measured", noted),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, stand_in)
    return labels


def test_it_goes_on_where_it_stopped(measures, tmp_path, monkeypatch, capsys):
    path = tmp_path / "attention.json"
    begin = ["--json", str(path), "--count", "2"]
    ticks = SimpleNamespace(monotonic=itertools.count().__next__)  # a case takes a second
    monkeypatch.setattr(attention, "time", ticks)
    assert attention.main([*begin, "--seconds", "5"]) == 3
    first = list(measures)
    assert len(first) == 5 == len(records.read(path)["attention"])
    assert not records.read(path)["finished"]
    assert attention.main(begin) == 0
    every = [c.label for c in (*attention.MODELS, *attention.random_cases(attention.SEED, 2))]
    assert measures == every and len(first) < len(every)
    assert records.read(path)["finished"]
    assert attention.main(begin) == 0 and measures == every
    said = capsys.readouterr().out
    assert "2 random shapes: forward 2.00x" in said and said.rstrip().endswith("than torch: 0")
    assert attention.main(["--show", str(path)]) == 0
    assert "GPT-2" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="another seed"):
        attention.main([*begin, "--seed", "5"])


def test_some_cases(measures, tmp_path, capsys):
    words = ["--json", str(tmp_path / "a.json"), "--cases", "ViT", "random 1"]
    assert attention.main([*words, "--count", "3"]) == 0
    assert [label.partition(" ")[0] for label in measures] == ["ViT-B", "ViT-H", "ViT-B", "random"]
    with pytest.raises(SystemExit):
        attention.main(["--json", str(tmp_path / "a.json"), "--cases", "nothing"])
    assert "no case has such a label" in capsys.readouterr().err
