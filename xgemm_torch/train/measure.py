"""What is measured beside the losses: shares of time, kernels, exact bits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler import profile
from torch.nn.attention import SDPBackend, sdpa_kernel

import xgemm_torch

from ..registry import stages
from ..tools.explain_command import choose
from .config import Config
from .data import Batches, Corpus
from .loop import StepClock, Trainer
from .model import GPT, SHAPES

GEMM_OPS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_addmm_activation")
ATTENTION_WORDS = (
    "scaled_dot_product", "flash_attention", "efficient_attention", "xgemm::attention",
)  # fmt: skip


def is_gemm(op: str) -> bool:
    """Say whether an operator's own time is a matrix product's."""
    return op in GEMM_OPS or (op.startswith("xgemm::") and not is_attention(op))


def is_attention(op: str) -> bool:
    """Say whether an operator is attention in one, products and softmax."""
    return any(word in op for word in ATTENTION_WORDS)


def _steps(trainer: Trainer, count: int) -> list[float]:
    """Time ``count`` steps of a trainer outside its run: its data moves on, its lists stay."""
    clock, batches = StepClock(trainer.device), trainer.batches
    for _ in range(count):
        ids, targets = batches.next()
        start = clock.mark()
        trainer.model.loss(ids, targets).backward()
        nn.utils.clip_grad_norm_(trainer.model.parameters(), trainer.config.clip)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad(set_to_none=True)
        clock.step(start, clock.mark())
    return clock.read()


def time_shares(trainer: Trainer, steps: int = 3) -> dict[str, Any]:
    """Profile a few whole steps: milliseconds a step by operator, and the share that is GEMMs.

    On a GPU the time is that of the kernels which each operator launched, on a CPU the operator's
    own. Attention's products are inside its fused operator and are counted as attention.
    """
    cuda = trainer.clock.cuda
    # Some builds of the profiler's library write its progress to standard error.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    _steps(trainer, 1)
    with profile(use_device="cuda" if cuda else None, use_kineto=cuda) as profiler:
        _steps(trainer, steps)
    ops: dict[str, float] = {}
    kernels: dict[str, float] = {}
    for event in profiler.key_averages():
        # An operator appears as a host event; on a GPU each kernel appears once more by its name.
        if event.device_type == torch.autograd.DeviceType.CPU:
            us = event.self_device_time_total if cuda else event.self_cpu_time_total
            ops[event.key] = ops.get(event.key, 0.0) + us / 1e3 / steps
        elif event.self_device_time_total > 0 and "#" not in event.key:  # no annotated range
            kernels[event.key] = event.self_device_time_total / 1e3 / steps
    total = sum(ops.values())
    gemm = sum(ms for op, ms in ops.items() if is_gemm(op))
    attention = sum(ms for op, ms in ops.items() if is_attention(op))
    return {
        "total_ms": total,
        "gemm_ms": gemm,
        "attention_ms": attention,
        "gemm_share": gemm / total if total else 0.0,
        "gemm_ops_ms": {op: ms for op, ms in _largest(ops, 8) if is_gemm(op)},
        "kernels_ms": dict(_largest(kernels, 12)),
    }


def _largest(times: dict[str, float], count: int) -> list[tuple[str, float]]:
    return sorted(times.items(), key=lambda item: -item[1])[:count]


def prepare(config: Config) -> Callable[[nn.Module], xgemm_torch.ConvertReport]:
    """Give the function that turns a stock model into the job's converted one."""
    return lambda model: xgemm_torch.convert(
        model, kernel=config.kernel, precision=config.precision
    )


def may_recompute(config: Config) -> bool:
    """Say whether stages that make units of their results anew may take the job's products."""
    if config.kernel == "auto":
        return config.device == "cuda" and config.precision == "fp32"
    return any(stage.unit_rows for stage in stages() if stage.name == config.kernel)


def products(model: nn.Module, config: Config) -> list[dict[str, Any]]:
    """Say which kernel runs each product of each converted layer, equal ones once with a count.

    A row holds layer, count, product, layout (of the operands as they lie), m, n, k, kernel, why,
    the units of its result that the kernel certifies (or None), and the kernel that an H200 would
    run for the same problem.
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, layer in model.named_modules():
        if not isinstance(layer, xgemm_torch.nn.Linear):
            continue
        label = ".".join("*" if part.isdigit() else part for part in name.split("."))
        for product, layout, a, b, trans_a, trans_b in _layer_products(layer, config):
            chosen = xgemm_torch.explain(
                a,
                b,
                trans_a=trans_a,
                trans_b=trans_b,
                kernel=layer.kernel,
                precision=layer.precision,
            )
            k, m = a.shape if trans_a else a.shape[::-1]
            n = b.shape[0] if trans_b else b.shape[1]
            h200 = choose(m, n, k, trans_a=trans_a, trans_b=trans_b, sm=90, sm_count=132)
            row = {
                "layer": label, "product": product, "layout": layout, "m": m, "n": n, "k": k,
                "kernel": chosen.kernel, "why": chosen.why, "units": chosen.units,
                "kernel_on_h200": h200["kernel"],
            }  # fmt: skip
            rows.setdefault(tuple(row.values()), {**row, "count": 0})["count"] += 1
    return list(rows.values())


def _layer_products(layer: nn.Linear, config: Config) -> Iterable[tuple[Any, ...]]:
    rows, device = config.tokens_per_step, layer.weight.device
    x = torch.empty(rows, layer.in_features, device=device)
    y = torch.empty(rows, layer.out_features, device=device)
    weight = layer.weight.detach()
    yield "forward", "NT", x, weight, False, True
    yield "grad_x", "NN", y, weight, False, False
    yield "grad_w", "TN", y, x, True, False


def check_bits(config: Config, corpus: Corpus, steps: int = 2) -> dict[str, Any]:
    """Train a tiny model with the named stage and with the strict chain; compare every bit.

    The stage runs from its own source: on a GPU as its kernel, on a CPU in the emulator,
    which is why the model is tiny. Returns what was compared and ``equal``.
    """
    shape, batch, seq = SHAPES["tiny"], 2, 16
    models = []
    for kernel, precision in ((config.check_kernel, "fp32"), ("auto", "ieee")):
        model = GPT(shape).initialize(config.seed).to(config.device)
        xgemm_torch.convert(model, kernel=kernel, precision=precision)
        models.append(model)
    batches = Batches(corpus.train.to(config.device), batch, seq, config.seed)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in models]
    losses, compared, unequal = [], 0, []
    for step in range(steps):
        ids, targets = batches.next()
        # Fused attention may add its gradients up in any order; only the products are on trial.
        with sdpa_kernel(SDPBackend.MATH):
            pair = [model.loss(ids, targets) for model in models]
            for loss, optimizer in zip(pair, optimizers, strict=True):
                optimizer.zero_grad()
                loss.backward()
        losses.append([loss.item() for loss in pair])
        named = [dict(model.named_parameters()) for model in models]
        tensors = {"loss": [loss.detach() for loss in pair]}
        tensors |= {name: [params[name].grad for params in named] for name in named[0]}
        for name, (one, other) in tensors.items():
            compared += one.numel()
            if not torch.equal(one, other):
                unequal.append(f"step {step + 1}: {name}")
        for optimizer in optimizers:
            optimizer.step()
    return {
        "kernel": config.check_kernel,
        "against": "precision='ieee'",
        "model": f"{shape.layers} layer, width {shape.width}, batch {batch} x {seq}",
        "steps": steps,
        "losses": losses,
        "numbers_compared": compared,
        "unequal": unequal,
        "equal": not unequal,
    }
