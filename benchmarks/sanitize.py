"""Every row of every stage, and attention, on small partial tiles of a GPU, for compute-sanitizer.

    for tool in memcheck racecheck initcheck synccheck; do
      PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool $tool --error-exitcode 1 \\
        --kernel-name kernel_substring=xgemm python benchmarks/sanitize.py
    done

Without torch's caching allocator every operand is an allocation of its own, so that memcheck sees
one float too far. Results are compared with the CPU's chain, and attention's with float64, so a
wrong one ends in exit code 1. ``products`` or ``attention`` as an argument runs that part alone.
"""

from __future__ import annotations

import itertools
import sys

import torch

import xgemm_torch
from xgemm_torch import simt

# Ragged ones, and one whose tiles are whole and whose K is longer than every ring of slices.
SHAPES = [(130, 70, 37), (33, 129, 8), (1, 1, 1), (64, 260, 33), (256, 256, 200)]
# Of |A||B|: how far a stage that is not strict may be from the chain.
BOUND = 16 * 2.0**-24


# Queries, keys, width, causal, with a bias, with a head that is made anew.
ATTENTION = [
    (130, 200, 64, False, False, False),
    (200, 130, 64, True, True, False),
    (70, 70, 17, True, False, True),
    (70, 130, 96, False, True, False),
    (70, 130, 100, True, False, False),
]


def attention() -> int:
    """Run the kernels of each width; how many calls were wrong."""
    wrong = 0
    for queries, keys, width, causal, masked, wide in ATTENTION:
        q, grad = (torch.randn(2, 2, queries, width) for _ in range(2))
        k, v = (torch.randn(2, 2, keys, width) for _ in range(2))
        v[0, 0, 5] *= 2.0 ** (30 * wide)
        bias = torch.randn(1, 1, queries, keys).expand(2, 2, -1, -1)
        # Made and looked at on the CPU: of what torch's kernels write initcheck knows nothing.
        on_gpu = [t.cuda() for t in (q, k, v)]
        given = *on_gpu, bias[:1, :1].cuda().expand_as(bias) if masked else None, causal, 0.2
        out, lse = torch.ops.xgemm.attention_forward(*given)
        gradients = torch.ops.xgemm.attention_backward(
            grad.cuda(), *given[:4], out, lse, *given[4:]
        )
        x = [t.double().requires_grad_() for t in (q, k, v)]
        logits = x[0] @ x[1].mT * 0.2 + (bias.double() if masked else 0)
        if causal:
            hidden = torch.ones(queries, keys, dtype=torch.bool).triu(1)
            logits = logits.masked_fill(hidden, -torch.inf)
        want = logits.softmax(-1) @ x[2]
        wanted = want, *torch.autograd.grad(want, x, grad.double())
        got = (t.cpu() for t in (out, *gradients))
        pairs = zip(got, wanted, strict=True)
        wrong += not all(bool((a - b).norm() < 1e-5 * b.norm()) for a, b in pairs)
    print(f"{len(ATTENTION)} calls of attention, {wrong} wrong")
    return wrong


def main() -> int:
    """Run what is named, or all; the exit code is 1 when a bit is wrong."""
    parts = sys.argv[1:] or ["products", "attention"]
    torch.manual_seed(0)
    wrong = attention() if "attention" in parts else 0
    return int(wrong + (products() if "products" in parts else 0) != 0)


def products() -> int:
    """Run all stages; how many products were wrong."""
    rows = [(s, row) for s in xgemm_torch.stages() for row in range(len(s.tiles))]
    count = wrong = 0
    for m, n, k in SHAPES:
        for trans_a in (False, True):
            for trans_b in (False, True):
                a = torch.randn((k, m) if trans_a else (m, k))
                b = torch.randn((n, k) if trans_b else (k, n))
                c = torch.randn(m, n)
                options = {"trans_a": trans_a, "trans_b": trans_b, "alpha": 1.5, "beta": 0.5}
                size = xgemm_torch.sgemm(a.abs(), b.abs(), c.abs(), precision="ieee", **options)
                on_gpu = [t.cuda() for t in (a, b, c)]
                for (stage, row), share in itertools.product(rows, (0, 64)):
                    if share and not stage.split_k:
                        continue
                    with simt.configure(row=row, split_k_size=share):
                        want = xgemm_torch.sgemm(a, b, c, precision="ieee", **options)
                        got = xgemm_torch.sgemm(*on_gpu, kernel=stage.name, **options).cpu()
                    near = bool(((got - want).abs() <= BOUND * size).all())
                    wrong += not (torch.equal(got, want) if stage.strict else near)
                    count += 1
    print(f"{count} products, {wrong} wrong")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
