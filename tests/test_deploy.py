"""Tools that take a converted model apart: quantization, ONNX, TorchScript, checkpoint policies."""

from __future__ import annotations

import copy
import functools
import io
import warnings
from collections.abc import Callable
from typing import Any

import problems
import pytest
import torch
import torch.onnx
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import xgemm_torch

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(deprecated|quant_min|Please use|quantized tensor|legacy TorchScript|will be removed|"
    "training mode|Converting a tensor to a Python boolean)"
)
SAYS = pytest.warns(UserWarning, match=r"leaves those .* xgemm_torch.revert\(model\) first")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(4, 4, 1), nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def converted() -> nn.Sequential:
    model = network()
    assert len(xgemm_torch.convert(model, types=nn.Conv1d).swapped) == 3
    return model


X = problems.normal(2, 4, 5)


# ------------------------------------------------------------------------------ quantization


def _quantization() -> Any:
    return pytest.importorskip("torch.ao.quantization")  # torch means to part with it


def dynamic(model: nn.Module) -> nn.Module:
    return _quantization().quantize_dynamic(model, {nn.Linear})


def static(model: nn.Module) -> nn.Module:
    quantization = _quantization()
    model.qconfig = quantization.default_qconfig
    prepared = quantization.prepare(model)
    prepared(X)
    return quantization.convert(prepared)


def by_fx(model: nn.Module) -> nn.Module:
    fx = pytest.importorskip("torch.ao.quantization.quantize_fx")
    prepared = fx.prepare_fx(model, _quantization().get_default_qconfig_mapping(), (X,))
    prepared(X)
    return fx.convert_fx(prepared)


@pytest.mark.parametrize("quantize", [dynamic, static, by_fx])
def test_quantization_says_what_it_leaves(quantize):
    """The layers stay what they were, in float32, and whoever quantizes is told."""
    model = converted()
    want = model(X)
    with SAYS:
        done = quantize(model)
    # FX quantizes what lies between them.
    torch.testing.assert_close(done(X), want, rtol=0, atol=0.1 if quantize is by_fx else 1e-6)


@pytest.mark.parametrize("quantize", [dynamic, by_fx])
def test_quantization_after_revert(quantize):
    model = converted()
    xgemm_torch.revert(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="quantization looks layers up")
        done = quantize(model)
    kinds = [type(m) for m in done.children()]
    assert sum(k.__name__.startswith("Linear") and "quantized" in k.__module__ for k in kinds) == 2
    assert (done(X) - network()(X)).abs().max() < 0.1


def test_a_setting_for_quantization_stays_with_the_module():
    model = converted()
    assert not hasattr(model[1], "qconfig")
    with SAYS:
        model[1].qconfig = 3
    other = copy.deepcopy(model)
    assert model[1].qconfig == other[1].qconfig == 3
    del other[1].qconfig
    assert not hasattr(other[1], "qconfig")
    xgemm_torch.revert(model)
    assert model[1].qconfig == 3


# ------------------------------------------------------------------------------ ONNX, TorchScript


@pytest.mark.parametrize("autocast", ["torch", "float32"])
def test_onnx_gets_torchs_own_layers(autocast, monkeypatch):
    """What its exporter traces has no operator of ours; any other export has."""
    model = network()
    xgemm_torch.convert(model, autocast=autocast, types=nn.Conv1d)

    def products() -> set[str]:
        graph = torch.export.export(model, (X,)).graph
        return {str(n.target) for n in graph.nodes if n.op == "call_function"} - {
            "aten.relu.default"
        }

    assert any("xgemm" in name for name in products())
    with monkeypatch.context() as patch:
        patch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
        assert products() == {"aten.conv1d.default", "aten.linear.default"}
    assert any("xgemm" in name for name in products())


@pytest.mark.parametrize("dynamo", [True, False])
def test_onnx_files(dynamo):
    """A converted model's file is the original's: the same operators, the same bits when run."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    operators, results = [], []
    for model in (network(), converted()):
        file = io.BytesIO()
        torch.onnx.export(model, (X,), file, dynamo=dynamo)
        graph = onnx.load_from_string(file.getvalue()).graph
        operators.append([(node.domain, node.op_type) for node in graph.node])
        session = runtime.InferenceSession(file.getvalue())
        results.append(session.run(None, {session.get_inputs()[0].name: X.numpy()})[0])
    assert operators[0] == operators[1]
    assert results[0].tobytes() == results[1].tobytes()
    torch.testing.assert_close(torch.from_numpy(results[1]), network()(X))


@pytest.mark.parametrize("layer", [0, 1])
def test_scripting_names_what_to_do(layer):
    for model in (converted(), converted()[layer]):
        with pytest.raises(RuntimeError, match=r"torch.jit.script .* xgemm_torch.revert\(model\)"):
            torch.jit.script(model)
    model = converted()
    xgemm_torch.revert(model)
    torch.testing.assert_close(torch.jit.script(model)(X), network()(X))


def test_traces_keep_our_products():
    traced = torch.jit.trace(converted(), X)
    assert str(traced.inlined_graph).count("xgemm::sgemm") == 3
    for x in (X, problems.normal(3, 4, 5)):
        torch.testing.assert_close(torch.jit.freeze(traced)(x), network()(x))


# ------------------------------------------------------------------------------ checkpoints


class Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.products += "xgemm" in str(func)
        return func(*args, **(kwargs or {}))


LISTS: dict[str, tuple[list[Any], int]] = {
    # And how many of the three products are made again.
    "ours": ([torch.ops.xgemm.sgemm.default], 0),
    "another's": ([torch.ops.aten.relu.default], 3),
}


@pytest.mark.parametrize("ops", LISTS)
def test_a_checkpoints_list_has_our_operator(ops):
    """Those that it lists are kept, and not made again."""
    model = converted()
    context = functools.partial(create_selective_checkpoint_contexts, LISTS[ops][0])
    counts = []
    for run in (model, lambda x: checkpoint(model, x, use_reentrant=False, context_fn=context)):
        model.zero_grad()
        with Counted() as counted:
            run(X).sum().backward()
        counts.append((counted.products, model[0].weight.grad.clone()))
    (plain, want), (found, got) = counts
    assert torch.equal(got, want)
    assert found - plain == LISTS[ops][1]


def test_a_checkpoints_list_in_a_compiled_function():
    model, graphs = converted(), []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(sum("xgemm.sgemm" in str(node.target) for node in graph.graph.nodes))
        return make_boxed_func(graph)

    for ops, again in (
        ([torch.ops.xgemm.sgemm.default], False),
        ([torch.ops.aten.relu.default], True),
    ):
        context = functools.partial(create_selective_checkpoint_contexts, ops)

        def f(x: Tensor, context: Callable[..., Any] = context) -> Tensor:
            return checkpoint(model, x, use_reentrant=False, context_fn=context)

        torch._dynamo.reset()
        model.zero_grad()
        graphs.clear()
        backend = aot_autograd(fw_compiler=keep, partition_fn=min_cut_rematerialization_partition)
        torch.compile(f, backend=backend, fullgraph=True)(X).sum().backward()
        assert graphs[0] == 3
        assert (graphs[1] > 5) == again, "the gradients' products, and those made again"
        torch.testing.assert_close(model[3].weight.grad, _gradient())


def _gradient() -> Tensor:
    model = network()
    model(X).sum().backward()
    return model[3].weight.grad


# ------------------------------------------------------------------------------ unbacked rows


@pytest.mark.parametrize("how", ["mask", "item"])
@pytest.mark.parametrize("bias", [True, False])
def test_rows_that_data_decide(how, bias):
    """With a bias, whose gradient is the sum over them."""
    layer = nn.Linear(4, 3, bias)
    stock = copy.deepcopy(layer)
    xgemm_torch.convert(layer)
    x = problems.normal(5, 4)

    def f(layer: nn.Module, x: Tensor, at: Tensor) -> Tensor:
        if how == "mask":
            return layer(x[at]).sin().sum()
        n = at.item()
        torch._check(n >= 0)
        torch._check(n <= 5)
        return layer(x[:n]).sin().sum()

    at = torch.tensor([True, False, True, True, False]) if how == "mask" else torch.tensor(3)
    torch._dynamo.reset()
    options = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}
    with torch._dynamo.config.patch(**options):
        compiled = torch.compile(functools.partial(f, layer), backend="aot_eager", fullgraph=True)
        compiled(x, at).backward()
    f(stock, x, at).backward()
    for got, want in zip(layer.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)


@pytest.mark.parametrize(
    "shape", [(5, 3), (3,), (1, 3), (5, 1), (1, 1), (1,), (2, 5, 3), (2, 1, 3), (1, 5, 1)]
)
def test_gradients_of_addends(shape):
    a, b = problems.normal(2, 5, 4), problems.normal(4, 3)
    c = problems.normal(*shape).requires_grad_()
    xgemm_torch.sgemm(a, b, c).sin().sum().backward()
    got, c.grad = c.grad, None
    (a @ b + c).sin().sum().backward()
    torch.testing.assert_close(got, c.grad)
