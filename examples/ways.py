"""What the examples share: their command line, and torch's products by FP32 or by TF32.

An example is a class ``Job``: a problem, a model, and how a step of it is made. ``step()`` gives
the loss of a step, ``error()`` how far the result is from what is known to be right. A way says who
multiplies: ``stock`` is torch in FP32 (cuBLAS), ``tf32`` is torch with TF32 allowed, ``converted``
is xgemm_torch. The package writes no setting of torch's; the one that is written here, TF32, is put
back after each step, and ``error()`` always runs without it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

WAYS = ("stock", "tf32", "converted")


@contextmanager
def products(way: str) -> Iterator[None]:
    """Let torch's products on a GPU be TF32's or FP32's, and put back what was."""
    backend = torch.backends.cuda.matmul
    before = backend.fp32_precision
    backend.fp32_precision = "tf32" if way == "tf32" else "ieee"
    try:
        yield
    finally:
        backend.fp32_precision = before


def waited() -> float:
    """Give the time in seconds when the GPU has done all that was asked of it."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def main(job: Callable[..., Any], sizes: Mapping[str, Any], what: str) -> None:
    """Run an example by its command line; ``what`` is what its error is."""
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=sizes, default="full" if gpu else "small")
    parser.add_argument("--way", choices=WAYS, default="converted")
    parser.add_argument("--steps", type=int, help="by default what the size says")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if gpu else "cpu")
    parser.add_argument("--json", type=Path, help="write losses, time and error to this file")
    options = parser.parse_args()
    size = sizes[options.size]
    steps = size.steps if options.steps is None else options.steps
    size = replace(size, steps=steps)
    losses: list[float] = []
    with products(options.way):
        run = job(size, options.way, options.seed, options.device)
    seconds = 0.0
    for step in range(steps):
        start = waited()
        with products(options.way):
            loss = run.step()
        seconds += waited() - start
        losses.append(float(loss))
        if (step + 1) % max(1, steps // 10) == 0:
            print(f"step {step + 1:4} of {steps}: {losses[-1]:.4e}, {seconds:.1f} s", flush=True)
    error = run.error()
    print(f"{options.way}: {what} {error:.3e}; {1e3 * seconds / max(1, steps):.2f} ms a step")
    if options.json:
        result = {"way": options.way, "size": options.size, "seed": options.seed, "steps": steps,
                  "seconds": seconds, "error": error, "losses": losses}  # fmt: skip
        options.json.write_text(json.dumps(result) + "\n", encoding="utf-8")
