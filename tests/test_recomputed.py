"""Units of results that are made anew: counted, and seen in explain, accuracy and train."""

from __future__ import annotations

import json

import problems
import pytest
import torch
from test_stages import on_every_device
from torch._subclasses.fake_tensor import FakeTensorMode

import xgemm_torch
from xgemm_torch import simt
from xgemm_torch.__main__ import main
from xgemm_torch.tools import accuracy
from xgemm_torch.train import config, data, job, loop, measure, report

CERTIFY = [stage.name for stage in xgemm_torch.stages() if stage.unit_rows]

if not CERTIFY:  # a build of some stages alone
    pytest.skip("no stage of this build certifies", allow_module_level=True)


def one_uncertain(batch=None, device="cpu"):
    """Operands of which two fp16 parts give all results but those of row 5, columns 128 to 255.

    Elsewhere in that row 2^40 is large in the result, too; there what it made of the row's other
    elements is all that there is.
    """
    a, b = problems.normal(130, 70), problems.normal(70, 300)
    a[5, 0], b[0] = 2.0**40, 1.0
    b[0, 128:256] = 0
    if batch:
        a = torch.stack([problems.normal(130, 70)] * (batch - 1) + [a])
    return a.to(device), b.to(device)


def test_which_stages_certify_units():
    assert CERTIFY == ["mma_fp16x3", "wgmma_fp16x3", "wgmma_bf16x6"]
    assert {s.unit_rows for s in xgemm_torch.stages()} == {0, 64}
    assert not set(CERTIFY) & set(problems.STRICT)
    rows = xgemm_torch.explain(640, 1000, 300).candidates
    assert {c.kernel for c in rows if c.units is not None} == set(CERTIFY)
    for c in rows:
        assert c.units is None or c.units == 10 * -(-1000 // c.tile.BN)


@pytest.mark.parametrize("name", CERTIFY)
def test_explain_counts(name):
    a, b = one_uncertain()
    tiles = next(s for s in xgemm_torch.stages() if s.name == name).tiles
    for row, tile in enumerate(tiles):
        of = 3 * -(-300 // tile.BN)
        # mma_fp16x3 makes all units of a tile anew together.
        together = tile.BM // 64 if name == "mma_fp16x3" else 1
        anew = 0 if name == "wgmma_bf16x6" else together * (128 // tile.BN)
        with simt.configure(row=row):
            found = xgemm_torch.explain(a, b, kernel=name, count=True)
        assert (found.recomputed, found.units, found.counted) == (anew, of, True)
        assert str(found).splitlines()[-1] == f"  count   {anew} of {of} units made anew"
    plain = xgemm_torch.explain(a, b, kernel=name)
    assert (plain.recomputed, plain.counted) == (None, False) and plain.units is not None
    assert "anew" not in str(plain)


@on_every_device
@pytest.mark.parametrize(
    ("k", "few", "beta", "units"),
    [(70, 1, 0.0, 0), (70, 16, 0.0, 0), (70, 17, 0.0, 1), (70, 16, 0.5, 1), (40, 1, 0.0, 1),
     (4096, 16, 0.0, 0), (4097, 4, 0.0, 0), (4097, 5, 0.0, 1)],
)  # fmt: skip
def test_few_results_are_recomputed_each_for_itself(k, few, beta, units, device):
    """Of one row, which the limbs would miss by far; of every tile of the stage."""
    m, n = 130, 300 if k < 1000 else 180  # two tiles of M, three of N or two
    a, b = problems.normal(m, k), problems.normal(k, n)
    a[5, 0], b[0] = 2.0**40, 1.0
    b[0, 150 : 150 + few] = 0
    c = problems.normal(m, n) if beta else None
    exact = 1.5 * (a.double() @ b.double()) + (beta * c.double() if beta else 0)
    size = 1.5 * (a.double().abs() @ b.double().abs()) + (beta * c.double().abs() if beta else 0)
    operands = [None if x is None else x.to(device) for x in (a, b, c)]
    tiles = next(s for s in xgemm_torch.stages() if s.name == "wgmma_fp16x3").tiles
    for row in range(len(tiles)):
        with simt.configure(row=row), xgemm_torch.count_recomputed(device) as count:
            got = xgemm_torch.sgemm(*operands, alpha=1.5, beta=beta, kernel="wgmma_fp16x3").cpu()
        assert count.units == units
        assert ((got - exact).abs() <= 8 * 2.0**-24 * size).all()


def test_every_matrix_of_a_batch_has_units():
    a, b = one_uncertain(batch=3)
    found = xgemm_torch.explain(b.mT, a.mT, kernel="mma_fp16x3", count=True)
    assert found.units == 3 * 5 * -(-130 // (128 if found.units == 30 else 64))
    assert found.recomputed == 2
    turned = xgemm_torch.explain(
        b.mT.contiguous().mT, a, trans_a=True, trans_b=True, kernel="mma_fp16x3", count=True
    )
    assert (turned.recomputed, turned.units) == (found.recomputed, found.units)


def test_explain_leaves_no_trace():
    """No graph, no gradient; a count around it goes on without what it has counted."""
    a, b = (t.requires_grad_() for t in one_uncertain())
    with xgemm_torch.count_recomputed("cpu") as around:
        found = xgemm_torch.explain(a, b, kernel="wgmma_fp16x3", count=True)
        assert found.recomputed == 1 and around.units == 0
        assert torch.is_grad_enabled()
        xgemm_torch.sgemm(a, b, kernel="wgmma_fp16x3")
        assert around.units == 1
        assert around.snapshot().tolist() == [1] and around.snapshot().dtype == torch.int32
    assert a.grad is None and b.grad is None
    xgemm_torch.sgemm(a, b, kernel="wgmma_fp16x3")
    assert around.units == 1, "it has ended"


@pytest.mark.parametrize("name", ["auto", "naive", "wgmma_narrow"])
def test_what_certifies_no_units_is_said_to(name):
    a, b = problems.normal(20, 30), problems.normal(30, 40)
    found = xgemm_torch.explain(a, b, kernel=name, count=True)
    assert (found.recomputed, found.units, found.counted) == (None, None, True)
    ran = {"auto": "aten"}.get(name, name)
    assert f"  count   {ran} certifies no units, so none could be made anew" in str(found)
    empty = xgemm_torch.explain(a[:0], b, kernel="mma_fp16x3", count=True)
    assert empty.recomputed is None and str(empty).endswith("  count   nothing ran")


def fake(*shape):
    with FakeTensorMode():
        return torch.ones(shape)


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((4, 5, 6), {}, "needs two tensors with data, got the sizes 4 x 5 x 6"),
        ((torch.ones(3, 4), torch.ones(4, 5, device="meta")), {}, "for b a Tensor on meta that"),
        ((fake(3, 4), fake(4, 5)), {}, "for a a FakeTensor on cpu that has none"),
        ((torch.ones(3, 4), torch.ones(4, 5)), {"workspace": 0}, "workspace must be None, got 0"),
        ((torch.ones(3, 4), torch.ones(4, 5)), {"kernel": CERTIFY[0], "precision": "ieee"}, "bits"),
    ],
)
def test_what_cannot_be_counted(args, kwargs, text):
    with pytest.raises(ValueError, match=text):
        xgemm_torch.explain(*args, count=True, **kwargs)


def test_not_inside_a_transform():
    def inside(x):
        return xgemm_torch.explain(x, x, count=True)

    with pytest.raises(ValueError, match="for a a Tensor on cpu that has none"):
        torch.func.vmap(inside)(torch.ones(2, 3, 3))


# accuracy


@pytest.fixture
def only_one(monkeypatch):
    """Of the stages that certify the one that the emulator is quickest with."""
    real = accuracy.under_contract("cpu")
    some = {name: real[name] for name in ("sgemm", "mma_fp16x3")}
    monkeypatch.setattr(accuracy, "under_contract", lambda device: some)


@pytest.mark.usefixtures("only_one")
def test_accuracy_counts_what_certifies(monkeypatch):
    kind = accuracy.Distribution("", lambda draw, m, n, k: one_uncertain())
    monkeypatch.setitem(accuracy.DISTRIBUTIONS, "one", kind)
    row = accuracy.measure("one", 70, size=130)
    assert set(row["recomputed"]) == set(row["units"]) == {"mma_fp16x3"}
    columns = 128 if row["units"] == {"mma_fp16x3": 9} else 64
    assert row["units"]["mma_fp16x3"] == 3 * -(-300 // columns)
    assert row["recomputed"]["mma_fp16x3"] in (1, 2)
    assert not row["broken"]


@pytest.mark.usefixtures("only_one")
def test_accuracy_says_what_was_made_anew(capsys):
    asked = ["accuracy", "--size", "24", "--k", "33"]
    assert main([*asked, "--json"]) in (0, 1)  # how accurate so small a sample is, is chance
    facts = json.loads(capsys.readouterr().out)
    counts = {row["distribution"]: row["recomputed"]["mma_fp16x3"] for row in facts["rows"]}
    assert set(counts.values()) == {0, 1} and counts["normal"] == 0
    assert main(asked) in (0, 1)
    text = capsys.readouterr().out
    assert "made anew: units, of 1 in a result" in text
    title, *heading = accuracy.table(facts).columns[-1].heading.split()
    assert (title, heading) == ("made", ["anew"])


def test_accuracy_has_no_column_of_zeros():
    one = {"rms": 1.0, "largest": 2.0, "mean": 0.0, "misplaced": 0}
    row = {"distribution": "normal", "k": 5, "errors": {"mma_fp16x3": one}, "broken": {}}
    row["recomputed"] = {"mma_fp16x3": 0}
    facts = {"size": 5, "layout": "NN", "device": "cpu", "rows": [row]}
    assert accuracy.table(facts).columns[-1].heading == "misplaced"


# train


def test_which_jobs_may_make_units_anew():
    def may(device, **chosen):
        return measure.may_recompute(config.make("tiny", device, **chosen))

    assert may("cuda") and not may("cpu") and not may("cuda", precision="ieee")
    for name in CERTIFY:
        assert may("cpu", kernel=name) and may("cuda", kernel=name)
    assert not may("cuda", kernel="naive") and not may("cuda", kernel="wgmma_narrow")


def test_a_trainer_counts_step_by_step(monkeypatch):
    """By snapshots that are read with the losses; it goes on from a checkpoint, and ends."""
    settings = config.make("tiny", "cpu", steps=6)
    trainer = loop.Trainer(settings, data.load(size_cap=1 << 18), lambda gpt: ())
    trainer.advance()
    trainer.read()
    counted = {1: 0, 2: 5, 3: 2, 4: 1}
    with trainer.counting():
        words = trainer.count._words
        words.fill_(2**31 - 3)  # nobody minds that it goes round
        trainer._counted = 2**31 - 3
        for step, more in counted.items():
            words += more
            trainer.advance()
            if step % 2 == 0:
                monkeypatch.setattr(type(trainer.count), "units", property(lambda _: 1 / 0))
                trainer.read()
    assert trainer.count is None
    trainer.advance()
    state = trainer.state()
    assert state["recomputed"] == [None, 0, 5, 2, 1, None]
    other = loop.Trainer(settings, data.load(size_cap=1 << 18), lambda gpt: ())
    other.restore(state)
    assert other.recomputed == state["recomputed"]


def test_a_job_says_what_its_stages_made_anew(tmp_path, capsys, monkeypatch):
    """That of a job by auto on a CPU has no word of it: test_train.py."""
    shares = {"total_ms": 4.0, "gemm_ms": 2.0, "attention_ms": 1.0, "gemm_share": 0.5}
    check = {"kernel": "", "against": "", "model": "", "steps": 0, "numbers_compared": 0,
             "unequal": [], "equal": True}  # fmt: skip
    monkeypatch.setattr(measure, "time_shares", lambda trainer: shares)
    monkeypatch.setattr(measure, "check_bits", lambda settings, corpus: check)
    monkeypatch.setattr(loop.Trainer, "validate", lambda self, corpus: 1.0)
    monkeypatch.setattr(job, "SAMPLE_BYTES", 1)
    monkeypatch.setattr(job, "load", lambda: data.load(size_cap=1 << 18))
    asked = ["--size", "tiny", "--device", "cpu", "--batch", "1", "--seq", "8", "--steps", "2"]
    asked += ["--kernel", "mma_fp16x3", "--no-plot", "--out", str(tmp_path)]
    assert main(["train", *asked]) == 0
    text, summary = capsys.readouterr().out, json.loads((tmp_path / "summary.json").read_text())
    assert "recomputed" not in summary["runs"]["stock"]
    units = sum(row["count"] * row["units"] for row in summary["products"])
    counts = summary["runs"]["converted"]["recomputed"]
    assert len(counts) == 2 and all(0 <= n <= units for n in counts)
    assert summary["recomputed"] == {"per_step": sum(counts) / 2, "steps": 2, "units": units}
    assert f"{sum(counts) / 2:,.1f} of {units:,}" in text


def test_the_mean_is_of_timed_steps():
    run = {"step_ms": [None, 2.0, 3.0], "recomputed": [100, 4, 6]}
    products = [{"count": 12, "units": 7}, {"count": 1, "units": None}]
    summary = {"runs": {"converted": run}, "products": products}
    assert report._recomputed(summary) == {"per_step": 5.0, "steps": 2, "units": 84}
    assert report._recomputed(summary | {"products": products[1:]}) is None
    run["step_ms"] = [None] * 3
    assert report._recomputed(summary)["steps"] == 3
    run["recomputed"] = []
    assert report._recomputed(summary) is None


@pytest.mark.gpu
def test_explain_counts_on_a_gpu():
    a, b = one_uncertain(device="cuda")
    found = xgemm_torch.explain(a, b, kernel="mma_fp16x3", count=True)
    assert found.recomputed in (1, 2)
    assert found.units == 3 * -(-300 // found.tile.BN)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        a.mul(2)
        with pytest.raises(ValueError, match="this stream is captured"):
            xgemm_torch.explain(a, b, count=True)


@pytest.mark.gpu
def test_a_job_counts_on_a_gpu(tmp_path):
    asked = ["--size", "small", "--steps", "6", "--no-plot", "--out", str(tmp_path)]
    assert main(["train", "--device", "cuda", *asked]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    if any(row["units"] for row in summary["products"]):
        assert len(summary["runs"]["converted"]["recomputed"]) == 6
        assert 0 <= summary["recomputed"]["per_step"] <= summary["recomputed"]["units"]
