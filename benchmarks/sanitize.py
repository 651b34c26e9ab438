"""Every row of every stage once over small partial tiles on a GPU, for compute-sanitizer.

    for tool in memcheck racecheck initcheck synccheck; do
      PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool $tool --error-exitcode 1 \\
        --kernel-name kernel_substring=xgemm python benchmarks/sanitize.py
    done

Without torch's caching allocator every operand is an allocation of its own, so that memcheck sees
one float too far. Results are compared with the CPU's chain, so a wrong one ends in exit code 1.
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


def main() -> int:
    """Run all stages; the exit code is 1 when a bit is wrong."""
    torch.manual_seed(0)
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
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
