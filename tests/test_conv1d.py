"""transformers' Conv1D, converted: the same module, the same numbers, and back."""

from __future__ import annotations

import copy
import pickle
import sys
import types

import problems
import pytest
import torch
from torch import nn

import xgemm_torch
from xgemm_torch import conv1d


def _written_after(base: type) -> type:
    class Conv1D(base):
        """As transformers 5 has it."""

        def __init__(self, nf, nx):
            super().__init__()
            self.nf, self.nx = nf, nx
            self.weight = nn.Parameter(torch.empty(nx, nf))
            self.bias = nn.Parameter(torch.zeros(nf))
            nn.init.normal_(self.weight, std=0.02)

        def forward(self, x):
            size_out = (*x.size()[:-1], self.nf)
            return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size_out)

    Conv1D.__module__, Conv1D.__qualname__ = conv1d.HOME, conv1d.NAME
    return Conv1D


@pytest.fixture(params=["transformers", "written after it"])
def stock(request, monkeypatch):
    if request.param == "transformers":
        return pytest.importorskip(conv1d.HOME).Conv1D
    home = types.ModuleType(conv1d.HOME)
    home.Conv1D = _written_after(nn.Module)
    monkeypatch.setitem(sys.modules, "transformers", types.ModuleType("transformers"))
    monkeypatch.setitem(sys.modules, conv1d.HOME, home)
    return home.Conv1D


def model_of(stock: type) -> nn.Sequential:
    return nn.Sequential(stock(6, 4), nn.ReLU(), stock(3, 6), nn.Linear(3, 2))


def test_there_and_back(stock):
    model, x = model_of(stock), problems.normal(2, 5, 4)
    nn.init.normal_(model[0].bias)
    want, keys, ids = model(x), list(model.state_dict()), [id(p) for p in model.parameters()]
    before = [dict(vars(module)) for module in model]
    report = xgemm_torch.convert(model, precision="ieee")
    assert [row.type for row in report.swapped] == [
        *2 * ["transformers.pytorch_utils.Conv1D"], "torch.nn.modules.linear.Linear",
    ]  # fmt: skip
    assert isinstance(model[0], stock) and type(model[0]) is not stock
    assert list(model.state_dict()) == keys and [id(p) for p in model.parameters()] == ids
    torch.testing.assert_close(model(x), want)
    with torch.no_grad():
        ieee = xgemm_torch.addmm(model[0].bias, x[0], model[0].weight, precision="ieee")
        assert torch.equal(model[0](x)[0], ieee)
    assert [row.reason for row in xgemm_torch.convert(model)] == ["is one already"] * 3
    assert [row.reason for row in xgemm_torch.revert(model)] == [
        *2 * ["transformers.pytorch_utils.Conv1D again"], "torch.nn.Linear again",
    ]  # fmt: skip
    assert [type(module) for module in model] == [stock, nn.ReLU, stock, nn.Linear]
    assert [dict(vars(module)) for module in model] == before
    assert torch.equal(model(x), want)


@pytest.mark.parametrize("shape", [(4,), (1, 4), (0, 4), (2, 3, 4), (2, 0, 4)], ids=str)
def test_shapes_and_gradients(stock, shape):
    grads = []
    layer, x = stock(6, 4), problems.normal(*shape)
    for turn in range(2):
        if turn:
            xgemm_torch.convert(layer)
        ours = x.clone().requires_grad_()
        y = layer(ours)
        assert y.shape == (*shape[:-1], 6)
        grads.append(torch.autograd.grad(y.square().sum(), (ours, layer.weight, layer.bias)))
    torch.testing.assert_close(*grads)


def test_rows_apart_in_memory(stock):
    """transformers' own refuses them."""
    layer, x = stock(6, 4), problems.normal(3, 2, 4)
    want = layer(x.transpose(0, 1).contiguous())
    xgemm_torch.convert(layer)
    torch.testing.assert_close(layer(x.transpose(0, 1)), want)


def test_copies(stock):
    model, x = model_of(stock), problems.normal(5, 4)
    xgemm_torch.convert(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other[0]) is type(model[0])
        assert torch.equal(other(x), model(x))
        xgemm_torch.revert(other)
        assert type(other[0]) is stock


def test_compiled(stock):
    torch.compiler.reset()
    model, x = model_of(stock), problems.normal(5, 4)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    want = compiled(x)
    for change in (xgemm_torch.convert, xgemm_torch.revert):
        change(model)
        torch.testing.assert_close(compiled(x), want)


def test_what_is_left(stock):
    class Special(stock):
        pass

    replaced = stock(4, 4)
    replaced.forward = lambda x: x
    modules = [Special(4, 4), replaced, stock(4, 4).half(), stock(2, 4), stock(4, 2)]
    report = xgemm_torch.convert(nn.Sequential(*modules), min_features=3)
    assert [row.reason for row in report] == [
        "a subclass of transformers' Conv1D, Special",
        "its forward was replaced on the instance",
        "its weight is float16, not float32",
        *2 * ["fewer than 3 features"],
    ]


def test_errors_name_its_operands(stock):
    layer = stock(6, 4)
    xgemm_torch.convert(layer)
    with pytest.raises(ValueError, match="Conv1D: inner sizes differ: x is .2, 3., weight is"):
        layer(torch.ones(2, 3))
    with pytest.raises(TypeError, match="Conv1D: x must be float32, got float64"):
        layer(torch.ones(2, 4).double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half, torch.double], ids=str)
def test_other_dtypes_and_autocast_are_transformers_own(stock, dtype):
    theirs, x = stock(6, 4), problems.normal(2, 3, 4)
    for autocast in ("torch", "float32"):
        layer = copy.deepcopy(theirs)
        xgemm_torch.convert(layer, autocast=autocast)
        plain = layer(x)
        if dtype is not torch.double:
            with torch.autocast("cpu", dtype):
                assert torch.equal(layer(x), theirs(x) if autocast == "torch" else plain)
        other = copy.deepcopy(theirs).to(dtype)
        assert torch.equal(layer.to(dtype)(x.to(dtype)), other(x.to(dtype)))


def test_gpt2():
    transformers = pytest.importorskip("transformers")
    shape = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 32, "n_positions": 16}
    config = transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=0)
    model, ids = transformers.GPT2LMHeadModel(config).eval(), torch.randint(0, 32, (2, 8))
    want = model(ids).logits
    report = xgemm_torch.convert(model)
    assert len(report.swapped) == 9 and not report.skipped
    torch.testing.assert_close(model(ids).logits, want)
    model.train()(ids, labels=ids).loss.backward()
    assert model.transformer.h[0].mlp.c_fc.weight.grad.any()


def test_convert_imports_no_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert xgemm_torch.convert(nn.Sequential(nn.Linear(2, 2)))[0].swapped
    with pytest.raises(AttributeError, match="has no attribute 'Conv2D'"):
        conv1d.Conv2D  # noqa: B018
