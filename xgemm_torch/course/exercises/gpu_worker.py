"""``python -m xgemm_torch.course.exercises.gpu_worker``: runs learners' kernels on the first GPU.

A process of its own: an illegal access ends a process's use of the GPU, and a kernel that never
ends can only be killed with it. It answers a line of JSON with one; the first answer, unasked, says
which GPU this is. A request has

- ``library``: what gpu.py has built;
- ``cases``: problems in the words of problem.h, whose bits are compared;
- ``product``: M, N, K of a product to time in turns with torch.mm, or null.

The answer is ``{"kind": "good", "ran", "left_out", "us", "torch_mm_us"}``; or the first fault, as
grade.cpp tells it, with the number of its ``case``; or ``{"kind": "unable", "text"}``. After an
``error`` the process is of no more use.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ...tools import environment, timing

# A room of more, with lines that lie gigabytes apart, is left to the emulator.
MOST_BYTES = 1 << 30
ROUNDS, SLOW_ROUNDS, SLOW_SECONDS = 9, 3, 0.05


class Refused(RuntimeError):
    """The launch was refused, in the runtime's words."""


class Kernels:
    """A learner's file on the current GPU."""

    def __init__(self, path: str) -> None:
        """Load what was built of it."""
        self._c = ctypes.CDLL(path)
        pointer, size, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        kinds: dict[str, tuple[Any, list[Any]]] = {
            "case": (size, [ctypes.c_char_p]),
            "room": (pointer, []),
            "place": (None, [pointer]),
            "product": (None, [*[ctypes.c_int64] * 3, *[pointer] * 3]),
            "workspace": (size, [integer, integer]),
            "run": (ctypes.c_char_p, [integer, integer, pointer, pointer, size]),
            "compare": (ctypes.c_char_p, []),
        }
        for name, (result, arguments) in kinds.items():
            function = getattr(self._c, f"exercise_{name}")
            function.restype, function.argtypes = result, arguments
        chip = torch.cuda.get_device_properties(torch.cuda.current_device())
        self._device = (10 * chip.major + chip.minor, chip.multi_processor_count)

    def _run(self) -> None:
        bytes_ = self._c.exercise_workspace(*self._device)
        memory = torch.empty(bytes_, dtype=torch.uint8, device="cuda")
        stream = torch.cuda.current_stream().cuda_stream
        refused = self._c.exercise_run(*self._device, stream, memory.data_ptr(), bytes_)
        if refused:
            raise Refused(refused.decode())

    def case(self, words: str) -> dict[str, Any] | None:
        """Compare a problem's bits; None where it is too large."""
        size = self._c.exercise_case(words.encode())
        if size > MOST_BYTES:
            return None
        room = (ctypes.c_char * size).from_address(self._c.exercise_room())
        host = torch.frombuffer(room, dtype=torch.uint8)
        there = host.cuda()
        self._c.exercise_place(there.data_ptr())
        self._run()
        torch.cuda.synchronize()
        host.copy_(there)
        told: dict[str, Any] = json.loads(self._c.exercise_compare())
        return told

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Multiply whole matrices on the current stream."""
        (m, k), n = a.shape, b.shape[1]
        d = torch.empty(m, n, device=a.device)
        self._c.exercise_product(m, n, k, a.data_ptr(), b.data_ptr(), d.data_ptr())
        self._run()
        return d


def timed(kernels: Kernels, m: int, n: int, k: int) -> dict[str, Any]:
    """Time a product in turns with torch.mm; before that, look whether it is one.

    Gives ``us`` and ``torch_mm_us``, medians; or ``coarse``, why torch.mm is no yardstick here.
    """
    sets = timing.operands(m, n, k, "NN")
    error = timing.float64_error(kernels.product(*sets[0]), *sets[0], "NN")
    if not error["error_u"] <= error["allowed_u"]:
        text = (
            f"the error at M = {m}, N = {n}, K = {k} is {error['error_u']:.3g} units of 2^-24 "
            f"|A| |B|, where {error['allowed_u']:.0f} are the most that any order of sums can have"
        )
        return {"kind": "error", "text": text, "wrong": True}
    if (reason := environment.strict_reference()) is not None:
        return {"coarse": reason}
    calls = {"torch.mm": timing.torch_mm("NN"), "exercise": kernels.product}
    timing.heat()
    first = timing.interleaved(calls, sets, rounds=1)
    slow = first["exercise"][0] > SLOW_SECONDS
    samples = timing.interleaved(calls, sets, rounds=SLOW_ROUNDS if slow else ROUNDS)
    us = {name: 1e6 * median(times) for name, times in samples.items()}
    return {"us": us["exercise"], "torch_mm_us": us["torch.mm"]}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Do what was asked."""
    ran = left_out = 0
    number = None
    try:
        kernels = Kernels(request["library"])
        for number, words in enumerate(request["cases"]):
            told = kernels.case(words)
            if told is None:
                left_out += 1
            elif told["kind"] != "good":
                return {**told, "case": number}
            else:
                ran += 1
        number = None
        good = {"kind": "good", "ran": ran, "left_out": left_out}
        return good | timed(kernels, *request["product"]) if request["product"] else good
    except torch.cuda.OutOfMemoryError:
        return {"kind": "unable", "text": "it has too little free memory"}
    except OSError as error:
        return {"kind": "unable", "text": str(error)}
    except RuntimeError as error:
        text = str(error).strip().partition("\n")[0]
        return {"kind": "error", "text": text, "case": number}


def main() -> None:
    """Serve until the input ends."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a kernel's printf

    def tell(what: dict[str, Any]) -> None:
        print(json.dumps(what), file=told, flush=True)

    torch.zeros(1, device="cuda")
    tell({"kind": "ready", "device": torch.cuda.get_device_name()})
    for line in sys.stdin:
        tell(answer(json.loads(line)))


if __name__ == "__main__":
    main()
