"""The problems that are measured: squares, the products of linear layers, long and thin ones.

``python benchmarks/shapes.py`` lists them. Besides the suite there are problems of no program,
whose sizes are drawn at random, single rows and columns, and batches.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from xgemm_torch.tools.contenders import Problem

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
# (m, n, k): where a tool that knows the suite alone goes wrong.
LONG = ((50, 50, 200000), (100000, 100, 100), (65536, 1, 512), (1, 65536, 512), (3, 70000, 333))
# (batch, m, n, k): attention's products, and batches of small ones.
BATCHES = (
    (96, 1024, 1024, 64), (96, 1024, 64, 1024), (768, 197, 197, 64), (768, 197, 64, 197),
    (512, 64, 64, 64), (4096, 32, 32, 32), (64, 512, 512, 64), (64, 512, 64, 512),
    (16, 2048, 2048, 128), (16, 2048, 128, 2048), (256, 8, 512, 64), (1024, 1, 2048, 64),
    (1024, 1, 64, 2048), (32, 300, 300, 300), (8, 1024, 1024, 1024), (2000, 16, 16, 100),
)  # fmt: skip
# Of a random problem's size and of its multiply-adds, as powers of two.
MOST_SIZE, LEAST_WORK, MOST_WORK = 14.3, 12, 36


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


def random_suite(seed: int, count: int) -> Iterator[Problem]:
    """Log-uniform problems: sizes from 1 to 20000, three in five of them multiples of 8.

    A choice is judged on seeds that it was not made with.
    """
    r = random.Random(seed)
    number = 0
    while number < count:
        m, n, k = (int(2 ** r.uniform(0, MOST_SIZE)) for _ in range(3))
        if r.random() < 0.6:
            m, n, k = (max(1, x // 8 * 8) if x > 16 else x for x in (m, n, k))
        if 2**LEAST_WORK <= m * n * k <= 2**MOST_WORK:
            layout = "".join("NT"[r.random() < 0.5] for _ in range(2))
            yield Problem(f"random {seed} {number} {m}x{n}x{k} {layout}", m, n, k, layout)
            number += 1


def extras(seed: int, count: int) -> Iterator[Problem]:
    """What random sizes are rarely: ``count`` times a row and a column; long ones; batches."""
    r = random.Random(f"extras {seed}")
    for number in range(count):
        size, k = (int(2 ** r.uniform(4, MOST_SIZE)) for _ in range(2))
        for m, n in ((1, size), (size, 1)):
            layout = r.choice(LAYOUTS)
            yield Problem(f"row {seed} {number} {m}x{n}x{k} {layout}", m, n, k, layout)
    for m, n, k in LONG:
        for layout in LAYOUTS:
            yield Problem(f"long {m}x{n}x{k} {layout}", m, n, k, layout)
    for batch, m, n, k in BATCHES:
        for layout in LAYOUTS:
            yield Problem(f"batch {batch}x{m}x{n}x{k} {layout}", m, n, k, layout, batch)


if __name__ == "__main__":
    for problem in suite():
        print(f"{problem.label:44} {problem.m:>7} {problem.n:>7} {problem.k:>8} {problem.layout}")
