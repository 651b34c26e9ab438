"""The problems that are measured: squares, the products of linear layers, long and thin ones.

``python benchmarks/shapes.py`` lists them.
"""

from __future__ import annotations

from collections.abc import Iterator

from xgemm_torch.contenders import Problem

LAYOUTS = ("NN", "NT", "TN", "TT")
SQUARES = (
    128, 256, 384, 512, 640, 768, 1000, 1023, 1024,
    1536, 2048, 3072, 4095, 4096, 6144, 8192, 16384,
)  # fmt: skip
# (in_features, out_features): GPT-2 124M's layers, a head of width 1024 (GPT-2 medium's), then
# layers of 8B to 70B models.
LAYERS = (
    (768, 2304), (768, 768), (768, 3072), (3072, 768), (1024, 50257), (4096, 4096),
    (4096, 11008), (4096, 14336), (14336, 4096), (8192, 28672),
)  # fmt: skip
ROWS = (1, 8, 64, 512, 2048, 8192)
SKINNY = (
    (65536, 64, 64), (100000, 32, 256), (64, 64, 1048576),
    (256, 256, 65536), (16384, 128, 128), (20, 20000, 500),
)  # fmt: skip


def squares() -> Iterator[Problem]:
    """Every square in every layout."""
    for size in SQUARES:
        for layout in LAYOUTS:
            yield Problem(f"square {size} {layout}", size, size, size, layout)


def linear_products() -> Iterator[Problem]:
    """A layer's three products: Y = X W^T, dX = dY W, dW = dY^T X."""
    for inside, outside in LAYERS:
        for rows in ROWS:
            label = f"linear {inside}-{outside} rows {rows}"
            yield Problem(f"{label} forward", rows, outside, inside, "NT")
            yield Problem(f"{label} grad_x", rows, inside, outside, "NN")
            yield Problem(f"{label} grad_w", outside, inside, rows, "TN")


def skinny() -> Iterator[Problem]:
    """Problems with little in one direction."""
    for m, n, k in SKINNY:
        yield Problem(f"skinny {m}x{n}x{k}", m, n, k)


def suite() -> Iterator[Problem]:
    """Every problem of the suite."""
    yield from squares()
    yield from linear_products()
    yield from skinny()


if __name__ == "__main__":
    for problem in suite():
        print(f"{problem.label:44} {problem.m:>7} {problem.n:>7} {problem.k:>8} {problem.layout}")
