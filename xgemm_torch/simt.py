"""Controls of the emulator, in which a stage's CUDA source runs on the CPU.

It runs a stage's threads in an order of its own choosing and reports races, divergent barriers,
deadlocks, and accesses that are out of bounds or misaligned, as a RuntimeError with file and line.
It also tells what a kernel does: `trace` lists a block's accesses, `traffic` counts a grid's.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_args

import torch
from torch import Tensor

from . import _C
from .types import Order

ORDERS: tuple[Order, ...] = get_args(Order)


def configure(
    *,
    order: Order | None = None,
    seed: int | None = None,
    skip: str | None = None,
    row: int | None = None,
    sm_count: int | None = None,
    split_k_size: int | None = None,
    slab_bytes: int | None = None,
) -> contextlib.AbstractContextManager[dict[str, Any]]:
    """Change how the emulator runs, until the end of the ``with`` block that it is for.

    The settings are the process's, not the thread's. What is left out stays as it is. The call
    alone changes nothing, but refuses what is wrong: ``with simt.configure(seed=3): ...``.

    Args:
        order: "forward", "reverse" or "random": the order in which threads and blocks run.
        seed: of the random order.
        skip: "file.cu:LINE", one of `sites`: what stands there is left out, to see that its
            absence is noticed; "" for none. A place becomes a site when the kernel comes to it: run
            it once with all its sites.
        row: of the tile table of a stage that is called by its name, on a GPU as well; -1 to have
            it chosen. A stage without such a row raises ValueError then.
        sm_count: multiprocessors of the GPU that the emulator stands for, 132 at first: stages
            that share out work among them run, and add, as they would there.
        split_k_size: of k, in each chain of the strict product, on a CPU, in the emulator and
            on a GPU: a multiple of 32; 0 for one chain, -1 for what
            `xgemm_torch.split_k_size` gives.
        slab_bytes: of limbs, in the emulator and on a GPU: the larger operand of an emulated
            product is decomposed in slabs of so many bytes, of whole 256 rows; -1 for 2^29.

    Returns:
        A context manager that gives the settings in force inside the block.

    Raises:
        TypeError: a name that is no string, a number that is no int.
        ValueError: an unknown order, a place that is not "file.cu:LINE" or no site, which the
            message then names near ones of; a number out of its range: multiprocessors below 1,
            a row, a split_k_size or slab_bytes below -1, slab_bytes of 0, a seed below 0 or above
            2^64 - 1.
    """
    asked = {
        "order": order, "seed": seed, "skip": skip, "row": row, "sm_count": sm_count,
        "split_k_size": split_k_size, "slab_bytes": slab_bytes,
    }  # fmt: skip
    changes = {name: value for name, value in asked.items() if value is not None}
    _refuse(changes)
    return _configured(changes)


# The least and the most of each number: what the compiled module's own types hold.
_RANGES = {
    "seed": (0, 2**64 - 1),
    "row": (-1, 2**31 - 1),
    "sm_count": (1, 2**31 - 1),
    "split_k_size": (-1, 2**63 - 1),
    "slab_bytes": (-1, 2**63 - 1),
}
_SPLIT_K_STEP = 32  # as in csrc/xgemm/core/split_k.h


def _refuse(changes: dict[str, Any]) -> None:
    """Raise what is wrong with settings."""
    for name, value in changes.items():
        kind: Any = int if name in _RANGES else str
        if not isinstance(value, kind) or isinstance(value, bool):
            raise TypeError(
                f"simt: {name} must be of type {kind.__name__}, got {type(value).__name__}"
            )
        if name not in _RANGES:
            continue
        least, most = _RANGES[name]
        if least is not None and value < least:
            raise ValueError(f"simt: {name} must be {least} or more, got {value}")
        if most is not None and value > most:
            raise ValueError(f"simt: {name} must be {most} or less, got {value}")
    if (size := changes.get("split_k_size", 0)) % _SPLIT_K_STEP and size > 0:
        raise ValueError(f"simt: split_k_size must be a multiple of {_SPLIT_K_STEP}, got {size}")
    if changes.get("slab_bytes") == 0:
        raise ValueError("simt: slab_bytes must be -1 or positive, got 0")
    order, skip = changes.get("order", ORDERS[0]), changes.get("skip", "")
    if order not in ORDERS:
        raise ValueError(f"simt: no order named '{order}'; there are: {', '.join(ORDERS)}")
    file, _, line = skip.rpartition(":")
    if skip and not (file and line.isdigit()):
        raise ValueError(f"simt: skip is a place as in 'file.cu:42', or empty, got '{skip}'")
    if skip and skip not in (known := json.loads(_C.simt_known_places())):
        raise ValueError(f"simt: no site at '{skip}'; {_near(file, int(line), known)}")


_NEAR = 8  # sites that a message names


def _near(file: str, line: int, known: list[str]) -> str:
    """The sites of a file nearest to a line, or the files that have some, in words."""
    files = sorted({_by_line(place)[0] for place in known})
    if file not in files:
        some = f"those with sites are {', '.join(files)}" if files else "no kernel has"
        return f"{file} has not run with all its sites in this process: {some}"
    lines = sorted(number for name, number in map(_by_line, known) if name == file)
    near = sorted(sorted(lines, key=lambda number: abs(number - line))[:_NEAR])
    return f"near it are {', '.join(f'{file}:{number}' for number in near)}" + (
        f" (of {len(lines)} in this file)" if len(lines) > len(near) else ""
    )


@contextlib.contextmanager
def _configured(changes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Hold the settings with these changes in force."""
    settings = _settings()
    now = settings | changes
    _set(now)
    try:
        yield now
    finally:
        _set(settings)


SITES = (
    "barrier",
    "warp barrier",
    "commit",
    "wait",
    "named barrier",
    "cluster barrier",
    "mbarrier expect",
    "mbarrier arrival",
    "mbarrier wait",
    "wgmma fence",
    "wgmma register fence",
    "wgmma commit",
    "wgmma wait",
    "signal",
    "signal wait",
    "launch wait",
)
"""Kinds of `sites`: __syncthreads, __syncwarp, the two that order cp.async, bar.sync, the barrier
of a cluster, what is done with mbarriers, the four that order wgmma, those between the blocks of a
grid, and the wait of a launch for the one before it. A "wgmma fence" is fence.proxy.async, of what
threads store to shared memory, a "wgmma register fence" wgmma.fence. An expect is an arrival, too,
and is left out with it."""


def sites(kind: str | None = None) -> list[str]:
    """What has ordered threads and copies so far in this process, as "file.cu:LINE".

    Args:
        kind: one of `SITES`, or None for all.

    Returns:
        The places, each once, as `configure` takes them for ``skip``.

    Raises:
        ValueError: no such kind.
    """
    if kind is not None and kind not in SITES:
        raise ValueError(f"simt: no sites of kind '{kind}'; there are: {', '.join(SITES)}")
    return [place for found, place in json.loads(_C.simt_sites()) if kind in (None, found)]


def mma_step(acc: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """One instruction step of Hopper's tensor core, to the bit: ``acc + a @ b.T`` over 16 products.

    All products and the accumulator are added at once: each is truncated toward zero to 25 fraction
    bits below the largest exponent among them, and the sum is truncated to float32.

    Args:
        acc: float32, of shape (m, n), n a multiple of 8.
        a: float16 or bfloat16, of shape (m, 16).
        b: of the same type, of shape (n, 16).

    Returns:
        The sum, like ``acc``.

    Raises:
        ValueError: a wrong shape or type.
    """
    types = (torch.float16, torch.bfloat16)
    if a.dtype not in types or b.dtype != a.dtype or acc.dtype != torch.float32:
        raise ValueError("simt: mma_step takes float16 or bfloat16 operands and a float32 sum")
    if a.shape[1:] != (16,) or b.shape[1:] != (16,) or acc.shape != (a.shape[0], b.shape[0]):
        raise ValueError("simt: mma_step takes (m, n), (m, 16) and (n, 16)")
    halves = [x.contiguous().view(torch.int16).numpy().tobytes() for x in (a, b)]
    told = _C.simt_tensor_core_step(
        a.dtype == torch.bfloat16, *halves, acc.contiguous().numpy().tobytes()
    )
    return torch.frombuffer(bytearray(told), dtype=torch.float32).view(acc.shape)


KINDS = (
    "global load",
    "global store",
    "shared load",
    "shared store",
    "copy issue",
    "copy wait",
    "barrier",
    "tma",
    "mbarrier init",
    "mbarrier arrival",
    "mbarrier copies",
    "mbarrier wait",
    "named barrier",
    "mma",
    "wgmma",
    "wgmma commit",
    "wgmma wait",
)
"""Kinds of events, in the order of their numbers in `Trace.table`. From "tma" on they are what
threads start or wait for, and are in a trace only if it asks for them. "mbarrier copies" is an
arrival that comes when the thread's cp.asyncs have landed."""

COLUMNS = (
    "launch",
    "kind",
    "thread",
    "phase",
    "place",
    "bytes",
    "operand",
    "i",
    "j",
    "array",
    "offset",
)
"""Columns of `Trace.table`."""


@dataclass(frozen=True)
class Place:
    """Where in the source something is done.

    Attributes:
        at: the line of the stage, "15_vec4_128x128.cu:57".
        via: the line of the header that the stage calls there, "gmem.h:13", or "".
    """

    at: str
    via: str = ""


@dataclass(frozen=True)
class SharedArray:
    """A block's array in shared memory.

    Attributes:
        name: as the source calls it.
        offset: its first byte, counted from the start of the block's shared memory.
        bytes: its size.
    """

    name: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class Launch:
    """A kernel launch of a stage: most have one.

    Attributes:
        grid: blocks along x, y, z.
        threads: threads of a block along x, y, z.
        arrays: the block's arrays in shared memory.
    """

    grid: tuple[int, int, int]
    threads: tuple[int, int, int]
    arrays: tuple[SharedArray, ...]


@dataclass(frozen=True)
class Box:
    """A box that TMA moves from a tensor to shared memory, axis 0 first.

    Attributes:
        operand: "A", "B", "W" (the workspace), or "" where all of the box is outside the tensor.
        base: bytes from the operand's first element to the tensor's.
        at: the box's first element along the three axes; it may be outside, where TMA fills zeros.
        size: of the tensor along them.
        box: of the box.
        stride: of axes 1 and 2, in bytes.
        element: bytes of one.
        swizzle: bytes of a row whose 16-byte chunks change places; 0 for none.
        array: index of the launch's array with the mbarrier that counts its bytes.
        offset: byte of that array.
        blocks: bits of the blocks of the cluster that it goes to; 0: the one that asks.
    """

    operand: str
    base: int
    at: tuple[int, int, int]
    size: tuple[int, int, int]
    box: tuple[int, int, int]
    stride: tuple[int, int]
    element: int
    swizzle: int
    array: int
    offset: int
    blocks: int


@dataclass(frozen=True)
class Product:
    """What a wgmma multiplies: 64 rows of A by columns of B, 16 deep, both K-major.

    Attributes:
        a: byte of the block's shared memory where A begins; -1 where it is in registers.
        a_group: bytes from a group of 8 rows to the next.
        a_row: bytes of a row with its swizzle: 64 or 128.
        b, b_group, b_row: the same of B.
        columns: of B.
        tile: number of the accumulators, in the order in which the warpgroup took them up.
        accumulate: whether it adds to them.
    """

    a: int
    a_group: int
    a_row: int
    b: int
    b_group: int
    b_row: int
    columns: int
    tile: int
    accumulate: bool


@dataclass(frozen=True)
class Event:
    """What one thread does at one place of its program.

    Attributes:
        kind: one of `KINDS`. A "copy issue" is a cp.async, with both its ends.
        thread: its number in the block; a warp is 32 of consecutive numbers.
        phase: barriers that the block has passed, from 0.
        place: where in the source.
        bytes: how many are moved; for a "copy wait", how many have landed by it; 0 for a barrier.
            For an "mbarrier init" the arrivals of a phase, for an "mbarrier arrival" the bytes that
            it announces, for an "mbarrier wait" the phases that have ended by then; for a "named
            barrier" its threads, for a "wgmma wait" the groups that it leaves in flight.
        operand: the end in global memory: "A", "B" or "D", "W" for the workspace, "" for none. A
            "copy issue" without an operand fills with zeros.
        i: row of the operand's element as the product sees it, whatever the layout. Of several
            elements, which lie next to each other in memory, the first; -1 for none. Of a "tma"
            and a "wgmma" an index into `Trace.boxes` and `Trace.products`, of a "named barrier"
            its number.
        j: its column.
        array: the end in shared memory, or where the mbarrier is: the array's name, "" for none.
        offset: byte of that array, -1 for none.
    """

    kind: str
    thread: int
    phase: int
    place: Place
    bytes: int
    operand: str
    i: int
    j: int
    array: str
    offset: int


@dataclass(frozen=True)
class Trace:
    """What one block does, of every launch of the stage that has such a block.

    Iterating gives an `Event` for each row of the table: thread by thread, each in the order of its
    program.

    Attributes:
        stage: its name.
        m, n, k: sizes of the problem.
        trans_a, trans_b: whether A, B are stored transposed.
        block: number of the block in the grid.
        launches: the launches that have such a block.
        places: where events happen.
        table: int64 tensor of shape (events, len(COLUMNS)). "kind", "launch" and "place" are
            indices into `KINDS`, `launches` and `places`, "operand" is the letter's code point or
            0, "array" an index into the launch's arrays or -1; the rest as in `Event`.
        frames: for each place the lines from the outermost one's, which is the stage's where the
            call was inlined, through headers that call each other to the instruction's.
        boxes: what TMA moves.
        products: what wgmmas multiply.
    """

    stage: str
    m: int
    n: int
    k: int
    trans_a: bool
    trans_b: bool
    block: int
    launches: tuple[Launch, ...]
    places: tuple[Place, ...]
    table: Tensor = field(repr=False)
    frames: tuple[tuple[str, ...], ...] = ()
    boxes: tuple[Box, ...] = ()
    products: tuple[Product, ...] = ()

    def __len__(self) -> int:
        """The number of events."""
        return self.table.shape[0]

    def __iter__(self) -> Iterator[Event]:
        """Every event."""
        for row in self.table.tolist():
            cell = dict(zip(COLUMNS, row, strict=True))
            arrays = self.launches[cell["launch"]].arrays
            yield Event(
                kind=KINDS[cell["kind"]],
                thread=cell["thread"],
                phase=cell["phase"],
                place=self.places[cell["place"]],
                bytes=cell["bytes"],
                operand=chr(cell["operand"]) if cell["operand"] else "",
                i=cell["i"],
                j=cell["j"],
                array=arrays[cell["array"]].name if cell["array"] >= 0 else "",
                offset=cell["offset"],
            )

    def column(self, name: str) -> Tensor:
        """One column of the table, an int64 tensor with an element for each event.

        Raises:
            ValueError: no such column.
        """
        if name not in COLUMNS:
            raise ValueError(f"simt: no column named '{name}'; there are: {', '.join(COLUMNS)}")
        return self.table[:, COLUMNS.index(name)]

    def where(self, **values: str | int) -> Trace:
        """The events that have all of these values, as a trace.

        Args:
            **values: a column's name and a value: for "kind" one of `KINDS`, for "operand" its
                letter, for "array" its name, for "place" the line of the stage, otherwise a number.

        Raises:
            ValueError: no such column or kind.
        """
        keep = torch.ones(len(self), dtype=torch.bool)
        for name, value in values.items():
            column = self.column(name)
            if name == "kind" and value not in KINDS:
                raise ValueError(f"simt: no kind named '{value}'; there are: {', '.join(KINDS)}")
            if name == "kind":
                keep &= column == KINDS.index(str(value))
            elif name == "operand":
                keep &= column == (ord(str(value)) if value else 0)
            elif name == "place":
                at = [index for index, place in enumerate(self.places) if place.at == value]
                keep &= torch.isin(column, torch.tensor(at, dtype=torch.int64))
            elif name == "array":
                one = torch.zeros_like(keep)
                for number, launch in enumerate(self.launches):
                    for index, array in enumerate(launch.arrays):
                        if array.name == value:
                            one |= (column == index) & (self.column("launch") == number)
                keep &= one
            else:
                keep &= column == int(value)
        return replace(self, table=self.table[keep])


def trace(
    stage: str,
    m: int,
    n: int,
    k: int,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
    block: int = 0,
    asynchronous: bool = False,
) -> Trace:
    """Run a stage on the CPU and list what one block does.

    Operands are dense and begin at multiples of 512 bytes; alpha is 1, beta 0. Threads run in
    forward order, whatever `configure` says; its row holds.

    Args:
        stage: its name.
        m: rows of A and of the product.
        n: columns of B and of the product.
        k: columns of A and rows of B. A block's events take memory: about 100 bytes each.
        trans_a: whether A is stored transposed, as in `xgemm_torch.sgemm`.
        trans_b: whether B is.
        block: its number in the grid; blockIdx.x is the fastest.
        asynchronous: whether to list what threads start and wait for, too: TMA, mbarriers, named
            barriers, mma and wgmma.

    Returns:
        The block's events, with the launches and the places of the source that they belong to.

    Raises:
        ValueError: no such stage or block, a size below 1, or a problem that the stage refuses.
    """
    more = (True,) if asynchronous else ()
    head, rows = _C.simt_trace(stage, m, n, k, trans_a, trans_b, block, *more)
    told = json.loads(head)
    table = torch.frombuffer(bytearray(rows), dtype=torch.int64) if rows else torch.empty(0).long()
    return Trace(
        stage=stage,
        m=m,
        n=n,
        k=k,
        trans_a=trans_a,
        trans_b=trans_b,
        block=block,
        launches=tuple(
            Launch(
                tuple(row["grid"]),
                tuple(row["threads"]),
                tuple(SharedArray(*array) for array in row["arrays"]),
            )
            for row in told["launches"]
        ),
        places=tuple(Place(*place) for place in told["places"]),
        table=table.view(-1, len(COLUMNS)),
        frames=tuple(map(_outermost_first, told["places"], told.get("frames", ()))),
        boxes=tuple(_box(*row) for row in told.get("boxes", ())),
        products=tuple(Product(**_product(row)) for row in told.get("products", ())),
    )


def _outermost_first(place: list[str], inner: list[str]) -> tuple[str, ...]:
    """A place's frames, neighbours that are one line once; of what is no instruction its place."""
    lines = [*reversed(inner)] or [line for line in place if line]
    return tuple(line for i, line in enumerate(lines) if not i or line != lines[i - 1])


def _box(operand: str, base: int, *row: Any) -> Box:
    """A box of a row of the module."""
    at, size, box, stride, *rest = row
    return Box(operand, base, tuple(at), tuple(size), tuple(box), tuple(stride), *rest)


def _product(row: list[int]) -> dict[str, Any]:
    """What a product is made of, from a row of the module."""
    return {f.name: row[i] for i, f in enumerate(fields(Product))} | {"accumulate": bool(row[-1])}


@dataclass(frozen=True)
class SharedCounts:
    """Accesses of one kind to shared memory.

    Attributes:
        requests: warp instructions.
        bytes: asked for by their lanes, broadcasts counted for each lane.
        wavefronts: passes through the 32 banks that they take.
        ideal: passes that they would take without a bank conflict.
        ways: of the worst conflict, 1 for none, 0 where there is no access.
    """

    requests: int = 0
    bytes: int = 0
    wavefronts: int = 0
    ideal: int = 0
    ways: int = 0

    @property
    def conflicts(self) -> int:
        """Wavefronts beyond the ideal."""
        return self.wavefronts - self.ideal

    def __add__(self, other: SharedCounts) -> SharedCounts:
        """Both together."""
        return SharedCounts(
            self.requests + other.requests,
            self.bytes + other.bytes,
            self.wavefronts + other.wavefronts,
            self.ideal + other.ideal,
            max(self.ways, other.ways),
        )


@dataclass(frozen=True)
class GlobalCounts:
    """Accesses of one kind to global memory.

    Attributes:
        requests: warp instructions.
        bytes: asked for by their lanes, the same word counted for each lane.
        sectors: of 32 bytes, that the requests touch.
        ideal: sectors that each request's different words would fill.
        most: sectors of the worst request.
    """

    requests: int = 0
    bytes: int = 0
    sectors: int = 0
    ideal: int = 0
    most: int = 0

    @property
    def sectors_per_request(self) -> float:
        """The mean; 0 where there is no request."""
        return self.sectors / self.requests if self.requests else 0.0

    def __add__(self, other: GlobalCounts) -> GlobalCounts:
        """Both together."""
        return GlobalCounts(
            self.requests + other.requests,
            self.bytes + other.bytes,
            self.sectors + other.sectors,
            self.ideal + other.ideal,
            max(self.most, other.most),
        )


@dataclass(frozen=True)
class Counts:
    """Accesses to both memories. A cp.async is a global load and a shared store.

    Attributes:
        shared_load, shared_store: of shared memory.
        global_load, global_store: of global memory.
    """

    shared_load: SharedCounts = SharedCounts()
    shared_store: SharedCounts = SharedCounts()
    global_load: GlobalCounts = GlobalCounts()
    global_store: GlobalCounts = GlobalCounts()

    def __add__(self, other: Counts) -> Counts:
        """Both together."""
        return Counts(
            self.shared_load + other.shared_load,
            self.shared_store + other.shared_store,
            self.global_load + other.global_load,
            self.global_store + other.global_store,
        )


@dataclass(frozen=True)
class Traffic:
    """What a stage asks of memory for one product.

    Attributes:
        stage: its name.
        m, n, k: sizes of the problem.
        trans_a, trans_b: whether A, B are stored transposed.
        total: over all blocks of all launches.
        lines: the same by line of the stage, "15_vec4_128x128.cu:57".
        places: the same by line of the stage and of the header that it calls.
    """

    stage: str
    m: int
    n: int
    k: int
    trans_a: bool
    trans_b: bool
    total: Counts
    lines: dict[str, Counts]
    places: dict[Place, Counts]

    @property
    def fmas(self) -> int:
        """Multiply-adds of the product, m * n * k; a warp instruction does 32."""
        return self.m * self.n * self.k


def traffic(
    stage: str, m: int, n: int, k: int, *, trans_a: bool = False, trans_b: bool = False
) -> Traffic:
    """Run a stage on the CPU and count what its warps ask of memory, over the whole grid.

    A request is the n-th execution of one instruction by the lanes of a warp between two barriers.
    Shared memory is modelled as 32 banks of 4 bytes, through which a request passes 128 bytes at a
    time: 8-byte accesses by half warps and 16-byte ones by quarters, or, for loads of which pairs
    of lanes want the same address, twice as many lanes. Global memory moves in sectors of 32 bytes;
    there are no caches in the model.

    The counts are of the source as it is written, on dense operands that begin at multiples of 512
    bytes, alpha 1 and beta 0. nvcc may do better: it merges neighbouring 4-byte accesses of a
    thread into one of 16 bytes where it can prove the alignment.

    Args:
        stage: its name.
        m: rows of A and of the product.
        n: columns of B and of the product.
        k: columns of A and rows of B. Every access is looked at: 256 x 256 x 256 takes seconds.
        trans_a: whether A is stored transposed.
        trans_b: whether B is.

    Returns:
        The counts of the whole grid, and the same by line of the source.

    Raises:
        ValueError: no such stage, a size below 1, or a problem that the stage refuses.
    """
    places = _places(_C.simt_traffic(stage, m, n, k, trans_a, trans_b))
    lines: dict[str, Counts] = {}
    for place, counts in places.items():
        lines[place.at] = lines.get(place.at, Counts()) + counts
    return Traffic(
        stage=stage,
        m=m,
        n=n,
        k=k,
        trans_a=trans_a,
        trans_b=trans_b,
        total=sum(places.values(), Counts()),
        lines=lines,
        places=places,
    )


def _places(rows: str) -> dict[Place, Counts]:
    """The module's rows by place, in the order of the source."""
    places: dict[Place, Counts] = {}
    for row in json.loads(rows):
        place = Place(*row["place"])
        make = SharedCounts if row["what"].startswith("shared") else GlobalCounts
        numbers = make(row["requests"], row["bytes"], row["units"], row["ideal"], row["worst"])
        of_kind: dict[str, Any] = {row["what"].replace(" ", "_"): numbers}
        places[place] = places.get(place, Counts()) + Counts(**of_kind)
    return dict(sorted(places.items(), key=lambda item: (*_by_line(item[0].at), item[0].via)))


def _by_line(place: str) -> tuple[str, int]:
    file, _, line = place.rpartition(":")
    return (file, int(line)) if line.isdigit() else (place, 0)


def _set(settings: dict[str, Any]) -> dict[str, Any]:
    """Write all settings and return those before."""
    names = ("order", "seed", "skip", "row", "sm_count", "split_k_size", "slab_bytes")
    return json.loads(_C.simt_configure(*(settings[name] for name in names)))


def _settings() -> dict[str, Any]:
    """The settings in force: what a write returns, written back at once."""
    any_setting = {"order": "random", "seed": 0, "skip": "", "row": -1, "sm_count": 132}
    before = _set({**any_setting, "split_k_size": -1, "slab_bytes": -1})
    _set(before)
    return before
