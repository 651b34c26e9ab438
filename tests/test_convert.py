"""convert and revert: what is swapped, what is not and why, and that nothing else changes."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import problems
import pytest
import torch
import torch.nn.utils.prune
from torch import nn

import xgemm_torch
from xgemm_torch.nn import Linear


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def rows(report: xgemm_torch.ConvertReport) -> dict[str, tuple[bool, str]]:
    return {row.fqn: (row.swapped, row.reason) for row in report}


def state(model: nn.Module) -> dict[str, object]:
    """All that a module is, besides its class."""
    return {
        name: (
            {k: id(v) for k, v in vars(module).items() if not isinstance(v, dict)},
            {k: dict(v) for k, v in vars(module).items() if isinstance(v, dict)},
        )
        for name, module in model.named_modules()
    }


# ------------------------------------------------------------------------------ there and back


def test_swaps_and_reverts_exactly():
    model = mlp()
    x = problems.normal(5, 4)
    want, before, types = model(x), state(model), [type(m) for m in model.modules()]
    report = xgemm_torch.convert(model)
    assert [type(model[0]), type(model[2])] == [Linear, Linear]
    assert [(row.fqn, row.swapped) for row in report] == [("0", True), ("2", True)]
    assert {row.type for row in report} == {"torch.nn.modules.linear.Linear"}
    torch.testing.assert_close(model(x), want)
    back = xgemm_torch.revert(model)
    assert [row.swapped for row in back] == [True, True]
    assert [type(m) for m in model.modules()] == types
    assert state(model) == before
    assert torch.equal(model(x), want)


def test_a_single_linear_is_swapped_in_place():
    layer = nn.Linear(3, 4)
    report = xgemm_torch.convert(layer)
    assert type(layer) is Linear
    assert rows(report) == {"": (True, "kernel=auto, precision=fp32")}
    xgemm_torch.revert(layer)
    assert type(layer) is nn.Linear


def test_options_reach_the_modules():
    model, name = mlp(), problems.STAGES[0]
    report = xgemm_torch.convert(model, kernel=name, precision="ieee")
    assert (model[0].kernel, model[0].precision, model[0].activation) == (name, "ieee", "none")
    assert report[0].reason == f"kernel={name}, precision=ieee"
    x = problems.normal(2, 4)
    with torch.no_grad():
        got = model[0](x)
        want = xgemm_torch.linear(x, model[0].weight, model[0].bias, precision="ieee")
    assert torch.equal(got, want)


def test_wrong_options_change_nothing():
    model = mlp()
    for options in ({"kernel": "nope"}, {"precision": "tf32"}):
        with pytest.raises(ValueError, match="convert: "):
            xgemm_torch.convert(model, **options)
    with pytest.raises(TypeError, match="convert: needs a torch.nn.Module, got list"):
        xgemm_torch.convert([nn.Linear(2, 2)])
    with pytest.raises(TypeError, match="revert: needs a torch.nn.Module, got int"):
        xgemm_torch.revert(3)
    assert type(model[0]) is nn.Linear


def test_converting_twice_and_again():
    model = mlp()
    xgemm_torch.convert(model, precision="ieee")
    again = xgemm_torch.convert(model, precision="fp32")
    assert [row.reason for row in again] == ["is one already"] * 2
    assert model[0].precision == "ieee"
    xgemm_torch.revert(model)
    xgemm_torch.convert(model)
    assert model[0].precision == "fp32"
    xgemm_torch.revert(model)
    assert list(xgemm_torch.revert(model)) == []


def test_revert_leaves_what_convert_did_not_make():
    model = nn.Sequential(Linear(2, 2, activation="relu"), nn.Linear(2, 2))
    report = xgemm_torch.convert(model)
    assert rows(report)["0"] == (False, "is one already")
    back = xgemm_torch.revert(model)
    assert rows(back) == {
        "0": (False, "not made by convert"),
        "1": (True, "torch.nn.Linear again"),
    }
    assert type(model[0]) is Linear


# ------------------------------------------------------------------------------ what stays


def test_parameters_optimizers_and_tied_weights_stay():
    model = nn.ModuleDict({"embed": nn.Embedding(8, 4), "head": nn.Linear(4, 8, bias=False)})
    model["head"].weight = model["embed"].weight
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    ids = [id(p) for p in model.parameters()]
    xgemm_torch.convert(model)
    assert [id(p) for p in model.parameters()] == ids
    assert model["head"].weight is model["embed"].weight
    before = model["head"].weight.detach().clone()
    model["head"](model["embed"](torch.arange(8))).sum().backward()
    optimizer.step()
    assert not torch.equal(model["embed"].weight, before)
    assert model["head"].weight is model["embed"].weight


def test_a_module_under_two_names_is_swapped_once():
    shared = nn.Linear(4, 4)
    model = nn.ModuleDict({"first": shared, "second": shared})
    report = xgemm_torch.convert(model)
    assert rows(report)["second"] == (True, "the same module as first")
    assert model["first"] is model["second"]
    assert type(shared) is Linear
    xgemm_torch.revert(model)
    assert type(shared) is nn.Linear


def test_a_skipped_module_under_two_names_says_so():
    shared = nn.Linear(4, 4).double()
    report = xgemm_torch.convert(nn.ModuleDict({"first": shared, "second": shared}))
    assert rows(report)["second"] == (False, "the same module as first")


def test_hooks_training_mode_and_gradient_flags_stay():
    model, seen = mlp().eval(), []
    model[0].register_forward_hook(lambda *_: seen.append("forward"))
    model[0].register_forward_pre_hook(lambda *_: seen.append("pre"))
    model[0].register_full_backward_hook(lambda *_: seen.append("backward"))
    model[0].weight.register_hook(lambda g: seen.append("weight"))
    model[2].weight.requires_grad_(False)
    for call in (xgemm_torch.convert, xgemm_torch.revert):
        call(model)
        seen.clear()
        model(problems.normal(2, 4).requires_grad_()).sum().backward()
        assert sorted(seen) == ["backward", "forward", "pre", "weight"]
        assert not model[0].training
        assert model[2].weight.grad is None


@pytest.mark.parametrize("first", ["stock", "converted"])
def test_state_dict_is_strict_both_ways(first):
    stock, ours = mlp(), mlp()
    xgemm_torch.convert(ours)
    source, target = (stock, ours) if first == "stock" else (ours, stock)
    result = target.load_state_dict(source.state_dict(), strict=True)
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    assert list(source.state_dict()) == list(target.state_dict())
    x = problems.normal(3, 4)
    torch.testing.assert_close(stock(x), ours(x))


def _saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "again",
    [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), _saved],
    ids=["deepcopy", "pickle", "save"],
)
def test_copies_are_converted_and_can_be_reverted(again):
    model = mlp()
    xgemm_torch.convert(model, precision="ieee")
    other = again(model)
    assert type(other[0]) is Linear
    assert other[0].precision == "ieee"
    x = problems.normal(3, 4)
    assert torch.equal(other(x), model(x))
    xgemm_torch.revert(other)
    assert type(other[0]) is nn.Linear
    assert type(model[0]) is Linear


def test_meta_modules_are_swapped():
    with torch.device("meta"):
        model = mlp()
    assert all(row.swapped for row in xgemm_torch.convert(model))
    assert model(torch.ones(2, 4, device="meta")).shape == (2, 3)
    assert model.to_empty(device="cpu")(torch.ones(2, 4)).shape == (2, 3)


def test_pruned_and_normed_by_hooks_are_swapped():
    """Hooks that compute the weight before each call work with either class."""
    model = mlp()
    nn.utils.prune.random_unstructured(model[0], "weight", amount=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(model[2])
    x = problems.normal(3, 4)
    want = model(x)
    assert [row.swapped for row in xgemm_torch.convert(model)] == [True, True]
    torch.testing.assert_close(model(x), want)
    model(x).sum().backward()
    assert model[2].weight_v.grad is not None


# ------------------------------------------------------------------------------ what is skipped


class Special(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


class Linear4bit(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))


def test_a_module_whose_class_was_set_back_is_swapped_again():
    model = nn.Sequential(nn.Linear(3, 3))
    xgemm_torch.convert(model, precision="ieee")
    model[0].__class__ = nn.Linear
    assert xgemm_torch.convert(model)[0].swapped
    assert model[0].precision == "fp32"
    row = xgemm_torch.revert(model)[0]
    assert (row.type, row.swapped) == ("xgemm_torch.nn.Linear", True)
    assert type(model[0]) is nn.Linear and "precision" not in vars(model[0])


class Wrapped(torch.Tensor):
    pass


def _patched() -> nn.Linear:
    layer = nn.Linear(2, 2)
    layer.forward = lambda x: x
    return layer


def _parametrized() -> nn.Linear:
    return nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))


def _with(name: str, value: object) -> nn.Linear:
    layer = nn.Linear(2, 2)
    setattr(layer, name, value)
    return layer


def _scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Linear(2, 2))


def _wrapped() -> nn.Linear:
    layer = nn.Linear(2, 2)
    layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Wrapped))
    return layer


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.LazyLinear(3), "has no shape yet"),
        (_parametrized, "parametrized"),
        (
            lambda: nn.modules.linear.NonDynamicallyQuantizableLinear(2, 2),
            "attention function takes its parameters",
        ),
        (lambda: Special(2, 2), "a subclass of torch.nn.Linear, Special"),
        (lambda: nn.Linear(2, 2).double(), "its weight is float64, not float32"),
        (lambda: nn.Linear(2, 2, dtype=torch.bfloat16), "its weight is bfloat16"),
        (_patched, "its forward was replaced"),
        (_wrapped, "its weight is a Wrapped"),
        (_scripted, "scripted: its code is fixed"),
        (lambda: _with("activation", "relu"), "has an attribute activation of its own"),
        (lambda: _with("activation", nn.ReLU()), "has an attribute activation of its own"),
        (lambda: _with("packed", True), "has an attribute packed of its own"),
        (lambda: _with("kernel", nn.Identity()), "has an attribute kernel of its own"),
        (lambda: _with("precision", nn.Parameter(torch.ones(1))), "has an attribute precision"),
        (lambda: nn.Bilinear(2, 2, 2), "a bilinear form"),
        (Linear4bit, "no torch.nn.Linear"),
        (lambda: nn.Linear(2, 100), "fewer than 3 features"),
        (lambda: nn.Linear(100, 2), "fewer than 3 features"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_skipped_with_a_reason(make, reason):
    model = nn.Sequential(make(), nn.Linear(3, 3))
    kind, before = type(model[0]), dict(vars(model[0]))
    report = xgemm_torch.convert(model, min_features=3)
    assert dict(vars(model[0])) == before
    swapped, why = rows(report)["0"]
    assert not swapped
    assert reason in why
    assert type(model[0]) is kind
    assert rows(report)["1"][0]
    assert [row.fqn for row in report.skipped] == ["0"]
    assert [row.fqn for row in report.swapped] == ["1"]


def test_a_module_without_a_weight_is_left():
    model = mlp()
    del model[2].weight
    assert rows(xgemm_torch.convert(model)) == {
        "0": (True, "kernel=auto, precision=fp32"),
        "2": (False, "it has no weight"),
    }


def test_an_error_of_the_filter_leaves_the_model_as_it_was():
    model = mlp()
    before = state(model)
    with pytest.raises(KeyError):
        xgemm_torch.convert(model, filter_fn=lambda module, fqn: {"0": True}[fqn])
    assert type(model[0]) is nn.Linear and state(model) == before


def _wrapping(layer: nn.Module) -> None:
    inner = layer.forward
    layer.forward = lambda x: inner(x)


def _compiling(layer: nn.Module) -> None:
    layer.forward = torch.compile(layer.forward, backend="eager")


@pytest.mark.parametrize("change", [_wrapping, _compiling])
def test_a_module_whose_forward_was_replaced_stays_ours(change):
    """What was put in its place calls our forward, which needs its options."""
    model, x = mlp(), problems.normal(3, 4)
    xgemm_torch.convert(model, precision="ieee")
    change(model[0])
    want = model(x)
    for _ in range(2):
        assert rows(xgemm_torch.revert(model))["0"] == (
            False, "its forward was replaced after convert; undo that",
        )  # fmt: skip
        assert type(model[0]) is Linear and type(model[2]) is nn.Linear
        torch.testing.assert_close(model(x), want)
    del model[0].forward
    assert rows(xgemm_torch.revert(model)) == {"0": (True, "torch.nn.Linear again")}


def test_a_lazy_module_is_swapped_once_it_has_its_shape():
    model = nn.Sequential(nn.LazyLinear(3))
    model(torch.ones(2, 4))
    assert xgemm_torch.convert(model)[0].swapped


def test_filter_gets_module_and_name():
    model = nn.ModuleDict({"body": mlp(), "lm_head": nn.Linear(3, 3)})
    seen = []

    def keep(module, fqn):
        seen.append((type(module), fqn))
        return "head" not in fqn

    report = xgemm_torch.convert(model, filter_fn=keep)
    assert seen == [(nn.Linear, "body.0"), (nn.Linear, "body.2"), (nn.Linear, "lm_head")]
    assert rows(report)["lm_head"] == (False, "filter_fn says no")
    assert type(model["lm_head"]) is nn.Linear


def test_what_is_nothing_like_a_linear_has_no_row():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.LayerNorm(4), nn.Embedding(3, 4))
    report = xgemm_torch.convert(model)
    assert len(report) == 0
    assert str(report).splitlines()[-2:] == [
        "0 of 0 swapped",
        "note: no module of Sequential looks like a Linear; it is as it was",
    ]


def test_report_is_a_table():
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "longer_name": nn.Linear(2, 2).half()})
    lines = str(xgemm_torch.convert(model)).splitlines()
    assert lines[0].split() == ["module", "type", "before", "swapped", "reason"]
    assert lines[2].split() == [
        "a",
        "torch.nn.modules.linear.Linear",
        "yes",
        "kernel=auto,",
        "precision=fp32",
    ]
    assert lines[3].endswith("no       its weight is float16, not float32")
    assert lines[4] == "1 of 2 swapped"
    columns = {line.index("  torch") for line in lines[2:4] if line.startswith("longer")}
    assert columns == {len("longer_name")}


def test_attention_and_the_encoders_fast_path_are_reported():
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True))
    report = xgemm_torch.convert(model)
    found = rows(report)
    assert "no module" in found["0.self_attn"][1]
    assert not found["0.self_attn.out_proj"][0]
    assert found["0.linear1"][0]
    assert found["0.linear2"][0]
    note, last = report.notes
    assert last == NOTE
    assert "fast path bypasses 0.linear1, 0.linear2" in note
    assert note in str(report)
    calls = []
    model[0].linear1.register_forward_hook(lambda *_: calls.append(1))
    x = problems.normal(2, 3, 8)
    model.train()(x)
    assert len(calls) == 1
    xgemm_torch.revert(model)
    assert type(model[0].linear1) is nn.Linear


def test_fast_path_bypasses_as_the_note_says():
    """The note's claim: in eval mode without gradients the module's forward is not called."""
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    xgemm_torch.convert(model)
    x = problems.normal(2, 3, 8)
    calls = []
    original = Linear.forward
    try:
        Linear.forward = lambda self, x: calls.append(1) or original(self, x)
        with torch.no_grad():
            model(x)
        assert calls == []
        model(x)
        assert len(calls) == 2
    finally:
        Linear.forward = original


# ------------------------------------------------------------------------------ compiled models


@pytest.fixture
def fresh_dynamo():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Net(nn.Module):
    """Dynamo leaves torch's own containers alone, so a module of ours around them."""

    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body

    def forward(self, x):
        return self.body(x)


class Calls:
    """A Dynamo backend that counts our products in each graph that runs."""

    def __init__(self):
        self.graphs: list[int] = []

    def __call__(self, graph, example_inputs):
        targets = [str(node.target) for node in graph.graph.nodes]
        products = sum("xgemm" in target for target in targets)

        def run(*args):
            self.graphs.append(products)
            return graph(*args)

        return run


def test_conversion_before_compile(fresh_dynamo):
    model, calls = mlp(), Calls()
    xgemm_torch.convert(model)
    x = problems.normal(3, 4)
    want = model(x)
    torch.testing.assert_close(torch.compile(model, backend=calls, fullgraph=True)(x), want)
    assert calls.graphs == [2]


@pytest.mark.parametrize("how", ["module", "part", "method", "function"])
def test_conversion_after_compile(how, fresh_dynamo):
    """No stale graph: neither after convert nor after revert, however the model was compiled."""
    model, calls = mlp(), Calls()
    whole = model
    if how == "module":
        call = whole = torch.compile(model, backend=calls)
    elif how == "part":
        call = whole = nn.Sequential(torch.compile(model, backend=calls))
    elif how == "method":
        call = whole = Net(model)
        whole.compile(backend=calls)
    else:
        call = torch.compile(lambda x: model(x), backend=calls)
    x = problems.normal(3, 4)
    want = call(x)
    assert calls.graphs[-1] == 0
    for _ in range(2):
        report = xgemm_torch.convert(whole)
        assert len(report.swapped) == 2
        assert any("compiled" in note for note in report.notes) == (how != "function")
        torch.testing.assert_close(call(x), want)
        assert calls.graphs[-1] == 2
        xgemm_torch.revert(whole)
        torch.testing.assert_close(call(x), want)
        assert calls.graphs[-1] == 0


def test_fx_graph_modules_are_converted():
    traced = torch.fx.symbolic_trace(mlp())
    x = problems.normal(3, 4)
    want = traced(x)
    assert len(xgemm_torch.convert(traced).swapped) == 2
    torch.testing.assert_close(traced(x), want)


# ------------------------------------------------------------------------------ a GPU


@pytest.mark.gpu
def test_modules_move_between_devices():
    model = mlp()
    xgemm_torch.convert(model)
    x = problems.normal(3, 4)
    want = model(x)
    model.cuda()
    torch.testing.assert_close(model(x.cuda()).cpu(), want)
    xgemm_torch.revert(model)
    assert model[0].weight.is_cuda


# ------------------------------------------------------------------------------ what is left


class Experts(nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(4, 6, 8).to(dtype))
        self.down_proj = nn.Parameter(torch.randn(4, 6, 3).to(dtype))
        self.down_proj_bias = nn.Parameter(torch.zeros(4, 3).to(dtype))

    def forward(self, x):
        return torch.bmm(torch.bmm(x.expand(4, -1, -1), self.gate_up_proj)[..., :6], self.down_proj)


class Holder(nn.Module):
    """With no factor of a product among its parameters."""

    def __init__(self):
        super().__init__()
        self.pos_embed = nn.Parameter(torch.ones(1, 9, 8))
        self.position_bias = nn.Parameter(torch.ones(9, 8))
        self.queries = nn.Parameter(torch.ones(1, 8))
        self.gain = nn.Parameter(torch.ones(8))
        self.spectral = nn.Parameter(torch.ones(3, 3, dtype=torch.complex64))
        self.lazy = nn.UninitializedParameter()


class Table(nn.Embedding):
    pass


HOLD = {
    "experts": (Experts, "has matrices that are no layer's: gate_up_proj (4, 6, 8), down_proj"),
    "list": (
        lambda: nn.ParameterList([torch.ones(2, 2)] * 4),
        "has matrices that are no layer's: 0 (2, 2), 1 (2, 2), 2 (2, 2) and 1 more",
    ),
    "lstm": (lambda: nn.LSTM(3, 4), "torch computes LSTM's products in a function of its own"),
    "cell": (lambda: nn.GRUCell(3, 4), "torch computes GRUCell's products"),
    "attention": (lambda: nn.MultiheadAttention(4, 2), "its input projection is no module"),
}
NOTE = (
    "products of modules that were not swapped, and of weights that are handed on, are torch's; "
    "inside xgemm_torch.patch() they go through xgemm, too"
)


@pytest.mark.parametrize("name", HOLD)
def test_modules_that_hold_matrices_have_a_row(name):
    make, reason = HOLD[name]
    model = nn.Sequential(make(), nn.Linear(2, 2))
    report = xgemm_torch.convert(model)
    swapped, why = rows(report)["0"]
    assert not swapped
    assert reason in why
    assert rows(report)["1"][0]
    assert report.notes[-1] == NOTE
    assert str(report).splitlines()[-1] == f"note: {NOTE}"


@pytest.mark.parametrize(
    "make",
    [
        Holder,
        lambda: Table(4, 4),
        lambda: nn.Conv1d(4, 4, 3),
        lambda: nn.BatchNorm1d(3),
        lambda: nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 2)),
    ],
)
def test_modules_that_hold_no_factors_have_none(make):
    report = xgemm_torch.convert(nn.Sequential(make(), nn.Linear(2, 2)))
    assert list(rows(report)) == ["1"]
    assert report.notes == ()


def test_patch_is_named_only_where_it_would_take_something():
    for model, options in (
        (mlp(), {}),
        (mlp().double(), {}),
        (Experts(torch.bfloat16), {}),
        (mlp(), {"filter_fn": lambda module, fqn: False}),
        (nn.Sequential(Linear(2, 2), nn.Bilinear(2, 2, 2), nn.LazyLinear(2)), {}),
    ):
        assert NOTE not in xgemm_torch.convert(model, **options).notes


def test_patch_takes_what_the_note_says():
    model, x = nn.Sequential(Experts(), nn.Linear(3, 2)), problems.normal(5, 6)
    want = model(x)
    xgemm_torch.convert(model)
    with xgemm_torch.patch(min_flops=0) as p:
        got = model(x)
    torch.testing.assert_close(got, want)
    assert {row.product: row.calls for row in p} == {"bmm": 2, "xgemm.sgemm": 1}


class Window(nn.Module):
    """As torchvision's Swin and timm's: not every layer that it holds is called."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj, self.norm = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.inner = nn.ModuleDict({"gate": nn.Linear(6, 6)})

    def forward(self, x):
        if isinstance(self.norm.weight, torch.Tensor) and x.dtype != self.norm.weight.dtype:
            x = x.to(self.norm.weight.dtype)
        x = nn.functional.linear(x, weight=self.qkv.weight, bias=self.qkv.bias)
        x = self._inner(x, self.inner.gate.weight)
        return self.norm(x) + torch.nn.functional.linear(x, self.proj.weight)

    def _inner(self, x, weight):
        return x @ weight


def test_weights_that_are_handed_on_are_named():
    model, x = nn.Sequential(Window(), nn.Linear(6, 2)), problems.normal(3, 6)
    report = xgemm_torch.convert(model)
    handed = "Window.forward hands its weight to another function, which patch() sees"
    assert {row.fqn for row in report if row.reason.endswith(handed)} == {
        "0.qkv", "0.proj", "0.inner.gate",
    }  # fmt: skip
    assert len(report.swapped) == 5
    assert report.notes[-1] == NOTE
    with xgemm_torch.patch(min_flops=0) as p:
        model(x)
    assert {row.product: row.calls for row in p} == {"xgemm.sgemm": 2, "addmm": 1, "mm": 2}


def test_classes_without_a_source_are_not_read():
    owner = {}
    exec(  # as a notebook's, or a compiled module's
        "class Owner(Module):\n"
        "    def forward(self, x):\n"
        "        return linear(x, self.layer.weight)\n",
        {"Module": nn.Module, "linear": nn.functional.linear, "__name__": "made"},
        owner,
    )
    model = owner["Owner"]()
    model.layer = nn.Linear(2, 2)
    report = xgemm_torch.convert(model)
    assert report[0].reason == "kernel=auto, precision=fp32"
    assert report.notes == ()


# ------------------------------------------------------------------------------ types=


class Falcons(nn.Linear):
    """As FalconLinear: the product as an operator, the bias added."""

    def forward(self, input):
        hidden = input @ self.weight.T
        return hidden if self.bias is None else hidden + self.bias


class Timms(nn.Linear):
    """As timm's Linear, with something of its own besides."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls = 0

    def forward(self, input):
        return nn.functional.linear(input, self.weight, self.bias)

    def extra_repr(self):
        return f"timm, {super().extra_repr()}"


class Clash(nn.Linear):
    kernel = 3


class Graphs(nn.Module):
    """As torch_geometric's Linear, which is none of torch's, and copies itself."""

    def __init__(self, in_channels, out_channels, bias=True):
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.weight = nn.Parameter(torch.randn(out_channels, in_channels))
        self.bias = nn.Parameter(torch.randn(out_channels)) if bias else None

    def __deepcopy__(self, memo):
        new = Graphs(self.in_channels, self.out_channels, self.bias is not None)
        new.load_state_dict(self.state_dict())
        return new

    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias)


@pytest.mark.parametrize("kind", [Falcons, Timms, Graphs])
@pytest.mark.parametrize("bias", [True, False])
def test_types_are_swapped_and_come_back(kind, bias):
    model = nn.Sequential(kind(4, 8, bias=bias), nn.ReLU(), nn.Linear(8, 3))
    x = problems.normal(5, 4).requires_grad_()
    want, before, keys = model(x), state(model), list(model.state_dict())
    (wanted,) = torch.autograd.grad(want.sum(), x)
    assert not rows(xgemm_torch.convert(copy.deepcopy(model)))["0"][0]
    report = xgemm_torch.convert(model, types=kind, precision="ieee")
    assert rows(report)["0"] == (True, "kernel=auto, precision=ieee")
    assert report[0].type.endswith(kind.__name__)
    assert isinstance(model[0], kind)
    assert isinstance(model[0], Linear) == issubclass(kind, nn.Linear)
    assert type(model[0]).__name__ == kind.__name__
    assert list(model.state_dict()) == keys
    got = model(x)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got.sum(), x)[0], wanted)
    with torch.no_grad():
        ieee = xgemm_torch.linear(x, model[0].weight, model[0].bias, precision="ieee")
        assert torch.equal(model[0](x), ieee)
    assert ("timm, " in repr(model[0])) == (kind is Timms)
    assert rows(xgemm_torch.convert(model, types=[kind]))["0"] == (False, "is one already")
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), _saved(model)):
        assert type(again[0]) is type(model[0])
        assert torch.equal(again(x), got)
        assert rows(xgemm_torch.revert(again))["0"][1].endswith(f".{kind.__name__} again")
        assert type(again[0]) is kind
    xgemm_torch.revert(model)
    assert type(model[0]) is kind
    assert state(model) == before
    assert torch.equal(model(x), want)


def _saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_types_are_exact_and_checked_like_others():
    class Deeper(Falcons):
        pass

    replaced, half = Falcons(4, 4), Falcons(4, 4).half()
    replaced.forward = lambda x: x
    model = nn.Sequential(Deeper(4, 4), replaced, half, Clash(4, 4), Falcons(2, 4), Falcons(4, 4))
    report = xgemm_torch.convert(model, types=(Falcons, Clash), min_features=3)
    reasons = [row.reason for row in report]
    assert "a subclass of torch.nn.Linear, Deeper" in reasons[0]
    assert "convert(types=)" in reasons[0]
    assert reasons[1:5] == [
        "its forward was replaced on the instance",
        "its weight is float16, not float32",
        "has an attribute kernel of its own, which means something else here",
        "fewer than 3 features",
    ]
    assert [row.fqn for row in report.swapped] == ["5"]


@pytest.mark.parametrize(
    ("types", "text"),
    [
        ([nn.Linear], "types are subclasses of torch.nn.Linear, other layers, or .* got Linear"),
        ([nn.ConvTranspose2d], "got ConvTranspose2d"),
        (["FalconLinear"], "got 'FalconLinear'"),
        (3, "got 3"),
        (nn.LazyConv2d, "got LazyConv2d"),
        ([Linear], "types has Linear, whose product is ours already"),
    ],
)
def test_types_that_are_none(types, text):
    model = mlp()
    with pytest.raises(TypeError, match=f"convert: .*{text}"):
        xgemm_torch.convert(model, types=types)
    assert type(model[0]) is nn.Linear


def test_types_that_are_no_linears():
    class Named(nn.Module):
        def __init__(self, *shape):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.ones(2))

        def forward(self, states):
            return nn.functional.linear(states, self.weight, self.bias)

    model, x = nn.Sequential(Graphs(3, 3), Named(2, 3), Named(2, 3, 3), Named(3, 2)), torch.ones(3)
    left = rows(xgemm_torch.convert(copy.deepcopy(model)))
    assert {name: reason.partition(":")[0] for name, (_, reason) in left.items()} == {
        name: "has matrices that are no layer's" for name in "0123"
    }
    report = xgemm_torch.convert(model, types=[Graphs, Named])
    assert [row.reason for row in report] == [
        *2 * ["kernel=auto, precision=fp32"], "its weight is no matrix", "its bias is no vector",
    ]  # fmt: skip
    assert torch.equal(model[1](states=x), torch.full((2,), 4.0))
    for dtype in (torch.double, torch.bfloat16):
        other = copy.deepcopy(model[1]).to(dtype)
        assert torch.equal(other(states=x.to(dtype)), torch.full((2,), 4.0, dtype=dtype))


def test_types_compile(fresh_dynamo):
    model, x = nn.Sequential(Falcons(4, 4), nn.ReLU()), problems.normal(3, 4)
    want = model(x)
    xgemm_torch.convert(model, types=[Falcons])
    seen = []

    def backend(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    torch.testing.assert_close(torch.compile(model, backend=backend, fullgraph=True)(x), want)
    assert any("sgemm" in name for name in seen)
