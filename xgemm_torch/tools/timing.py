"""GPU time, measured so that contenders are compared fairly, and the clocks it was measured at.

Contenders take turns, each turn one CUDA-graph replay of several calls over rotating operands,
timed by events. The chip is brought to its steady state first: a cool one would favour whoever
runs first.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor

LAYOUTS = {"NN": (False, False), "NT": (False, True), "TN": (True, False), "TT": (True, True)}
# More than any GPU's last-level cache: rotating through this much reads every operand from memory,
# but for those so small that the most sets that are made fit into the cache.
ROTATION_BYTES = 256 << 20
MOST_SETS = 64
Call = Callable[[Tensor, Tensor], Tensor]


def operands(
    m: int, n: int, k: int, layout: str, *, batch: int = 1, device: str = "cuda", seed: int = 0,
    rotate: bool = True,
) -> list[tuple[Tensor, Tensor]]:  # fmt: skip
    """Make sets of random normal operands as ``layout`` stores them; two at least when rotating.

    Those of a batch of several have three dimensions.
    """
    trans_a, trans_b = LAYOUTS[layout]
    generator = torch.Generator(device).manual_seed(seed)
    count = max(2, -(-ROTATION_BYTES // (4 * batch * (m * k + k * n)))) if rotate else 1
    outer = () if batch == 1 else (batch,)
    shape_a = (*outer, k, m) if trans_a else (*outer, m, k)
    shape_b = (*outer, n, k) if trans_b else (*outer, k, n)
    return [
        (
            torch.randn(shape_a, device=device, generator=generator),
            torch.randn(shape_b, device=device, generator=generator),
        )
        for _ in range(min(count, MOST_SETS))
    ]


def torch_mm(layout: str) -> Call:
    """Give ``torch.mm`` for operands stored in ``layout``; for batches, ``torch.bmm``."""
    trans_a, trans_b = LAYOUTS[layout]

    def product(a: Tensor, b: Tensor) -> Tensor:
        a, b = a.mT if trans_a else a, b.mT if trans_b else b
        return torch.mm(a, b) if a.dim() == 2 else torch.bmm(a, b)

    return product


def stage_call(name: str, layout: str) -> Call:
    """Give a stage's operator (or ``sgemm``'s) for operands stored in ``layout``."""
    trans_a, trans_b = LAYOUTS[layout]
    op = getattr(torch.ops.xgemm, name)
    return lambda a, b: op(a, b, trans_a=trans_a, trans_b=trans_b)


def tflops(m: int, n: int, k: int, seconds: float) -> float:
    """Speed of one product in TFLOP/s."""
    return 2 * m * n * k / seconds / 1e12


def heat(seconds: float = 1.0, size: int = 4096) -> None:
    """Keep the GPU at FP32 products for a while, so that its clocks settle."""
    a, b = operands(size, size, size, "NN", rotate=False)[0]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(4):
            torch.mm(a, b)
        torch.cuda.synchronize()


class Turn:
    """One contender: a graph of ``calls`` products over rotating operands.

    Whatever it takes, the host's part of a call is not in its time. The graph holds the operands'
    addresses, so the turn keeps the operands.
    """

    def __init__(
        self, call: Call, sets: list[tuple[Tensor, Tensor]], sample_ms: float,
        calls: int | None = None,
    ) -> None:  # fmt: skip
        """Time one call, and capture as many as take ``sample_ms``, or ``calls``."""
        self._sets = sets
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        call(*sets[0])
        torch.cuda.synchronize()
        start.record()
        call(*sets[-1])
        end.record()
        end.synchronize()
        once = max(start.elapsed_time(end), 1e-3)
        self.calls = calls or max(1, min(200, round(sample_ms / once)))
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for i in range(self.calls):
                call(*sets[i % len(sets)])

    def sample(self) -> float:
        """Time one turn; seconds a call."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self._graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / self.calls


def interleaved(
    contenders: Mapping[str, Call],
    sets: list[tuple[Tensor, Tensor]],
    *,
    rounds: Mapping[str, int] | int = 9,
    sample_ms: float = 5.0,
    after: Callable[[str, list[float], int], None] | None = None,
) -> dict[str, list[float]]:
    """Time contenders turn by turn; seconds a call, one sample a round.

    ``rounds`` may differ by contender: one with fewer takes part in the first rounds only. Needs a
    GPU. Each contender has one turn before the first round that does not count. ``after`` is told
    of each sample as it comes: the contender, its samples so far, how many there will be.
    """
    turns = {name: Turn(call, sets, sample_ms) for name, call in contenders.items()}
    wanted = {n: rounds if isinstance(rounds, int) else rounds.get(n, 1) for n in turns}
    samples: dict[str, list[float]] = {name: [] for name in turns}
    for name, turn in turns.items():
        if wanted[name] > 1:
            turn.sample()
    for number in range(max(wanted.values())):
        for name, turn in turns.items():
            if number < wanted[name]:
                samples[name].append(turn.sample())
                if after is not None:
                    after(name, samples[name], wanted[name])
    return samples


class Clocks:
    """Records SM clock, power and temperature in the background, by pynvml or nvidia-smi.

    Use as a context manager; ``summary()`` afterwards, or between ``mark()``s, gives percentiles.
    Where neither tool is there, the summary is empty and ``source`` is None.
    """

    INTERVAL = 0.05
    FIELDS = ("sm_mhz", "power_w", "temperature_c")

    def __init__(self, index: int = 0) -> None:
        """Watch torch's GPU of this index; nothing starts before ``with``."""
        self.board, self.source = board(index), None
        self._rows: list[tuple[float, float, float]] = []
        self._since = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Clocks:
        """Start recording."""
        reader = self._pynvml() or self._nvidia_smi()
        if reader is not None:
            self._thread = threading.Thread(target=reader, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop recording; the rows stay."""
        self._stop.set()
        if self._process is not None:
            self._process.terminate()
        if self._thread is not None:
            self._thread.join(timeout=2)

    def _pynvml(self) -> Callable[[], None] | None:
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(self.board)
        except Exception:  # absent, or present without a driver: nvidia-smi is asked next
            return None
        self.source = "pynvml"

        def read() -> None:
            while not self._stop.wait(self.INTERVAL):
                try:
                    row = (
                        pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
                        pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
                        pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
                    )
                except pynvml.NVMLError:  # what the board does not tell
                    return
                self._rows.append(row)

        return read

    def _nvidia_smi(self) -> Callable[[], None] | None:
        command = [
            "nvidia-smi", f"--id={self.board}", f"--loop-ms={int(self.INTERVAL * 1e3)}",
            "--query-gpu=clocks.sm,power.draw,temperature.gpu", "--format=csv,noheader,nounits",
        ]  # fmt: skip
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError:
            return None
        self.source, self._process = "nvidia-smi", process

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                try:
                    sm, power, temperature = (float(value) for value in line.split(","))
                except ValueError:  # "[N/A]" on some boards
                    continue
                self._rows.append((sm, power, temperature))

        return read

    def mark(self) -> None:
        """Begin a new stretch: the next summary speaks of what comes from here on."""
        self._since = len(self._rows)

    def summary(self) -> dict[str, dict[str, float]]:
        """Give 5th, 50th and 95th percentile and maximum of each field since the last mark."""
        rows = self._rows[self._since :]
        if len(rows) < 2:
            return {}
        return {name: _spread([row[i] for row in rows]) for i, name in enumerate(self.FIELDS)}


def _spread(values: list[float]) -> dict[str, float]:
    cuts = quantiles(values, n=20, method="inclusive")
    return {"p5": cuts[0], "p50": median(values), "p95": cuts[-1], "max": max(values)}


def float64_error(result: Tensor, a: Tensor, b: Tensor, layout: str) -> dict[str, float]:
    """Compare with float64: the largest error over |A||B| in units of 2^-24, and what it may be.

    ``allowed`` is the bound K u / (1 - K u) of any order of summation, in the same units.
    """
    trans_a, trans_b = LAYOUTS[layout]
    a64, b64 = (a.t() if trans_a else a).double(), (b.t() if trans_b else b).double()
    k, unit = a64.shape[1], 2.0**-24
    error = (torch.mm(a64, b64) - result.double()).abs_()
    scale = torch.mm(a64.abs_(), b64.abs_()).clamp_min_(torch.finfo(torch.float32).tiny)
    return {
        "error_u": (error / scale).max().item() / unit if error.numel() else 0.0,
        "allowed_u": k / (1 - k * unit),
    }


def board(index: int = 0) -> str:
    """Name torch's GPU of this index as NVIDIA's tools know it, whichever are visible to torch."""
    if not torch.cuda.is_available():
        return str(index)
    return f"GPU-{torch.cuda.get_device_properties(index).uuid}"


def driver() -> dict[str, Any]:
    """Ask nvidia-smi for the driver and the board's limits; empty where there is none."""
    fields = ("driver_version", "name", "power.limit", "clocks.max.sm", "clocks.max.mem")
    try:
        answer = subprocess.run(
            ["nvidia-smi", f"--id={board()}", f"--query-gpu={','.join(fields)}",
             "--format=csv,noheader"],
            capture_output=True, text=True, timeout=20, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return {}
    first = answer.stdout.splitlines()[0].split(",")
    return dict(zip(fields, (value.strip() for value in first), strict=False))
