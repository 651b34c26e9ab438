"""What processes of test_hub.py do with a kernel: ``python hub_kernel.py CHECK REPOSITORY...``."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from copy import deepcopy
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

# kernels then takes the variant for a CPU, whatever this torch was built for.
AS_ON_A_CPU = """
import torch
from pathlib import Path

torch.version.cuda = None
"""


class Calls(TorchDispatchMode):
    """The names of the operators that are called inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def variant_of(repository: Path, system: str = "cpu") -> Path:
    (found,) = (repository / "build").glob(f"*-{system}-*")
    return found


def identifier(variant: Path) -> str:
    return json.loads((variant / "metadata.json").read_text())["id"]


def plainly(variant: Path):
    """Import a variant as ``kernels`` does, without it."""
    name = identifier(variant)
    spec = importlib.util.spec_from_file_location(name, variant / "__init__.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def product(kernel, namespace: str) -> None:
    """A product and its gradients: torch's bits, by operators of that namespace."""
    x, weight, bias = torch.randn(33, 24), torch.randn(17, 24), torch.randn(17)
    found, want = [], []
    for function, results in ((kernel.linear, found), (F.linear, want)):
        operands = [t.clone().requires_grad_() for t in (x, weight, bias)]
        with Calls() as calls:
            y = function(*operands)
            y.backward(torch.ones_like(y))
        results += [y, *(t.grad for t in operands)]
        if function is kernel.linear:
            assert f"{namespace}.sgemm.default" in calls.names, calls.names
            assert f"{namespace}.linear_backward.default" in calls.names, calls.names
    for ours, torchs in zip(found, want, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-6, atol=1e-5)
    assert torch.equal(found[0], want[0])


def functions(kernel, namespace: str) -> None:
    """All that the kernel exports is there, and works."""
    for name in kernel.__all__:
        assert hasattr(kernel, name), name
    a, b = torch.randn(8, 12), torch.randn(12, 4)
    assert torch.equal(kernel.mm(a, b), a @ b)
    assert torch.equal(kernel.sgemm(a, b, precision="ieee"), kernel.sgemm(a, b, kernel="naive"))
    assert kernel.stages() and "sgemm" in dir(kernel)
    model = nn.Sequential(nn.Linear(12, 4))
    assert "Linear" in str(kernel.convert(model))
    assert type(model[0]) is kernel.nn.Linear
    with kernel.patch(min_flops=0) as taken:
        torch.mm(a, b)
        model(b.T).sum().backward()  # a layer tells what it multiplies
    ours = {f"{namespace}.{name}" for name in ("sgemm", "linear_backward")}
    assert taken.taken == 3 and {row.product for row in taken} == {"mm", *ours}
    q = torch.randn(1, 2, 8, 16)
    torch.testing.assert_close(
        kernel.scaled_dot_product_attention(q, q, q), F.scaled_dot_product_attention(q, q, q)
    )


def loaded(repository: Path) -> None:
    """By get_local_kernel, and by get_kernel with the repository's name."""
    from kernels import get_kernel, get_loaded_kernels, get_local_kernel

    from build_tools import hub

    kernel = get_local_kernel(repository)
    name = identifier(variant_of(repository))
    assert kernel.__name__ == name
    for check in (product, functions):
        check(kernel, name)
    config = hub.read_config()
    os.environ["LOCAL_KERNELS"] = f"{config.repo_id}={repository}"
    assert get_kernel(config.repo_id, version=config.version) is kernel
    (one,) = get_loaded_kernels()
    assert one.metadata.id == name and one.metadata.version == config.version
    assert "xgemm_torch" not in sys.modules


def kernelized(repository: Path) -> None:
    """Layers of a model, in every mode: outputs and gradients are stock's, subclasses are left."""
    from kernels import (
        LocalLayerRepository,
        Mode,
        kernelize,
        replace_kernel_forward_from_hub,
        use_kernel_mapping,
    )
    from transformers.pytorch_utils import Conv1D

    class Other(nn.Linear):
        def forward(self, input):
            return super().forward(input) + 1

    replace_kernel_forward_from_hub(nn.Linear, "Linear", condition=lambda m: type(m) is nn.Linear)
    replace_kernel_forward_from_hub(Conv1D, "Conv1D")
    of = {
        name: {"cpu": LocalLayerRepository(repository, layer_name=name)}
        for name in ("Linear", "Conv1D")
    }
    stock = nn.Sequential(
        nn.Linear(24, 16), Conv1D(8, 16), nn.Linear(8, 4, bias=False), Other(4, 4)
    )
    x = torch.randn(2, 5, 24)
    namespace = identifier(variant_of(repository))
    for mode in (Mode.INFERENCE, Mode.TRAINING, Mode.TRAINING | Mode.TORCH_COMPILE):
        model = deepcopy(stock)
        with use_kernel_mapping(of, inherit_mapping=False):
            model = kernelize(model, mode=mode, device="cpu", use_fallback=False)
        with Calls() as calls:
            got = model(x)
        assert calls.names.count(f"{namespace}.sgemm.default") == 3, calls.names
        want = stock(x)
        assert torch.equal(got, want)
        stock.zero_grad()
        for result in (got, want):
            result.square().sum().backward()
        same(model, stock, rtol=0, atol=0)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(model(x), stock(x)) and model(x).dtype is stock(x).dtype
        half = deepcopy(stock).bfloat16()
        with use_kernel_mapping(of, inherit_mapping=False):
            kernelize(model.bfloat16(), mode=mode, device="cpu")
        assert torch.equal(model(x.bfloat16()), half(x.bfloat16()))
    model = deepcopy(stock)
    with use_kernel_mapping(of, inherit_mapping=False):
        kernelize(model, mode=Mode.TRAINING | Mode.TORCH_COMPILE, device="cpu", use_fallback=False)
    model.zero_grad()
    compiled = torch.compile(model, fullgraph=True)
    compiled(x).square().sum().backward()
    same(model, stock, rtol=1e-4, atol=1e-4)


def same(model: nn.Module, stock: nn.Module, **tolerances: float) -> None:
    for ours, torchs in zip(model.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, torchs.grad, **tolerances)


def together(*repositories: Path) -> None:
    """Several versions in one process, and the package: none disturbs another."""
    import xgemm_torch

    kernels = {identifier(path): plainly(path) for path in map(variant_of, repositories)}
    assert len(kernels) == len(repositories)
    kernels["xgemm"] = xgemm_torch
    for namespace, kernel in kernels.items():
        product(kernel, namespace)
    # A layer tells its own copy's patch alone what it multiplies.
    for kernel in kernels.values():
        counts = []
        for other in kernels.values():
            with other.patch(min_flops=0) as taken:
                kernel.linear(torch.ones(3, 4), torch.ones(5, 4))
            counts.append(taken.taken)
        assert counts == [int(other is kernel) for other in kernels.values()], counts
    # Each has its formulas counted, though the counter is imported after all of them.
    from torch.utils.flop_counter import FlopCounterMode

    for kernel in kernels.values():
        with FlopCounterMode(display=False) as counter:
            kernel.mm(torch.ones(3, 4), torch.ones(4, 5))
        assert counter.get_total_flops() == 2 * 3 * 4 * 5


def equal_files(repository: Path, links: Path) -> None:
    """Two revisions with equal builds, laid as the Hub's cache lays them: links to one file."""
    from kernels import get_local_kernel

    first = get_local_kernel(repository)
    for path in sorted(repository.rglob("*")):
        place = links / path.relative_to(repository)
        if path.is_file() and "__pycache__" not in path.parts:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path)
    second = get_local_kernel(links)
    for kernel in (first, second):
        product(kernel, identifier(variant_of(repository)))


def by_name(repository: Path) -> None:
    """The package of the kernel's name in the variant, which older readers look for."""
    variant = variant_of(repository)
    spec = importlib.util.spec_from_file_location("found", variant / "xgemm" / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = sys.modules[identifier(variant)]
    assert module.__all__ == kernel.__all__ and module.linear is kernel.linear
    product(module, identifier(variant))


def plain(repository: Path) -> None:
    """Without ``kernels``: for other Pythons and torches."""
    variant = variant_of(repository)
    kernel = plainly(variant)
    product(kernel, identifier(variant))
    functions(kernel, identifier(variant))


CHECKS = {
    check.__name__: check for check in (loaded, kernelized, together, equal_files, by_name, plain)
}

if __name__ == "__main__":
    exec(AS_ON_A_CPU)
    torch.manual_seed(0)
    CHECKS[sys.argv[1]](*map(Path, sys.argv[2:]))
    print(f"{sys.argv[1]}: ok")
