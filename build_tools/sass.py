"""What the main loop of a kernel is made of, and how fast that can be: from the machine code alone.

``cuobjdump -sass`` is read, and no GPU is needed. A scheduler issues one warp instruction a clock,
so whatever is not an FFMA takes the place of one; and an FFMA waits while the registers that it
reads lie in one bank. Both together predict the speed of a kernel that waits for nothing else:

    FFMA_PEAK x FFMA / (instructions + stalls)

**The main loop** is, of all loops, the one with the most products of its own: HGMMA where the
kernel's loops have any, else HMMA, else FFMA. A loop is what a backward branch spans, predicated or
not, from its target to itself. Products belong to the smallest loop around them: of nested loops
the one that multiplies counts, and of a loop that ptxas unrolled the large body, not the remainder.
Of loops with about as many the shortest is taken, which is the path without edges where a kernel
has both, and the inner loop where a remainder is written out behind it. A loop
within the main one (a wait for a barrier, say) counts as passed through once, and so does code that
a forward branch may jump over: bodies with edges in them look longer than they run. What lies
around the main loop is left out: of a body that ptxas did not unroll fully that is much.

**Stalls.** Registers lie in two banks, even and odd numbers; each bank gives one read a clock. No
read is needed for an operand that the instruction before kept for the same slot (``.reuse``), nor
a second one for a register that an instruction names twice, nor for RZ. Instructions wait a clock
when a bank has more than SLACK reads pending. Counted instruction by instruction over the loop in
steady state, that is on a second walk that begins with what the first left. Not counted: the second
register of a 64-bit operand, and what loads, stores and branches read, which comes another way;
they end what was kept. It is the model of one warp: what other warps do in between is left out.

How close this comes, and for which stages it does not, is in docs/adding-a-stage.md.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from . import cuda_toolkit, library, ptxas, results, sources
from .settings import ROOT, BuildError

# TFLOP/s of FFMA on registers alone. H200: measured, one board in steady state; 132 multiprocessors
# x 128 lanes x 2 at 1.98 GHz would be 66.9.
FFMA_PEAK = {"H200": 66.1}

SLACK = 1  # reads that a bank may owe before an instruction waits
ARCHS = ("sm_90a", "sm_90")  # of which the H200 runs the first that an object has
ABOUT_AS_MANY = 0.9  # of the most products
PRODUCTS = ("HGMMA", "HMMA", "FFMA")  # the first that a kernel's loops have is what it is about
BARRIERS = ("BAR", "SYNCS")  # of a block; of an mbarrier
LOCAL = ("LDL", "STL")

# Instructions that write no register though they read some: all of their registers are sources.
_NO_TARGET = re.compile(r"[FHDI]SETP|PLOP3|R2P|[FI]CHK")
# Loads, stores, barriers and branches: their registers do not go through the operand banks here.
_ELSEWHERE = re.compile(r"LD|ST|RED|ATOM|CCTL|UTMA|SYNCS|BAR|BRA|BRX|BS|CALL|RET|EXIT|S2U?R|CS2R")


class Instruction(NamedTuple):
    """One instruction, as in ``/*0a10*/ @!P0 FFMA R0, R2.reuse, R5, R0 ;``."""

    address: int
    predicate: str  # "!P0", or ""
    opcode: str  # with its modifiers, "LDS.128"
    arguments: str  # "R0, R2.reuse, R5, R0"

    @property
    def name(self) -> str:
        """The opcode without modifiers: ``"LDS"``."""
        return self.opcode.partition(".")[0]

    @property
    def operands(self) -> list[str]:
        """What stands between the commas."""
        return [part.strip() for part in self.arguments.split(",")] if self.arguments else []

    @property
    def target(self) -> int | None:
        """The address that a branch goes to; None for other instructions, and for computed ones."""
        match = re.search(r"(?:^|\s)0x([0-9a-f]+)$", self.arguments) if self.name == "BRA" else None
        return int(match[1], 16) if match else None

    @property
    def registers(self) -> list[tuple[int, bool]]:
        """The registers read through the banks, by slot, and whether they are kept for the next.

        A slot that holds none (a constant, RZ, a uniform register) is ``(-1, False)``. Predicates
        have no slot.
        """
        if _ELSEWHERE.match(self.name):
            return []
        slots = [part for part in self.operands if not re.match(r"!?U?P[\dTR]", part)]
        found = []
        for part in slots if _NO_TARGET.match(self.name) else slots[1:]:
            match = re.match(r"[-~!|]*R(\d+)", part)
            found.append((int(match[1]), ".reuse" in part) if match else (-1, False))
        return found


class Function(NamedTuple):
    """One function of an object, mangled, with its architecture."""

    arch: str
    name: str
    instructions: list[Instruction]


_LINE = re.compile(
    r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*?)\s*;"
)


def parse(text: str) -> Iterator[Function]:
    """Reads what ``cuobjdump -sass`` prints; lines that hold no instruction are passed over."""
    arch, function = "", None
    for line in text.splitlines():
        if match := _LINE.match(line):
            if function is not None:
                address, predicate, opcode, arguments = match.groups()
                function.instructions.append(
                    Instruction(int(address, 16), predicate or "", opcode, arguments)
                )
        elif match := re.match(r"\s*arch = (\w+)", line):
            arch = match[1]
        elif match := re.match(r"\s*Function : (\S+)", line):
            if function is not None:
                yield function
            function = Function(arch, match[1], [])
    if function is not None:
        yield function


def disassemble(cuobjdump: Path, path: Path, arch: str) -> Iterator[Function]:
    """The functions that an object has for an architecture; none if it has no code for it."""
    command = [str(cuobjdump), "-sass", "-arch", arch, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return (f for f in parse(done.stdout) if f.arch == arch)


@dataclass(frozen=True)
class Loop:
    """A loop: its instructions in the order of their addresses, the branch back last."""

    product: str  # of PRODUCTS
    body: tuple[Instruction, ...]

    def count(self, *names: str) -> int:
        """Instructions with one of these names, whatever their modifiers."""
        return sum(instruction.name in names for instruction in self.body)

    @property
    def products(self) -> int:
        """Products, of the loop's kind."""
        return self.count(self.product)

    @property
    def share(self) -> float:
        """The share of products among the instructions."""
        return self.products / len(self.body)

    @property
    def bytes(self) -> int:
        """The size of the code, which has to come through the instruction cache."""
        return self.body[-1].address - self.body[0].address + 16

    @property
    def stalls(self) -> int:
        """Clocks that one pass waits for register banks, in steady state."""
        return bank_stalls(self.body)

    @property
    def rate(self) -> float | None:
        """The TFLOP/s of an H200 that runs nothing else; None for products of tensor cores."""
        if self.product != "FFMA":
            return None
        return FFMA_PEAK["H200"] * self.products / (len(self.body) + self.stalls)


def loops(instructions: Sequence[Instruction]) -> list[tuple[int, int]]:
    """The addresses of each loop's first instruction and of its branch back.

    A branch from beyond a loop's end into its middle is no loop: it comes back from code that was
    put out of the way.
    """
    found = {
        (target, i.address)
        for i in instructions
        if (target := i.target) is not None and target <= i.address
    }
    return sorted(
        (low, high)
        for low, high in found
        if not any(first < low <= last < high for first, last in found)
    )


def main_loop(instructions: Sequence[Instruction]) -> Loop | None:
    """The loop that multiplies (see above); None where no loop holds a product."""
    spans = loops(instructions)
    own: dict[str, dict[tuple[int, int], int]] = {}
    for i in instructions:
        if i.name in PRODUCTS:
            around = [span for span in spans if span[0] <= i.address <= span[1]]
            if around:
                smallest = min(around, key=lambda span: span[1] - span[0])
                counts = own.setdefault(i.name, {})
                counts[smallest] = counts.get(smallest, 0) + 1
    for product in PRODUCTS:
        if counts := own.get(product):
            enough = ABOUT_AS_MANY * max(counts.values())
            low, high = min(
                (span for span in counts if counts[span] >= enough),
                key=lambda span: span[1] - span[0],
            )
            return Loop(product, tuple(i for i in instructions if low <= i.address <= high))
    return None


def bank_stalls(body: Sequence[Instruction], slack: int = SLACK) -> int:
    """The clocks that a loop waits for register banks on its second pass (see above)."""
    owed, stalls = [0, 0], 0
    kept: dict[int, int] = {}
    for _ in range(2):
        stalls = 0
        for instruction in body:
            slots = list(enumerate(instruction.registers))
            read = {r for slot, (r, _) in slots if r >= 0 and kept.get(slot) != r}
            kept = {slot: r for slot, (r, keep) in slots if keep}
            for bank in (0, 1):
                owed[bank] = max(0, owed[bank] + sum(r % 2 == bank for r in read) - 1)
            while max(owed) > slack:
                stalls += 1
                owed = [max(0, reads - 1) for reads in owed]
    return stalls


# --- the command ----------------------------------------------------------------------------------


def report(stage: str = "", root: Path = ROOT) -> list[dict[str, Any]]:
    """The main loops of what was built, one record a kernel.

    Args:
        stage: A stage's number, name or file stem, to have all its kernels; else of all stages
            those for NN (row-major operands) alone.
        root: The repository.

    Raises:
        BuildError: There is no disassembler, no such stage, or no object for the H200.
    """
    toolkit = cuda_toolkit.find().toolkit
    cuobjdump = cuda_toolkit.find_disassembler(toolkit.root if toolkit else None)
    if cuobjdump is None:
        raise BuildError("there is no cuobjdump with an nvdisasm; python -m build_tools nvcc")
    measured = results.measured(root / results.H200)
    found = sources.find(root).stages
    wanted = [s for s in found if stage in ("", *s.words)]
    if stage and not wanted:
        raise BuildError(f"no stage is {stage!r}; there are: {', '.join(s.name for s in found)}")
    records = []
    for source in wanted:
        path = root / library.BUILD_DIR / "obj" / "cuda" / f"{source.stem}.o"
        kernels = _kernels(cuobjdump, path) if path.exists() else []
        mine = [(is_nn(f), _record(source.name, f, loop)) for f, loop in kernels]
        # Which tile ran is not in the results: that with the highest prediction stands for it.
        likely = [record for nn, record in mine if nn and record["predicted"]]
        if likely and source.name in measured:
            best = max(likely, key=lambda record: record["predicted"])
            best["measured"] = measured[source.name]["cases"].get((8192, "NN"), (None,))[0]
        records += [record for nn, record in mine if nn or stage]
    if not records:
        raise BuildError(f"there are no objects with code for {' or '.join(ARCHS)}; make build")
    return records


def is_nn(f: ptxas.Function) -> bool:
    """Whether a kernel is the one for row-major operands, by its template's booleans.

    They say of A, and then of B transposed, whether they are contiguous along k; one alone says it
    of B. Kernels without them take all layouts.
    """
    flags = tuple(a for a in f.arguments if a in ("true", "false"))
    return flags in ((), ("false",), ("true", "false"))


def _kernels(cuobjdump: Path, path: Path) -> list[tuple[ptxas.Function, Loop]]:
    """The kernels that multiply in a loop, by their names."""
    for arch in ARCHS:
        found = [
            (ptxas.Function(f.name, arch, entry=True), loop)
            for f in disassemble(cuobjdump, path, arch)
            if (loop := main_loop(f.instructions))
        ]
        if found:
            named = [(f, loop) for f, loop in found if f.kernel in ("kernel", "wgmma_kernel")]
            return sorted(named, key=lambda pair: pair[0].short_name)
    return []


def _record(stage: str, f: ptxas.Function, loop: Loop) -> dict[str, Any]:
    rate = loop.rate
    return {
        "stage": stage, "kernel": f.short_name, "product": loop.product,
        "products": loop.products, "instructions": len(loop.body), "share": loop.share,
        "bytes": loop.bytes, "lds": loop.count("LDS", "LDSM"), "ldg": loop.count("LDG", "LDGSTS"),
        "local": loop.count(*LOCAL), "barriers": loop.count(*BARRIERS),
        "stalls": None if rate is None else loop.stalls, "predicted": rate, "measured": None,
    }  # fmt: skip


def table(records: Iterable[dict[str, Any]]) -> str:
    """The records as text."""
    rows = [("stage", "kernel", "instr", "products", "share", "KB", "LDS", "LDG", "local", "bar",
             "stalls", "predicted", "measured")]  # fmt: skip
    for r in records:
        rows.append(
            (
                r["stage"], r["kernel"], str(r["instructions"]), f"{r['products']} {r['product']}",
                f"{r['share']:.1%}", f"{r['bytes'] / 1024:.1f}",
                *(str(r[key]) for key in ("lds", "ldg", "local", "barriers")),
                *("" if r[key] is None else form.format(r[key]) for key, form in (
                    ("stalls", "{}"), ("predicted", "{:.1f}"), ("measured", "{:.1f}"))),
            )
        )  # fmt: skip
    note = (
        f"predicted: TFLOP/s of an H200, {FFMA_PEAK['H200']} x FFMA / (instructions + stalls); "
        "measured:\nthe stage at 8192, NN, beside its kernel with the highest prediction"
    )
    return f"{ptxas.aligned(rows, left=2)}\n{note}"


def main(stage: str, as_json: bool) -> None:
    """Prints the table, or the records as JSON."""
    records = report(stage)
    print(json.dumps(records, indent=2) if as_json else table(records))
