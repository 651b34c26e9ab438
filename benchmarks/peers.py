"""FP32 products of other libraries beside this one's: times in turns, errors against float64.

    python benchmarks/peers.py --json peers.json      # on a GPU; goes on where it stopped
    python benchmarks/peers.py --json few.json --peers xgemm triton --problems 4096
    python benchmarks/peers.py --show peers.json      # anywhere

Measured where they are installed: torch.mm in FP32 and TF32 (cuBLAS), Triton's ``tl.dot`` by
"tf32x3" and "bf16x6" (triton_mm.py), JAX's dot algorithms, CuPy. What is absent, or fails, has a
row that says so.

All get the same random normal operands, which rotate through memory, and take turns; medians.
torch's calls and Triton's are CUDA-graph replays timed by events. CuPy's are timed by events behind
a kernel that waits until they are enqueued. JAX has a stream of its own: the host's clock times
several calls of a program of `PRODUCTS` products, so the launches are in it as far as the GPU waits
for them. Errors are e = (C - exact) / (|A| |B|) in units of u = 2^-24, of the whole result.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import math
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import provenance
import recording
import records
import torch
import turns
from torch import Tensor

import xgemm_torch
from xgemm_torch.tools import accuracy, timing
from xgemm_torch.tools.contenders import Problem

if TYPE_CHECKING:
    from xgemm_torch.tools.console import Fitted

PROBLEMS = (
    *(Problem(f"square {size}", size, size, size) for size in (1024, 2048, 4096, 8192)),
    Problem("linear 768-3072 rows 8192", 8192, 3072, 768, "NT"),
    Problem("linear 4096-14336 rows 2048", 2048, 14336, 4096, "NT"),
    Problem("linear 4096-4096 rows 64", 64, 4096, 4096, "NT"),
)
# Measured first, in case that time runs out.
FIRST = ("square 4096", "square 1024", "linear 4096-14336 rows 2048", "square 8192")
ON_CPU = (
    Problem("square 64", 64, 64, 64),
    Problem("square 256", 256, 256, 256),
    Problem("linear 768-768 rows 64", 64, 768, 768, "NT"),
)
ROUNDS, SAMPLE_MS = 9, 5.0
HEAT_SECONDS = 0.3
# A program of JAX's has so many products, of operands of their own.
PRODUCTS = 8
# The GPU waits until the host has enqueued CuPy's calls: so many times what the host took before,
# and seconds; its clock is no faster than this.
AHEAD, AHEAD_ALWAYS, HERTZ = 1.5, 100e-6, 2e9
# Of a reason why something is not measured.
LONGEST_REASON = 160
TORCH_FP32 = "torch FP32"

Sets = list[tuple[Tensor, Tensor]]


class Absent(Exception):
    """A peer cannot be measured here; the message says why."""


class Prepared(Protocol):
    """A peer with a problem's operands."""

    def result(self) -> Tensor:
        """Give the product of the first operands."""

    def sample(self) -> float:
        """Time a turn; seconds a call."""


Prepare = Callable[[Problem, Sets], Prepared]


@dataclass(frozen=True)
class Peer:
    """Who multiplies.

    Attributes:
        name: its library first.
        what: what is called.
        clock: how its time is taken on a GPU.
        load: is given "cuda" or "cpu"; gives its version, and what prepares a problem. Raises
            `Absent`.
    """

    name: str
    what: str
    clock: str
    load: Callable[[str], tuple[str, Prepare]]

    @property
    def library(self) -> str:
        """The first word of the name."""
        return self.name.partition(" ")[0]


# --- torch's, ours and Triton's: calls on torch's stream ------------------------------------------


class Called:
    """A function of two tensors, its settings of torch's set around each use."""

    def __init__(
        self, call: timing.Call, sets: Sets,
        around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:  # fmt: skip
        """Keep the operands; nothing is called."""
        self._call, self._sets, self._around = call, sets, around
        self._turn: timing.Turn | turns.HostTurn | None = None

    def result(self) -> Tensor:
        """Give the product of the first operands."""
        with self._around():
            return self._call(*self._sets[0])

    def sample(self) -> float:
        """Time a turn; the first captures the graph."""
        with self._around():
            if self._turn is None:
                self._turn = (
                    timing.Turn(self._call, self._sets, SAMPLE_MS)
                    if self._sets[0][0].is_cuda
                    else turns.HostTurn(self._call, self._sets, SAMPLE_MS / 1e3)
                )
            return self._turn.sample()


def ours(precision: str) -> Callable[[str], tuple[str, Prepare]]:
    """``sgemm`` as a program calls it."""

    def prepare(p: Problem, sets: Sets) -> Prepared:
        trans_a, trans_b = timing.LAYOUTS[p.layout]
        op = torch.ops.xgemm.sgemm
        return Called(
            lambda a, b: op(a, b, trans_a=trans_a, trans_b=trans_b, precision=precision), sets
        )

    return lambda device: (xgemm_torch.__version__, prepare)


def of_torch(*, tf32: bool) -> Callable[[str], tuple[str, Prepare]]:
    """``torch.mm``; TF32 is set inside the measurement and put back."""

    def load(device: str) -> tuple[str, Prepare]:
        if tf32 and device == "cpu":
            raise Absent("TF32 needs a GPU")
        return str(torch.__version__), lambda p, sets: Called(
            timing.torch_mm(p.layout), sets, lambda: recording.tf32(tf32)
        )

    return load


def of_triton(precision: str) -> Callable[[str], tuple[str, Prepare]]:
    """``triton_mm.mm``; on a CPU in Triton's interpreter, where that is asked for."""

    def load(device: str) -> tuple[str, Prepare]:
        triton = installed("triton")
        if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
            raise Absent("needs a GPU")
        import triton_mm

        if not triton_mm.supported(precision):
            raise Absent(f"triton {triton.__version__} has no input_precision={precision!r} here")

        def prepare(p: Problem, sets: Sets) -> Prepared:
            trans_a, trans_b = timing.LAYOUTS[p.layout]
            return Called(
                lambda a, b: triton_mm.mm(
                    a.t() if trans_a else a, b.t() if trans_b else b, precision
                ),
                sets,
            )

        return triton.__version__, prepare

    return load


# --- JAX ------------------------------------------------------------------------------------------


class OfJax:
    """A compiled program of several products, on the operands' own memory."""

    def __init__(self, jax: ModuleType, algorithm: Any, layout: str, sets: Sets) -> None:
        """Compile nothing yet."""
        self._jax, self._gpu = jax, sets[0][0].is_cuda
        trans_a, trans_b = timing.LAYOUTS[layout]
        over = ((0 if trans_a else 1,), (1 if trans_b else 0,))

        def product(a: Any, b: Any) -> Any:
            return jax.lax.dot_general(
                a, b, (over, ((), ())), precision=algorithm,
                preferred_element_type=jax.numpy.float32,
            )  # fmt: skip

        self._program = jax.jit(lambda pairs: [product(a, b) for a, b in pairs])
        share = jax.dlpack.from_dlpack
        self._pairs = [(share(a), share(b)) for a, b in sets[:PRODUCTS]]
        self._repeats = 0

    def result(self) -> Tensor:
        """Give the product of the first operands, copied into torch's memory."""
        products = self._jax.block_until_ready(self._program(self._pairs))
        return torch.from_dlpack(products[0]).clone()

    def sample(self) -> float:
        """Time a turn; the first finds how many calls it takes."""
        if not self._repeats:
            self._run(1)
            self._repeats = max(1, min(200, math.ceil(2 * SAMPLE_MS / 1e3 / self._run(1))))
        return self._run(self._repeats) / (self._repeats * len(self._pairs))

    def _run(self, repeats: int) -> float:
        if self._gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            made = self._program(self._pairs)
        self._jax.block_until_ready(made)
        return time.perf_counter() - start


def of_jax(preset: str) -> Callable[[str], tuple[str, Prepare]]:
    """``lax.dot_general`` by a preset of its dot algorithms."""

    def load(device: str) -> tuple[str, Prepare]:
        jax = installed("jax")
        try:
            platforms = {d.platform for d in jax.devices()}
        except RuntimeError as error:
            raise Absent(f"jax {jax.__version__}: {reason(error)}") from error
        if device == "cuda" and not platforms & {"gpu", "cuda"}:
            raise Absent(f"jax {jax.__version__} is installed without CUDA")
        algorithm = getattr(jax.lax.DotAlgorithmPreset, preset, None)
        if algorithm is None:
            raise Absent(f"jax {jax.__version__} has no {preset}")
        return jax.__version__, lambda p, sets: OfJax(jax, algorithm, p.layout, sets)

    return load


# --- CuPy -----------------------------------------------------------------------------------------


class OfCupy:
    """``a @ b`` of CuPy on the operands' own memory, in a stream that torch's events can time."""

    def __init__(self, cupy: ModuleType, layout: str, sets: Sets) -> None:
        """Call once: the first call loads the library."""
        trans_a, trans_b = timing.LAYOUTS[layout]
        self._pairs = [
            (cupy.from_dlpack(a.t() if trans_a else a), cupy.from_dlpack(b.t() if trans_b else b))
            for a, b in sets
        ]
        self._sets = sets  # whose memory it is
        self._torch_stream = torch.cuda.Stream()
        self._stream = cupy.cuda.ExternalStream(self._torch_stream.cuda_stream)
        self._calls, self._host = 1, 1e-3

    def result(self) -> Tensor:
        """Give the product of the first operands, copied into torch's memory."""
        torch.cuda.synchronize()
        with self._stream:
            a, b = self._pairs[0]
            product = a @ b
            self._stream.synchronize()
            copied = torch.from_dlpack(product).clone()
        torch.cuda.synchronize()
        return copied

    def sample(self) -> float:
        """Time a turn."""
        if self._calls == 1:
            self._run()
            self._calls = max(2, min(200, round(SAMPLE_MS / 1e3 / max(self._run(), 1e-6))))
        return self._run()

    def _run(self) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self._torch_stream), self._stream:
            torch.cuda._sleep(int(HERTZ * (AHEAD_ALWAYS + AHEAD * self._host * self._calls)))
            start.record()
            began = time.perf_counter()
            for i in range(self._calls):
                a, b = self._pairs[i % len(self._pairs)]
                a @ b
            self._host = (time.perf_counter() - began) / self._calls
            end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / self._calls


def of_cupy(device: str) -> tuple[str, Prepare]:
    """CuPy's product; CUPY_TF32 would make it TF32's."""
    cupy = installed("cupy")
    if device == "cpu":
        raise Absent("needs a GPU")
    if os.environ.get("CUPY_TF32", "0") != "0":
        raise Absent("CUPY_TF32 makes it TF32's")
    return cupy.__version__, lambda p, sets: OfCupy(cupy, p.layout, sets)


# --- all of them ----------------------------------------------------------------------------------


def installed(name: str) -> ModuleType:
    """Give the module, or raise `Absent`: it is not there, or does not load."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise Absent("not installed") from error
        raise Absent(f"does not load: {reason(error)}") from error
    except Exception as error:  # a library of CUDA's that is missing, say
        raise Absent(f"does not load: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """The first line of an exception's message, with its type where that says more."""
    first = str(error).strip().partition("\n")[0][:LONGEST_REASON]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


GRAPH, HOST, EVENTS = "CUDA graph, events", "host clock", "events"
PEERS = (
    Peer("xgemm fp32", 'sgemm, precision="fp32"', GRAPH, ours("fp32")),
    Peer("xgemm ieee", 'sgemm, precision="ieee"', GRAPH, ours("ieee")),
    Peer(TORCH_FP32, "torch.mm, cuBLAS FP32", GRAPH, of_torch(tf32=False)),
    Peer("torch TF32", "torch.mm, cuBLAS TF32", GRAPH, of_torch(tf32=True)),
    Peer("triton tf32x3", 'tl.dot, input_precision="tf32x3"', GRAPH, of_triton("tf32x3")),
    Peer("triton bf16x6", 'tl.dot, input_precision="bf16x6"', GRAPH, of_triton("bf16x6")),
    *(
        Peer(f"jax {short}", f"lax.dot_general, {preset}", HOST, of_jax(preset))
        for short, preset in (
            ("bf16x3", "BF16_BF16_F32_X3"), ("bf16x6", "BF16_BF16_F32_X6"),
            ("tf32x3", "TF32_TF32_F32_X3"),
        )
    ),
    Peer("cupy FP32", "a @ b, cuBLAS FP32", EVENTS, of_cupy),
)  # fmt: skip


def load(peers: Sequence[Peer], device: str) -> tuple[dict[str, Prepare], dict[str, Any]]:
    """Load what is there; give it, and what a record has of each peer."""
    ready, told = {}, {}
    for peer in peers:
        entry: dict[str, Any] = {
            "what": peer.what, "clock": peer.clock if device == "cuda" else HOST,
            "version": None, "absent": None,
        }  # fmt: skip
        try:
            entry["version"], ready[peer.name] = peer.load(device)
        except Absent as error:
            entry["absent"] = str(error)
        told[peer.name] = entry
    return ready, told


def measure(
    p: Problem, ready: Mapping[str, Prepare], device: str, *, rounds: int = ROUNDS
) -> dict[str, Any]:
    """Measure all peers on one problem: microseconds, errors, and what failed, by their names."""
    sets = timing.operands(p.m, p.n, p.k, p.layout, device=device, seed=1, rotate=device == "cuda")
    a, b = sets[0]
    trans_a, trans_b = timing.LAYOUTS[p.layout]
    exact = accuracy.Exact(a.t() if trans_a else a, b.t() if trans_b else b)
    prepared: dict[str, Prepared] = {}
    errors, failed = {}, {}
    for name, prepare in ready.items():
        try:
            made = prepare(p, sets)
            errors[name] = asdict(exact.errors(made.result()))
            made.sample()
            prepared[name] = made
        except Exception as error:  # of one library: the others are measured
            failed[name] = reason(error)
            errors.pop(name, None)
    del exact
    if device == "cuda":
        torch.cuda.empty_cache()
        timing.heat(HEAT_SECONDS)
    samples: dict[str, list[float]] = {name: [] for name in prepared}
    order = list(prepared)
    r = random.Random(p.m + p.n + p.k)
    for number in range(rounds + 1):
        r.shuffle(order)
        for name in order:
            seconds = prepared[name].sample()
            if number:  # the first round does not count
                samples[name].append(seconds)
    return {
        "problem": [p.batch, p.m, p.n, p.k, p.layout],
        "us": {name: 1e6 * median(times) for name, times in samples.items()},
        "errors": errors,
        "failed": failed,
    }


def run(
    record: dict[str, Any], problems: Sequence[Problem], ready: Mapping[str, Prepare], device: str,
    save: Callable[[], None], *, seconds: float = math.inf, quiet: bool = False,
) -> bool:  # fmt: skip
    """Add the problems that the record lacks; whether all are there. ``save`` follows each."""
    from tqdm import tqdm

    began = time.monotonic()
    lacking = [p for p in problems if p.label not in record["products"]]
    lacking.sort(key=lambda p: FIRST.index(p.label) if p.label in FIRST else len(FIRST))
    progress = tqdm(lacking, unit="problem", disable=True if quiet else None)
    for p in progress:
        if time.monotonic() - began > seconds:
            return False
        progress.set_postfix_str(p.label)
        record["products"][p.label] = measure(p, ready, device)
        save()
        if device == "cuda":
            torch.cuda.empty_cache()
    return True


def in_order(record: Mapping[str, Any]) -> list[str]:
    """The labels of a record's problems, as `PROBLEMS` has them."""
    known = [p.label for p in (*PROBLEMS, *ON_CPU)]
    return sorted(
        record["products"],
        key=lambda label: known.index(label) if label in known else len(known),
    )


def speed(entry: Mapping[str, Any], name: str) -> float | None:
    """TFLOP/s of a peer on a problem; None where it was not measured."""
    batch, m, n, k, _ = entry["problem"]
    us = entry["us"].get(name)
    return None if us is None else batch * timing.tflops(m, n, k, us * 1e-6)


def why_not(record: Mapping[str, Any], label: str, name: str) -> str:
    """Why a peer has no time on a problem."""
    absent = record["peers"][name]["absent"]
    return absent or record["products"][label]["failed"].get(name, "not measured")


def table(record: Mapping[str, Any]) -> Fitted:
    """A row for each problem and peer."""
    from xgemm_torch.tools.console import Column, Fitted

    made = Fitted(
        f"Products on {record['facts']['device']}; errors in u = 2^-24 of |A| |B|",
        [
            Column("problem"), Column("peer"), Column("version", spare=2),
            Column("us", right=True), Column("TFLOP/s", right=True),
            Column("x torch FP32", right=True), Column("root mean square", right=True),
            Column("largest", right=True), Column("mean", right=True, spare=1),
            Column("not measured", words=20),
        ],
    )  # fmt: skip
    names = list(record["peers"])
    for label in in_order(record):
        entry = record["products"][label]
        reference = entry["us"].get(TORCH_FP32)
        for number, name in enumerate(names):
            us, e = entry["us"].get(name), entry["errors"].get(name)
            version = (record["peers"][name]["version"] or "-").partition("+")[0]
            cells = ["-"] * 6 + [why_not(record, label, name).replace("[", r"\[")]
            if us is not None and e is not None:
                cells = [
                    f"{us:.1f}", f"{speed(entry, name):.3g}",
                    f"{reference / us:.2f}" if reference else "-",
                    f"{e['rms']:.3g}", f"{e['largest']:.3g}", f"{e['mean']:+.2g}", "",
                ]  # fmt: skip
            made.add_row(label if number == 0 else "", name, version, *cells,
                         end_section=number == len(names) - 1)  # fmt: skip
    return made


def run_measure(options: argparse.Namespace) -> bool:
    """Measure into the record that is named; whether all of it is there."""
    recording.require_yardstick("peers", gpu=False)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # JAX would take three quarters of the GPU's memory, and run products of one program side by
    # side in a CUDA graph: here they follow each other, as those of the others do.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_enable_command_buffer=")
    peers = [p for p in PEERS if not options.peers or p.library in options.peers]
    ready, told = load(peers, device)
    problems = [
        p
        for p in (PROBLEMS if device == "cuda" else ON_CPU)
        if not options.problems or any(part in p.label for part in options.problems)
    ]
    record: dict[str, Any] = {"facts": provenance.facts(), "peers": told, "products": {}}
    path = options.json
    if path.exists():
        found = records.read(path)
        same = found["facts"]["device"] == record["facts"]["device"] and found["peers"] == told
        if not same:
            raise SystemExit(f"peers: {path} is of another GPU, or of other peers")
        record = found | {"finished": False}
    began = time.monotonic()
    if device == "cuda":
        timing.heat(1.0)
    with timing.Clocks() as clocks:
        done = run(record, problems, ready, device, lambda: records.write(path, record),
                   seconds=options.seconds)  # fmt: skip
    record["clocks"] = clocks.summary()
    record["seconds"] = record.get("seconds", 0.0) + time.monotonic() - began
    record["finished"] = done
    records.write(path, record)
    return done


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or show; 3 when time ran out before all was there."""
    parser = recording.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=math.inf,
                        help="begin no problem later than")  # fmt: skip
    parser.add_argument("--problems", nargs="+", metavar="PART",
                        help="problems whose names have one of these parts")  # fmt: skip
    parser.add_argument("--peers", nargs="+", metavar="LIBRARY",
                        choices=sorted({p.library for p in PEERS}))  # fmt: skip
    options = parser.parse_args(arguments)
    done = run_measure(options) if options.json else True
    from xgemm_torch.tools.console import console

    console().print(table(records.read(options.json or options.show)))
    return 0 if done else 3


if __name__ == "__main__":
    sys.exit(main())
