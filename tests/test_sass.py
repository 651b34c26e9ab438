"""The main loops of the kernels, in machine code: how they are found and counted, and their gates.

Where the build is CUDA's and there is a disassembler, every kernel's loop has to be small, to keep
to its registers, and to be as full of FFMA and as free of bank conflicts as it was. No GPU.
"""

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from compiled import (
    BUILD,
    BUILT,
    CUOBJDUMP,
    STAGES,
    code,
    kernels,
    needs_disassembler,
    needs_kernels,
    needs_logs,
    on_machine_code,
    stem,
)

from build_tools import __main__ as commands
from build_tools import ptxas, results, sass, sources
from build_tools.settings import ROOT, BuildError
from xgemm_torch import _C
from xgemm_torch.course import marks

DATA = Path(__file__).parent / "data"


def function(*lines, start=0):
    """A function of these instructions, 16 bytes each; ``name:`` before one makes it a target."""
    places, instructions = {}, []
    for line in lines:
        label, colon, rest = line.rpartition(": ")
        if colon:
            places[label] = f"0x{start + 16 * len(instructions):x}"
        instructions.append(rest)
    text = "arch = sm_90a\n\t\tFunction : f\n"
    for number, instruction in enumerate(instructions):
        for label, address in places.items():
            instruction = re.sub(rf"\b{label}$", address, instruction)
        text += f"        /*{start + 16 * number:04x}*/    {instruction} ;\n"
    (found,) = sass.parse(text)
    assert len(found.instructions) == len(lines)
    return found.instructions


def recorded(name):
    (found,) = sass.parse((DATA / f"{name}.sass").read_text())
    return found.instructions


# --- reading --------------------------------------------------------------------------------------

LISTING = """\
Fatbin elf code:
================
arch = sm_80
	code for sm_80
		Function : _Z5firstv
	.headerflags	@"EF_CUDA_SM80"
        /*0000*/                   MOV R1, c[0x0][0x28] ;                /* 0x00000a0000017a02 */
                                                                         /* 0x000fe40000000f00 */
        /*0010*/              @!P0 FFMA.FTZ R0, R2.reuse, -R5, |R0| ;    /* 0x0000000502007223 */
                                                                         /* 0x000fe40000000000 */
        /*0020*/                   EXIT ;                                /* 0x000000000000794d */
                                                                         /* 0x000fea0003800000 */
		..........
		Function : _Z6secondv
        /*0000*/               @UP1 UIADD3 UR4, UR4, 0x1, URZ ;          /* 0x0000000104047890 */
Fatbin elf code:
================
arch = sm_90a
		Function : _Z5firstv
        /*1f00*/                   LDS.128 R8, [R2+UR4+0x10] ;           /* 0x0000000102087984 */
"""


def test_parser():
    first, second, other = sass.parse(LISTING)
    assert [(f.arch, f.name, len(f.instructions)) for f in (first, second, other)] == [
        ("sm_80", "_Z5firstv", 3), ("sm_80", "_Z6secondv", 1), ("sm_90a", "_Z5firstv", 1),
    ]  # fmt: skip
    move, multiply, leave = first.instructions
    assert (move.address, move.predicate, move.opcode, move.arguments) == (
        0, "", "MOV", "R1, c[0x0][0x28]",
    )  # fmt: skip
    assert (multiply.address, multiply.predicate, multiply.opcode) == (16, "!P0", "FFMA.FTZ")
    assert multiply.name == "FFMA"
    assert multiply.operands == ["R0", "R2.reuse", "-R5", "|R0|"]
    assert multiply.registers == [(2, True), (5, False), (0, False)]
    assert (leave.opcode, leave.operands) == ("EXIT", [])
    assert second.instructions[0].predicate == "UP1"
    assert other.instructions[0].address == 0x1F00


@pytest.mark.parametrize(
    ("instruction", "registers"),
    [
        ("FFMA R12, R9, R0.reuse, R12", [(9, False), (0, True), (12, False)]),
        ("FFMA R12, R115, 0.00048828125, R12", [(115, False), (-1, False), (12, False)]),
        ("FADD R4, -R5, RZ", [(5, False), (-1, False)]),
        ("IADD3 R7, P1, R8, UR4, RZ", [(8, False), (-1, False), (-1, False)]),
        ("ISETP.GE.AND P1, PT, R7, R4, PT", [(7, False), (4, False)]),
        ("LOP3.LUT P6, RZ, R81, 0x8, RZ, 0xc0, !PT",
         [(81, False), (-1, False), (-1, False), (-1, False)]),
        ("SEL R69, R71, R68, !P2", [(71, False), (68, False)]),
        ("UIADD3 UR4, UP0, UR5, 0x1, URZ", [(-1, False), (-1, False), (-1, False)]),
        ("LDS.128 R8, [R2+UR4+0x10]", []),
        ("STS [R47], R28", []),
        ("BAR.SYNC.DEFER_BLOCKING 0x0", []),
    ],
)  # fmt: skip
def test_registers_by_slot(instruction, registers):
    assert function(instruction)[0].registers == registers


@pytest.mark.parametrize(
    ("instruction", "target"),
    [
        ("@!P0 BRA 0x1e30", 0x1E30),
        ("BRA.U.ANY 0x20", 0x20),
        ("@P0 BRA P1, 0x1ce0", 0x1CE0),
        ("@P0 BRA !P1, 0x1ce0", 0x1CE0),
        ("BRX R8 -0x1230", None),
        ("BSSY B1, 0x2970", None),
        ("CALL.REL.NOINC 0x2970", None),
    ],
)
def test_branches(instruction, target):
    assert function(instruction)[0].target == target


# --- which loop -----------------------------------------------------------------------------------

F = "FFMA R0, R1, R2, R0"


@pytest.mark.parametrize(
    ("lines", "first", "last"),
    [
        # Of nested loops the one that multiplies, though the outer one holds as many and more.
        ([f"outer: {F}", f"inner: {F}", F, "@P0 BRA inner", "@!P1 BRA outer", "EXIT"], 1, 3),
        # The outer one where the inner only waits, or is a remainder.
        ([f"outer: {F}", "wait: SYNCS P0, [R1], R2", "@!P0 BRA wait", F, "BRA outer"], 0, 4),
        ([f"outer: {F}", F, f"rest: {F}", "@P0 BRA rest", "BRA outer"], 0, 4),
        # Both ways of a loop begin at one place: the branch that ends the products counts.
        ([f"both: {F}", F, "@P0 BRA both", "NOP", "@P1 BRA both"], 0, 2),
        # An unrolled loop and its remainder; a loop without products; products without a loop.
        ([f"four: {F}", F, F, F, "@P0 BRA four", f"one: {F}", "@P0 BRA one", F, F], 0, 4),
        (["copy: LDG.E R1, [R2]", "NOP", "NOP", "@P0 BRA copy", f"one: {F}", "@P0 BRA one"], 4, 5),
        # The inner one where a remainder as long is written out behind it.
        (["outer: NOP", f"inner: {F}", *[F] * 9, "@P0 BRA inner", *[F] * 11, "@P1 BRA outer"],
         1, 11),
        # Among equals the shortest.
        ([f"long: {F}", "NOP", "@P0 BRA long", f"short: {F}", "@P0 BRA short"], 3, 4),
        # A wait was put behind the loop and comes back into its middle: that is no loop, though
        # it is shorter than the one there is.
        ([f"loop: {F}", "NOP", "NOP", "@!P0 BRA away", f"back: {F}", F, F, "@P1 BRA loop",
          "away: NOP", "BRA back", "EXIT"], 0, 7),
    ],
)  # fmt: skip
def test_main_loop(lines, first, last):
    instructions = function(*lines, start=0x100)
    loop = sass.main_loop(instructions)
    assert loop.body == tuple(instructions[first : last + 1])
    assert loop.bytes == 16 * (last - first + 1)


def test_tensor_cores_come_first():
    wmma, wgmma = "HMMA.16816.F32 R0, R4, R8, R0", "HGMMA.64x128x16.F32 R24, gdesc[UR16], R24"
    chain = [f"chain: {F}", F, F, "@P0 BRA chain"]
    assert sass.main_loop(function(f"a: {wmma}", F, "@P0 BRA a", *chain)).product == "HMMA"
    both = function(f"a: {wmma}", wmma, "@P0 BRA a", *chain, f"b: {wgmma}", "@P0 BRA b")
    loop = sass.main_loop(both)
    assert (loop.product, loop.products, len(loop.body), loop.rate) == ("HGMMA", 1, 2, None)
    # Outside of loops they don't count.
    assert sass.main_loop(function(wgmma, *chain)).product == "FFMA"
    assert sass.main_loop(function(wgmma, F, "self: BRA self")) is None


# --- banks ----------------------------------------------------------------------------------------

ODD_EVEN = ["FFMA R0, R2, R3, R4", "FFMA R0, R3, R2, R5"]


@pytest.mark.parametrize(
    ("body", "stalls"),
    [
        # Three reads of the even bank an instruction: three clocks each.
        (["FFMA R0, R2, R4, R6"] * 4, 8),
        (["FFMA R0, R1, R3, R5"] * 4, 8),
        # One of them is kept in its slot, or two.
        (["FFMA R0, R2.reuse, R4, R6"] * 4, 4),
        (["FFMA R0, R2.reuse, R4.reuse, R6"] * 4, 0),
        # What is kept is a slot's own, and one register's.
        (["FFMA R0, R2.reuse, R4, R6", "FFMA R0, R4, R2, R6"] * 2, 8),
        (["FFMA R0, R2.reuse, R4, R6", "FFMA R0, R8, R4, R6"] * 2, 8),
        # A register that is named twice is read once.
        (["FFMA R0, R2, R2, R4"] * 4, 4),
        (["FFMA R0, R2, R2, R2"] * 4, 0),
        # Both banks: two reads and one, then one and two, are six of each in four instructions.
        (["FFMA R0, R2, R3, R4"] * 4, 4),
        (ODD_EVEN * 2, 2),
        (["FFMA R0, R2, R3, RZ"] * 4, 0),
        # One read may wait: two of a bank go well where the next needs none of it.
        (["FFMA R0, R2, R4, RZ", "FFMA R0, R3, R5, RZ"] * 2, 0),
        # A load lets the banks catch up, and ends what was kept.
        (["FFMA R0, R2.reuse, R4, R6", "LDS R8, [R9]"] * 2, 2),
        # Constants, uniform registers and predicates are in no bank.
        (["FFMA R0, R2, UR4, R4", "FMUL R0, R3, 2", "SEL R0, R3, RZ, P2", "NOP"], 0),
    ],
)
def test_bank_stalls(body, stalls):
    assert len(body) == 4
    assert sass.bank_stalls(function(*body)) == stalls


def test_slack_and_rate():
    pairs = function(*["FFMA R0, R2, R4, RZ", "FFMA R0, R3, R5, RZ"] * 2)
    assert sass.bank_stalls(pairs, slack=0) == 4
    assert sass.bank_stalls(pairs, slack=1) == 0
    loop = sass.main_loop(function(f"a: {ODD_EVEN[0]}", ODD_EVEN[1], *ODD_EVEN, "@P0 BRA a"))
    # As above, but the branch is a clock in which both banks catch up.
    assert (len(loop.body), loop.products, loop.stalls) == (5, 4, 1)
    assert loop.share == 0.8
    assert loop.rate == pytest.approx(sass.FFMA_PEAK["H200"] * 4 / 6)


# --- recorded loops -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kernel", "start", "counts", "stalls"),
    [
        # nvcc 13.0, sm_90a.
        ("block_tile_2d", "kernel<true,false>", 0x1E30,
         {"FFMA": 128, "LDS": 24, "BRA": 1, "LDG": 0, "BAR": 0}, 16),
        ("cp_async_pipelined", "kernel<4,true,false>", 0x20A0,
         {"FFMA": 256, "LDS": 27, "LDGSTS": 5, "BAR": 1, "STL": 0}, 85),
        ("wgmma_fp16x3", "wgmma_kernel<fp16,128,1,7>", 0x8E0,
         {"HGMMA": 6, "FADD": 64, "SYNCS": 2, "FFMA": 0}, None),
    ],
)  # fmt: skip
def test_recorded_loops(name, kernel, start, counts, stalls):
    (found,) = sass.parse((DATA / f"{name}.sass").read_text())
    assert ptxas.Function(found.name, found.arch, entry=True).short_name == kernel
    loop = sass.main_loop(found.instructions)
    assert loop.body[0].address == start < found.instructions[-1].address
    assert {opcode: loop.count(opcode) for opcode in counts} == counts
    if stalls is None:
        assert loop.rate is None
    else:
        assert loop.stalls == stalls
        # The more reads may wait, the fewer stalls.
        assert sass.bank_stalls(loop.body, 0) > stalls > sass.bank_stalls(loop.body, 2)


# --- the gates ------------------------------------------------------------------------------------


class Least(NamedTuple):
    """What a main loop must keep; the first two are asked of the rows of FFMA stages alone."""

    share: float = 0  # of FFMA among its instructions
    rate: float = 0  # as predicted, TFLOP/s of an H200
    body: int = 20 * 1024  # bytes at most: a loop of more than this waits for its instructions


# By stage, by stage and row, or by these and the kernel's last argument, over all layouts; a little
# below what nvcc 13.0 makes of them. A stage that is not here keeps the defaults.
LEAST = {
    "block_tile_1d": Least(0.45, 28.5),
    "block_tile_2d": Least(0.79, 47),
    "block_tile_kmajor": Least(0.83, 49),
    "vec4_64x64": Least(0.63, 35),
    "vec4_128x128": Least(0.76, 47),
    # 16 k in one body, with the edges of its copies, which are jumped over.
    "warp_tiled": Least(0.77, 48, 21 * 1024),
    "register_prefetch": Least(0.77, 48),
    # In TT it stalls three to five times as often as in the others, and is slower on the chip too.
    "smem_double_buffered": Least(0.77, 42.5, 21 * 1024),
    "cp_async_pipelined 0": Least(0.89, 55),
    "cp_async_pipelined 1": Least(0.89, 56.3),
    "cp_async_pipelined 2": Least(0.83, 51),
    "cp_async_pipelined 3": Least(0.80, 43),
    "cp_async_pipelined 4": Least(0.74, 39.5),
    "cp_async_pipelined 5": Least(0.71, 40),
    "tma_specialized 0": Least(0.93, 58),
    # Where tiles are taken whole, 2% slower at 1024 than with 55.4; and where they are cut along K.
    "tma_specialized 1": Least(0.89, 53.4),
    "tma_specialized 1 true": Least(0.89, 55.3),
    # The splits: what sees tiny, zero and infinite elements lies in the loop, and is jumped over.
    "mma_fp16x3 None": Least(body=23 * 1024),
    "wgmma_fp16x3 None": Least(body=23 * 1024),
    "wgmma_bf16x6 None": Least(body=23 * 1024),
}
NVCC = "13.0"  # whose code these shares and rates are of


def least(stage, row, kernel):
    one = f"{stage.name} {row}"
    last = re.search(r"\w*(?=>?$)", kernel)[0]
    return LEAST.get(f"{one} {last}") or LEAST.get(one) or LEAST.get(stage.name) or Least()


def faults(loop, asked):
    """What is wrong with a main loop, in words."""
    found = []
    if local := loop.count(*sass.LOCAL):
        found.append(f"{local} accesses to local memory")
    if loop.bytes > asked.body:
        found.append(f"{loop.bytes} bytes of code, at most {asked.body}")
    if loop.share < asked.share:
        found.append(f"{loop.share:.3f} are {loop.product}, at least {asked.share}")
    if asked.rate and (loop.rate or 0) < asked.rate:
        found.append(f"predicted {loop.rate or 0:.1f} TFLOP/s, at least {asked.rate}")
    return found


def kinds(found):
    words = {"local": "local memory", "bytes": "bytes", "share": " are ", "rate": "predicted"}
    return {kind for kind, word in words.items() if any(word in fault for fault in found)}


def doctored(change):
    """The recorded loop of cp_async_pipelined, with its lines changed, as a loop again."""
    lines = []
    for i in sass.main_loop(recorded("cp_async_pipelined")).body[:-1]:
        text = f"{i.opcode} {i.arguments}"
        lines.append(f"@{i.predicate} {text}" if i.predicate else text)
    return sass.main_loop(function("head: NOP", *change(lines), "@P0 BRA head"))


def without_every(lines, nth):
    numbers = (n for n in range(len(lines)))
    return ["MOV R0, R1" if "FFMA" in x and next(numbers) % nth == 0 else x for x in lines]


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda lines: lines, set()),
        (lambda lines: [x.replace(".reuse", "") for x in lines], {"rate"}),
        (lambda lines: [*lines[:100], "STL [R1], R9", *lines[100:]], {"local"}),
        (lambda lines: [*lines[:100], "LDL.64 R8, [R1]", *lines[100:]], {"local"}),
        (lambda lines: without_every(lines, 10), {"share", "rate"}),
        (lambda lines: lines + ["NOP"] * 30, {"share", "rate"}),
        (lambda lines: lines * 4, {"bytes"}),
    ],
)
def test_the_gates_catch_a_doctored_loop(change, wrong):
    assert kinds(faults(doctored(change), Least(0.75, 40))) == wrong


def test_a_loop_without_ffma_has_no_rate_to_pass_by():
    loop = sass.main_loop(recorded("wgmma_fp16x3"))
    assert faults(loop, Least()) == []
    assert kinds(faults(loop, Least(rate=1))) == {"rate"}


def test_the_table_names_stages():
    names = (
        {s.name for s in sources.find(ROOT).stages} | set(marks.MARKS) | {s.name for s in STAGES}
    )
    assert {key.partition(" ")[0] for key in LEAST} <= names


def main_loops(stage):
    """A stage's kernels for the H200, each with its row (None for a helper) and its main loop."""
    archs = {f.arch for f in kernels(stage)}
    arch = next((arch for arch in sass.ARCHS if arch in archs), None)
    if arch is None:
        pytest.skip(f"{stage.name} was not compiled for {' or '.join(sass.ARCHS)}")
    return [
        (f.short_name, ptxas.row_of(f, stage.tiles), code(stem(stage), arch)[f.name].loop)
        for f in kernels(stage)
        if f.arch == arch
    ]


@on_machine_code
def test_main_loops_are_small_and_keep_to_their_registers(stage):
    rows = set()
    for name, row, loop in main_loops(stage):
        if loop is not None:
            assert not faults(loop, Least(body=least(stage, row, name).body)), name
            rows.add(row)
    # Every row multiplies in a loop; helpers need none.
    assert rows >= set(range(len(stage.tiles)))


@on_machine_code
def test_main_loops_are_as_dense_as_they_were(stage):
    version = json.loads(_C.build_info())["cuda_version"]
    if version != NVCC:
        pytest.skip(f"the numbers are of nvcc {NVCC}'s code, this is {version}'s")
    wrong = {
        name: found
        for name, row, loop in main_loops(stage)
        if row is not None and (found := faults(loop, least(stage, row, name)))
    }
    assert not wrong


@on_machine_code
def test_strict_stages_multiply_in_fp32(stage):
    for name, row, loop in main_loops(stage):
        if stage.strict and row is not None:
            assert loop.product == "FFMA", name
            # As many as a thread has results, each k; of columns along k a lane of gemv has one.
            tile = stage.tiles[row]
            results = tile.TM * (1 if stage.name == "gemv" else tile.TN)
            assert loop.products % results == 0, name


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "nn"),
    [
        ("kernelENS_4GemmE", True),
        ("kernelILb1ELb0EEEvNS_4GemmE", True),
        ("kernelILb0ELb0EEEvNS_4GemmE", False),
        ("kernelILb1ELb1EEEvNS_4GemmE", False),
        ("kernelILi5ELb1ELb0EEEvNS_4GemmE", True),
        ("kernelILi5ELb0ELb1EEEvNS_4GemmE", False),
        ("kernelILi3ELb0EEEvNS0_6FewJobE", True),
        ("kernelILi3ELb1EEEvNS0_6FewJobE", False),
    ],
)
def test_kernels_for_row_major_operands(name, nn):
    f = ptxas.Function(f"_ZN5xgemm4cuda1x6{name}", "sm_90a", entry=True)
    assert sass.is_nn(f) == nn


@needs_kernels
@needs_logs
@needs_disassembler
def test_the_command(monkeypatch, capsys):
    cases = {
        name: run["cases"].get((8192, "NN"), (None,))[0]
        for name, run in results.measured(ROOT / results.H200).items()
    }
    # One with several layouts, and measured at that size.
    layouts = [s for s in BUILT if s.strict and len(s.tiles) == 1 and len(kernels(s)) > 2]
    stage = next((s for s in layouts if cases.get(s.name)), None)
    if stage is None:
        pytest.skip("the build has no such stage")
    names = {name for name, _, _ in main_loops(stage)}
    monkeypatch.setattr(sys, "argv", ["build_tools", "sass", "--json", "--stage", stage.name])
    assert commands.main() == 0
    records = json.loads(capsys.readouterr().out)
    assert {r["kernel"] for r in records} == names and len(records) == len(names) == 4
    assert {r["stage"] for r in records} == {stage.name}
    assert {r["kernel"]: r["measured"] for r in records if r["measured"]} == {
        "kernel<true,false>": cases[stage.name]
    }
    text = sass.table(records)
    for r in records:
        assert re.search(rf"{r['kernel']} .* {r['stalls']} +{r['predicted']:.1f}\b", text)
    # An object has no code for what it was not compiled for.
    path = BUILD / "obj" / "cuda" / f"{stem(stage)}.o"
    assert list(sass.disassemble(CUOBJDUMP, path, "sm_75")) == []


def test_a_measurement_stands_beside_the_kernel_predicted_fastest(monkeypatch, tmp_path):
    fast = function(f"a: {F}", F, F, "@P0 BRA a")
    slow = function(f"a: {F}", "NOP", "NOP", "@P0 BRA a")
    other = function(f"a: {F}", *[F] * 9, "@P0 BRA a")
    tensor = function("a: HMMA.16816.F32 R0, R4, R8, R0", "@P0 BRA a")
    kernels = {
        "19_one": [("kernelILi0ELb1ELb0EEEv", slow), ("kernelILi1ELb1ELb0EEEv", fast),
                   ("kernelILi2ELb0ELb0EEEv", other)],
        "21_two": [("kernelILi0EEEv", tensor)],
    }  # fmt: skip

    def found(cuobjdump, path):
        return [
            (ptxas.Function(f"_ZN1x6{name}", "sm_90a", entry=True), sass.main_loop(code))
            for name, code in kernels[path.stem]
        ]

    for name in kernels:
        for place in ("csrc/xgemm/stages/ladder", "build/xgemm/obj/cuda"):
            (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / "csrc/xgemm/stages/ladder" / f"{name}.cu").write_text("// An idea.\n")
        (tmp_path / "build/xgemm/obj/cuda" / f"{name}.o").write_text("")
    times = {name: {"tflops": 7.5, "share": 0.5} for name in ("one", "two")}
    run = {"facts": {"date": "2026-01-01", "device": "d", "torch": "t"}, "marks": [],
           "cases": [{"size": 8192, "layout": "NN", "times": times}]}  # fmt: skip
    (tmp_path / results.H200).mkdir(parents=True)
    (tmp_path / results.H200 / "run.json").write_text(json.dumps(run))
    monkeypatch.setattr(sass.cuda_toolkit, "find_disassembler", lambda root: Path("cuobjdump"))
    monkeypatch.setattr(sass, "_kernels", found)
    records = sass.report(root=tmp_path)
    # Nothing is predicted of tensor cores, so there is nothing to compare.
    assert [(r["kernel"], r["product"], r["measured"]) for r in records] == [
        ("kernel<0,true,false>", "FFMA", None), ("kernel<1,true,false>", "FFMA", 7.5),
        ("kernel<0>", "HMMA", None),
    ]  # fmt: skip
    # The third is faster still, but for operands of another layout.
    assert [r["measured"] for r in sass.report("one", tmp_path)] == [None, 7.5, None]


@needs_disassembler
def test_the_command_says_what_is_missing(tmp_path):
    with pytest.raises(BuildError, match="no objects"):
        sass.report(root=tmp_path)
    with pytest.raises(BuildError, match="no_such_stage"):
        sass.report("no_such_stage")
