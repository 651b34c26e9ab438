"""The models that benchmarks/steps.py times: on a CPU in small sizes, converted and not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import from_transformers
import make_readme
import provenance
import pytest
import recording
import records
import report
import steps
import torch
import workloads

import xgemm_torch

ROOT = Path(xgemm_torch.__file__).resolve().parents[1]
NAMES = list(workloads.WORKLOADS)
LIBRARYS = list(from_transformers.MODELS)


def small(name):
    """A model in small sizes, and its test only where its library is."""
    workload = steps.MODELS[name].small()
    if workload.package:
        pytest.importorskip(workload.package)
    return workload


def jobs_of(name):
    """A job for each way; patches take products of any size."""
    workload = small(name)
    ways = steps.ways_of(workload)
    made = {way: steps.Job(workload, way, "cpu", compiled=False) for way in ways}
    patched = [way for way, job in made.items() if isinstance(job.patch, xgemm_torch.Patch)]
    alone = name in ("mixtral", "falcon")
    assert patched == (["converted"] if alone else [w for w in ways if w == steps.PATCHED])
    for way in patched:
        made[way].patch = xgemm_torch.patch(min_flops=0)
    return made


def test_models_with_attention_have_two_ways_more():
    ways = {name: steps.ways_of(workload) for name, workload in steps.MODELS.items()}
    five = (*steps.WAYS, "patched", "attention")
    assert [name for name, some in ways.items() if some == five] == [
        "gpt2", "vit", "bert", "llama", "gpt2-hf", "gpt2-hf-dropout", "bert-hf-dropout",
        "llama-gqa",
    ]  # fmt: skip
    assert {some for some in ways.values()} == {steps.WAYS, five}


@pytest.mark.parametrize("name", ["gpt2", "vit", "bert", "llama"])
def test_a_models_own_call_of_attention_is_ours_in_one_way(name):
    attends = {}
    for way, job in jobs_of(name).items():
        modules = [m for m in job.model.modules() if hasattr(m, "attend")]
        assert len(modules) == job.workload.sizes.layers
        (attends[way],) = {m.attend for m in modules}
    ours = attends.pop(steps.ATTENTION)
    assert ours is xgemm_torch.scaled_dot_product_attention
    assert set(attends.values()) == {torch.nn.functional.scaled_dot_product_attention}


@pytest.mark.parametrize("name", [*NAMES, *LIBRARYS])
def test_every_way_takes_the_same_steps(name):
    losses = {}
    for way, job in jobs_of(name).items():
        before = [p.detach().clone() for p in job.model.parameters()]
        losses[way] = steps.first_losses(job, 3)
        assert not any(map(torch.equal, before, job.model.parameters()))
    assert min(losses["stock"]) > 0
    for way in list(losses)[1:]:
        torch.testing.assert_close(losses[way], losses["stock"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_all_layers_of_a_model_are_converted(name):
    workload = workloads.WORKLOADS[name].small()
    model = workload.make(workload.sizes)
    linears = sum(isinstance(m, torch.nn.Linear) for m in model.modules())
    assert len(xgemm_torch.convert(model).swapped) == linears > 0


@pytest.mark.parametrize("name", [n for n, w in workloads.WORKLOADS.items() if w.traced])
def test_what_is_compiled_is_the_same_loss(name):
    """In one graph, its gradient too, of stock and of converted layers."""
    workload = workloads.WORKLOADS[name].small()
    torch.manual_seed(0)
    model = workload.make(workload.sizes)
    batch = workload.draw(workload.sizes, torch.Generator().manual_seed(1))
    of = list(model.parameters())

    def both(loss):
        value = loss(model, batch)
        return value, *torch.autograd.grad(value, of)

    expected = both(workload.loss)
    traced = torch.compile(workload.traced, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(both(traced), expected, rtol=1e-4, atol=1e-7)
    xgemm_torch.convert(model)
    torch.testing.assert_close(both(traced), expected, rtol=1e-4, atol=1e-7)


def test_flop_of_layers_alone():
    job = steps.Job(workloads.WORKLOADS["mlp"].small(), "stock", "cpu", compiled=False)
    # Four layers, three products each but the first one's gradient of its input.
    assert steps.product_flop(job) == 11 * 2 * 16 * 32 * 32


def flop_of_layers(model, tokens, share_of_experts):
    """Three products a matrix, forward and backward, by all tokens or by an expert's share.

    Mixtral's embedding is no factor; Falcon's is its head, too.
    """
    matrices = {
        name: p.numel() for name, p in model.named_parameters()
        if p.dim() > 1 and "embed_tokens" not in name
    }  # fmt: skip
    share = {name: share_of_experts if ".experts" in name else 1 for name in matrices}
    return sum(3 * 2 * tokens * share[name] * count for name, count in matrices.items())


@pytest.mark.parametrize("name, share_of_experts", [("mixtral", 2 / 4), ("falcon", 1)])
def test_a_librarys_model_is_reached(name, share_of_experts):
    jobs = jobs_of(name)
    s = jobs["stock"].workload.sizes
    layers = flop_of_layers(jobs["stock"].model, s.batch * s.length, share_of_experts)
    found = steps.reached(jobs["stock"], jobs["converted"], 0)
    assert list(found) == ["convert", "patch", "convert and patch"]
    flops = {way["flops"] for way in found.values()}
    convert, patch, both = (way["share"] * way["flops"] for way in found.values())
    # Rotary embeddings have a small product in some versions.
    if name == "mixtral":  # all but attention, which is one operator, in some versions not counted
        assert both == patch == pytest.approx(layers, rel=1e-4)
        left = sum(found["patch"]["left"].values())
        assert left == pytest.approx(found["patch"]["flops"] - layers, rel=1e-2)
    else:  # torch has no operator for attention whose heads share keys, and multiplies matrices
        assert both == patch == max(flops) and convert == layers
    counted = steps.product_flop(jobs["stock"])
    assert counted == pytest.approx(both, rel=1e-4)
    assert jobs["converted"].patch.taken == 0  # the job's own patch is back, and has seen nothing


def test_experts_products_are_of_groups():
    jobs = jobs_of("mixtral")
    if not hasattr(jobs["stock"].model, "set_experts_implementation"):
        pytest.skip("this transformers has a layer for each expert's product")
    found = steps.reached(jobs["stock"], jobs["converted"], 0)
    # Two layers, two products each, and two gradients of each; converted, the rest is layers'.
    groups = 2 * 2 * 3
    assert [way["taken"].get("_grouped_mm") for way in found.values()] == [None, groups, groups]
    assert found["convert"]["share"] < 0.5 < 0.9 < found["convert and patch"]["share"]
    taken = found["convert and patch"]["taken"]
    assert taken["xgemm.sgemm"] == taken["xgemm.linear_backward"] == 2 * 4 + 1
    assert "xgemm.sgemm" not in found["patch"]["taken"]
    assert "grouped_mm" in from_transformers.library(small("mixtral"), jobs["stock"].model)


def test_layers_of_a_class_of_falcons_own_are_converted():
    jobs = jobs_of("falcon")
    found = steps.reached(jobs["stock"], jobs["converted"], 0)
    each = 2 * 4 + 1
    assert found["convert"]["taken"] == {"xgemm.sgemm": each, "xgemm.linear_backward": each}


def test_what_is_made_here_is_reached_by_convert():
    jobs = {way: steps.Job(small("mlp"), way, "cpu", compiled=False) for way in steps.WAYS}
    found = steps.reached(jobs["stock"], jobs["converted"], 0)
    assert list(found) == ["convert", "patch"]
    assert all(way["share"] == 1 and way["flops"] == 11 * 2 * 16 * 32 * 32
               for way in found.values())  # fmt: skip


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_what_a_patch_adds_to_converted_layers_is_counted(name):
    jobs = jobs_of(name)
    found = steps.reached(jobs["stock"], jobs["converted"], 0)
    assert list(found) == ["convert", "patch", "convert and patch"]
    assert found["convert and patch"]["share"] >= found["convert"]["share"] > 0.5
    assert jobs["converted"].patch is not jobs["patched"].patch
    with jobs["patched"].patch as patch:
        jobs["patched"].model(torch.zeros((1, 2), dtype=torch.long))
    assert patch.taken > 0


@pytest.fixture
def a_gpu(monkeypatch):
    """What main asks of one; a model's measurement is its name."""
    monkeypatch.setattr(recording, "require_yardstick", lambda who: None)
    monkeypatch.setattr(provenance, "facts", dict)
    monkeypatch.setattr(steps.timing, "heat", lambda seconds: None)
    monkeypatch.setattr(steps, "measure", lambda workload, **_: {"name": workload.name})
    monkeypatch.setattr(steps, "table", lambda record: "")


def absent(sizes):
    raise ModuleNotFoundError("No module named 'elsewhere'\nmore")


@pytest.mark.usefixtures("a_gpu")
def test_a_model_whose_library_is_not_there_is_left_out(tmp_path, monkeypatch, capsys):
    path = tmp_path / "steps.json"
    elsewhere = replace(workloads.WORKLOADS["mlp"], package="elsewhere", make=absent)
    monkeypatch.setitem(steps.MODELS, "mixtral", elsewhere)
    assert steps.main(["--json", str(path), "--models", "mixtral", "mlp"]) == 0
    why = "elsewhere: ModuleNotFoundError: No module named 'elsewhere'"
    assert f"steps: mixtral is left out: {why}\n" in capsys.readouterr().err
    record = records.read(path)
    assert record["models"] == {"mlp": {"name": "mlp"}} and record["finished"]
    assert record["left_out"] == {"mixtral": why}
    with pytest.raises(SystemExit, match="no model is left"):
        steps.main(["--json", str(path), "--models", "mixtral"])


@pytest.mark.usefixtures("a_gpu")
def test_models_of_libraries_are_measured_where_they_are_named(tmp_path, capsys):
    path = tmp_path / "steps.json"
    assert steps.main(["--json", str(path)]) == 0
    assert list(records.read(path)["models"]) == NAMES
    with pytest.raises(SystemExit):
        steps.main(["--json", str(path), "--compile", "--models", "mlp", "falcon"])
    assert "--compile: not of falcon" in capsys.readouterr().err


@pytest.mark.parametrize(
    "kernel, family",
    [
        ("void xgemm::cuda::wgmma_kernel<(xgemm::Half)0, 128, 2, 7>(xgemm::WgmmaJob)",
         "products of limbs"),
        ("void xgemm::cuda::decompose_kernel<(xgemm::Half)0, 128, 4, 0, 1>(", "decompositions"),
        ("void xgemm::cuda::decompose_groups<(xgemm::Half)0, 128>(", "decompositions"),
        ("void xgemm::cuda::plan_groups(xgemm::GroupsJob)", "decompositions"),
        ("void xgemm::cuda::wgmma_kernel<(xgemm::Half)0, 128, 2, 7, xgemm::GroupedJob>",
         "products of limbs"),
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


def test_an_instant_is_the_kernels_that_began_first():
    """A dependent launch beside the one it waits for, one inside another, a gap, another stream."""
    spans = [(12.0, 20.0, "product"), (0.0, 10.0, "decompose"), (9.0, 16.0, "recompute"),
             (13.0, 14.0, "product"), (30.0, 31.0, "decompose")]  # fmt: skip
    times = steps.busy(spans)
    assert times == {"decompose": 11.0, "recompute": 6.0, "product": 4.0}
    assert sum(times.values()) == 21.0  # of 0 to 20 and 30 to 31
    assert steps.busy([]) == {}


def made_up():
    """A record of a model that is made here, and of a library's."""
    model = {
        "what": "a model", "ms": {"stock": 30.0, "tf32": 12.0, "converted": 15.0},
        "peak_mib": {"stock": 100.0, "tf32": 100.0, "converted": 104.0},
        "losses": {}, "largest_difference": {"tf32": 1e-3, "converted": 1e-6}, "need_ms": 9.0,
        "families_ms": dict.fromkeys((*steps.FAMILIES, steps.REST), 1.0), "kernels_ms": {},
    }  # fmt: skip
    shares = {"flops": 1000, "unknown": 0, "left": {"attention": 43}, "taken": {}}
    reach = {"convert": {**shares, "share": 0.29}, "patch": {**shares, "share": 0.957},
             "convert and patch": {**shares, "share": 0.957}}  # fmt: skip
    other = {**model, "reach": reach, "library": "transformers 5.24.0, experts by grouped_mm"}
    return {"facts": {"device": "a GPU"}, "compiled": False,
            "models": {"mlp": model, "mixtral": other}, "finished": True}  # fmt: skip


def patched_model():
    """A model that was measured inside a patch, too."""
    model = made_up()["models"]["mlp"]
    shares = {"flops": 10, "unknown": 0, "left": {}, "taken": {}}
    return {
        **model, "ms": {**model["ms"], "patched": 10.0},
        "largest_difference": {**model["largest_difference"], "patched": 2e-6},
        "patched_families_ms": {**model["families_ms"], "attention": 0.4},
        "reach": {"convert": {**shares, "share": 0.81}, "patch": {**shares, "share": 1.0},
                  "convert and patch": {**shares, "share": 0.99}},
    }  # fmt: skip


def test_shows_a_record(tmp_path, capsys):
    path = tmp_path / "steps.json"
    record = made_up()
    path.write_text(json.dumps(record))
    assert steps.main(["--show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "2.00" in shown and "reached" in shown and "95.7%" in shown
    del record["models"]["mixtral"]  # a record of before
    path.write_text(json.dumps(record))
    assert steps.main(["--show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "2.00" in shown and "1.04" in shown and "reached" not in shown
    assert "patch" not in shown
    record["models"] |= {"gpt2": patched_model(), "pinn": record["models"]["mlp"]}
    path.write_text(json.dumps(record))
    assert steps.main(["--show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "and patch" in shown and "3.00" in shown and "10.0" in shown
    (line,) = [line.split() for line in shown.splitlines() if line.startswith("pinn")]
    assert line[4:7] == ["2.00", "-", "-"]
    record["models"]["gpt2"]["ms"]["attention"] = 7.0
    path.write_text(json.dumps(record))
    assert steps.main(["--show", str(path)]) == 0
    shown = capsys.readouterr().out
    (line,) = [line.split() for line in shown.splitlines() if line.startswith("gpt2")]
    assert "attention" in shown and "7.0" in line and "10.0" in line
    for wrong in ([], ["--show", str(path), "--json", str(path)]):
        with pytest.raises(SystemExit):
            steps.main(wrong)
        assert "--json" in capsys.readouterr().err


def test_the_report_shows_it(tmp_path):
    path, page = tmp_path / "2026-01-01-steps-moe.json", tmp_path / "report.html"
    records.write(path, made_up())
    (read,) = report.read([path])
    assert (read.form, read.series) == ("steps", "steps-moe")
    report.main(["--html", str(page), str(path)])
    rows = [line for line in page.read_text().splitlines() if line.startswith("<tr><td>a GPU<td>")]
    (mixtral,) = [line.split("<td>") for line in rows if "<td>eager<td>mixtral" in line]
    assert "a model; transformers 5.24.0, experts by grouped_mm" in mixtral
    assert mixtral[mixtral.index("0.957") + 2] == "convert and patch()"
    (mlp,) = [line.split("<td>") for line in rows if "<td>eager<td>mlp" in line]
    assert mlp[mlp.index("convert") - 2 : mlp.index("convert")] == ["-", "-"]


def test_the_report_shows_what_a_patch_adds(tmp_path):
    path, page = tmp_path / "2026-01-01-steps.json", tmp_path / "report.html"
    record = made_up()
    record["models"] = {"mlp": record["models"]["mlp"], "gpt2": patched_model()}
    records.write(path, record)
    assert report.headlines(*report.read([path])) == {
        "mlp: stock / converted": 2.0, "gpt2: stock / converted": 2.0,
        "gpt2: stock / converted inside patch()": 3.0,
    }  # fmt: skip
    report.main(["--html", str(page), str(path)])
    text = page.read_text()
    (gpt2,) = [line.split("<td>") for line in text.splitlines() if "<td>eager<td>gpt2" in line]
    assert gpt2[5:13] == ["30", "12", "15", "10", "-", "2.00x", "2.50x", "3.00x"]
    assert gpt2[13:17] == ["-", "0.81", "0.99", "convert"]
    assert "gpt2: stock FP32 30, TF32 12, converted 15, converted inside patch() 10" in text
    assert "mlp: stock FP32 30, TF32 12, converted 15." in text.replace(";", ".")


def named_model():
    """A library's model that was measured with attention by its name, too."""
    model = {**patched_model(), "library": "transformers 5.24.0"}
    ways = {"ms": 7.5, "peak_mib": 46.0, "largest_difference": 3e-6}
    return {**model, **{key: {**model[key], "attention": x} for key, x in ways.items()}}


def test_attention_by_its_name_has_columns(monkeypatch, tmp_path):
    path, page = tmp_path / "2026-01-01-steps-transformers.json", tmp_path / "report.html"
    record = {**made_up(), "models": {"llama-gqa": named_model()}}
    records.write(path, record)
    headlines = report.headlines(*report.read([path]))
    assert headlines["llama-gqa: stock / converted, attention ours"] == 4.0
    report.main(["--html", str(page), str(path)])
    (row,) = [
        r.split("<td>") for r in page.read_text().splitlines() if "<td>eager<td>llama-gqa" in r
    ]
    assert row[5:14] == ["30", "12", "15", "10", "7.5", "2.00x", "2.50x", "3.00x", "4.00x"]
    assert row[14:17] == ["0.81", "0.99", "convert"]  # and not inside a patch
    monkeypatch.setattr(make_readme, "newest", lambda kind: (kind, record))
    _, _, line = make_readme.BLOCKS["steps-transformers"]()
    assert line[2:-2].split(" | ")[4:] == [
        "15.0 (2.00x)", "10.0 (3.00x)", "7.5 (4.00x)", "0.46", "3e-06, 1e-03"
    ]  # fmt: skip


def test_the_page_of_measurements_has_a_column_for_it(monkeypatch):
    models = {"mlp": made_up()["models"]["mlp"], "gpt2": patched_model()}
    monkeypatch.setattr(make_readme, "newest", lambda kind: (kind, {"models": models}))
    head, mlp, gpt2 = (
        line[2:-2].split(" | ") for line in make_readme.BLOCKS["steps"]() if "---" not in line
    )
    assert head[3:6] == ["converted", "and patch", "or our attention"]
    assert mlp[3:6] == ["15.0 (2.00x)", "-", "-"]
    assert gpt2[3:6] == ["15.0 (2.00x)", "10.0 (3.00x)", "-"]
    assert head[6] == "kernels, patch's" and head[10] == "attention, patch's"
    assert (mlp[10], gpt2[10]) == ("1.0, -", "1.0, 0.4")
    assert (mlp[-1], gpt2[-1]) == ("1e-06, -, 1e-03", "1e-06, 2e-06, 1e-03")
    assert make_readme.BLOCKS["steps-compiled"]() == make_readme.BLOCKS["steps"]()


@pytest.mark.parametrize("there", [False, True])
def test_the_page_of_measurements_shows_it(there, monkeypatch):
    record = made_up()
    record["models"].pop("mlp")
    monkeypatch.setattr(make_readme, "if_any", lambda kind: record if there else None)
    lines = make_readme.BLOCKS["steps-moe"]()
    if not there:
        assert lines[0].startswith("No record yet")
        return
    (cells,) = [line[2:-2].split(" | ") for line in lines[2:]]
    assert cells[1:8] == [
        "transformers 5.24.0, experts by grouped_mm", "30.0", "12.0", "15.0 (2.00x)",
        "29%", "95.7%", "95.7%",
    ]  # fmt: skip
    assert cells[8] == "attention 4.3%"
