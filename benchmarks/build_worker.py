"""One build of xgemm_torch in a process of its own: compare.py gives the turns.

Reads a line of JSON a request and answers each with one: ``hello``, ``heat``, ``prepare``,
``turn``. ``xgemm_torch`` is the build that PYTHONPATH names; the stopwatch, timing.py, is that of
the tree this file is in, so that both builds are measured by one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

import xgemm_torch

ROOT = Path(__file__).resolve().parents[1]
_spec = importlib.util.spec_from_file_location(
    "stopwatch", ROOT / "xgemm_torch" / "tools" / "timing.py"
)
assert _spec is not None and _spec.loader is not None
timing = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(timing)


class HostTurn:
    """A turn on the CPU: calls over rotating operands."""

    def __init__(self, call: Any, sets: Any, ms: float, calls: int | None) -> None:
        self._call, self._sets = call, sets
        call(*sets[0])
        start = time.perf_counter()
        call(*sets[-1])
        once = max(time.perf_counter() - start, 1e-7)
        self.calls = calls or max(1, min(1000, round(ms / 1e3 / once)))

    def sample(self) -> float:
        """Time one turn; seconds a call."""
        start = time.perf_counter()
        for i in range(self.calls):
            self._call(*self._sets[i % len(self._sets)])
        return (time.perf_counter() - start) / self.calls


class Worker:
    """What a request does."""

    def __init__(self) -> None:
        self._turn: Any = None
        self._gpu = False

    def hello(self) -> dict[str, Any]:
        """Say which build this is."""
        module = getattr(xgemm_torch, "_C", None)
        return {
            "package": str(xgemm_torch.__file__),
            "module": str(getattr(module, "__file__", None)),
            "build": json.loads(module.build_info()) if module is not None else {},
            "torch": str(torch.__version__),
            "gpu": torch.cuda.is_available(),
        }

    def heat(self, seconds: float) -> dict[str, Any]:
        """Bring a GPU to its steady state."""
        timing.heat(seconds)
        return {}

    def prepare(
        self, problem: list[Any], stage: str, precision: str, gpu: bool, ms: float,
        calls: int | None,
    ) -> dict[str, Any]:  # fmt: skip
        """Make operands and a turn; give the calls of a turn, and what the result's bits are."""
        batch, m, n, k, layout = problem
        self._turn = None  # its operands' memory is free before the next ones are made
        trans_a, trans_b = timing.LAYOUTS[layout]
        op = getattr(torch.ops.xgemm, stage)

        def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return op(a, b, trans_a=trans_a, trans_b=trans_b, precision=precision)

        device = "cuda" if gpu else "cpu"
        sets = timing.operands(m, n, k, layout, batch=batch, device=device, rotate=gpu)
        result = call(*sets[0])
        bits = hashlib.sha256(result.contiguous().cpu().numpy().tobytes()).hexdigest()
        del result
        self._gpu = gpu
        make = timing.Turn if gpu else HostTurn
        self._turn = make(call, sets, ms, calls)
        return {"calls": self._turn.calls, "bits": bits[:16]}

    def turn(self) -> dict[str, Any]:
        """Take a turn; on a GPU one before it that does not count, after the other's context."""
        if self._gpu:
            self._turn.sample()
        return {"seconds": self._turn.sample()}


def main() -> None:
    """Answer requests until there are no more; what others print does not get between answers."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("do"))(**request)
        except Exception as error:  # the other end tells it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
