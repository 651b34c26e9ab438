"""Fills the figures of README.md and docs/*.md, and draws the charts of README and of the examples.

    python docs/make_readme.py            # needs no GPU and no nvcc
    python docs/make_readme.py --check    # writes nothing; exit code 1 when something is stale

A page has blocks, ``<!-- figures: NAME -->`` to ``<!-- end -->``, whose lines `BLOCKS` makes. Every
figure comes from the newest record of its kind in benchmarks/results/*; ideas and rungs are from
the registry, and which stages a GPU would run from the selector.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "docs")]

import examples_page  # noqa: E402

from benchmarks import attention_page, kinds, reach_page, records, shapes  # noqa: E402
from xgemm_torch.registry import Stage, stages  # noqa: E402
from xgemm_torch.tools import explain_command, plotting  # noqa: E402
from xgemm_torch.tools.accuracy import Errors, broken  # noqa: E402
from xgemm_torch.tools.contenders import Problem, keeps, rows_of  # noqa: E402
from xgemm_torch.tools.timing import tflops  # noqa: E402

PAGES = (
    ROOT / "README.md", ROOT / "docs" / "measurements.md", ROOT / "docs" / "examples.md",
)  # fmt: skip
CHART = ROOT / "docs" / "images" / "speed-and-error.svg"
EXAMPLES_CHART = ROOT / "docs" / "images" / "examples.svg"
RECORDS = ROOT / "benchmarks" / "results"  # a folder for each GPU model
# The ladder's GPU: its marks and pages are of it.
LADDER = "h200"
BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
PRECISIONS = ("ieee", "fp32")
SQUARES = (1024, 2048, 4096, 8192)
# (in_features, out_features), rows: a layer of GPT-2 124M's and one of an 8B model's.
LAYERS = [(layer, rows) for layer in ((768, 3072), (4096, 14336)) for rows in (1, 64, 8192)]
FEW_ROWS = [
    (layer, rows)
    for layer in ((768, 3072), (4096, 4096), (4096, 14336), (8192, 28672))
    for rows in (1, 8, 64)
]
# Behind torch.mm by more than this share of its time; a product that takes it so many us is long.
BEHIND, LONG = 0.98, 10
# README's ladder: so many rungs, those that gained most.
STEPS = 8
# The depth at which the chart shows errors.
DEPTH = 2048
# Where the bars of its errors begin, on a logarithmic axis.
FLOOR = 0.02
# Any name that no GPU has: what a user has tuned has no say here.
UNTUNED = "no GPU"
# Names, compute capabilities and multiprocessors, and the code of a default build that they run.
GPUS = (
    ("A100; RTX 30, RTX 40, L40", ((80, 108), (86, 84), (89, 142)), "sm_80"),
    ("H100, H200", ((90, 132),), "sm_90a"),
    ("B200, RTX 50", ((100, 148), (120, 170)), "PTX of sm_90, compiled by the driver"),
)


# --- records --------------------------------------------------------------------------------------


@cache
def newest(kind: str) -> tuple[str, dict[str, Any]]:
    """Give the place and the content of the newest record whose name ends with this kind.

    Of stages those of `LADDER` count alone, as on the ladder's pages.
    """
    folder = LADDER if kind == "stages" else "*"
    path = max(RECORDS.glob(f"{folder}/*-{kind}.json"), key=lambda path: path.name)
    return path.relative_to(RECORDS).as_posix(), records.read(path)


@cache
def problems() -> dict[str, Problem]:
    """Give the problems of the suite by their labels."""
    return {p.label: p for p in shapes.suite()}


def torch_us(label: str) -> float:
    """Give torch.mm's microseconds."""
    return newest("select")[1]["problems"][label]["torch_mm_us"]


def fastest_us(label: str, precision: str) -> float:
    """Give the microseconds of the fastest row that keeps a precision's contract."""
    times = newest("select")[1]["problems"][label]["us"]
    return min(
        times[row.key]
        for row in rows_of(stages())
        if row.key in times and keeps(row, problems()[label], strict=precision == "ieee")
    )


def runs() -> dict[tuple[int, str], dict[str, dict[str, float]]]:
    """Give all stages' times by size and layout."""
    return {(case["size"], case["layout"]): case["times"] for case in newest("stages")[1]["cases"]}


def measured() -> list[Stage]:
    """Give the stages that are in the record of stages."""
    return [s for s in stages() if any(s.name in times for times in runs().values())]


def random_ratios(precision: str) -> list[tuple[float, float, list[Any]]]:
    """Give for each random problem torch.mm's time over ``auto``'s, torch.mm's us, and sizes."""
    return [
        (p["torch_mm_us"] / p["auto_us"][precision], p["torch_mm_us"], p["problem"])
        for p in newest("random")[1]["problems"].values()
    ]


def normal_errors(k: int) -> dict[str, dict[str, float]]:
    """Give every contender's errors on normal data of a depth."""
    (row,) = (
        row
        for row in newest("accuracy")[1]["rows"]
        if (row["distribution"], row["k"]) == ("normal", k)
    )
    return row["errors"]


def data_cells() -> Iterable[tuple[str, str, dict[str, Any]]]:
    """Give problem, kind of data and what was measured."""
    for problem, cells in newest("data")[1]["cells"].items():
        for kind, cell in cells.items():
            yield problem, kind, cell


def if_any(kind: str) -> dict[str, Any] | None:
    """Give the content of the newest record of a kind, None where there is none yet."""
    return newest(kind)[1] if any(RECORDS.glob(f"*/*-{kind}.json")) else None


# --- words ----------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Give the lines of a Markdown table."""
    return [
        f"| {' | '.join(map(str, cells))} |" for cells in (head, ["---"] * len(head), *rows)
    ]  # fmt: skip


def duration(us: float) -> str:
    """Give a time with three digits, in us or ms."""
    value, unit = (us, "us") if us < 1000 else (us / 1000, "ms")
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def figure(value: float) -> str:
    """Give a figure with two digits, or all before the point."""
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def beside(us: float, reference: float) -> str:
    """Give a time and how many times as fast it is."""
    return f"{duration(us)} ({reference / us:.2f}x)"


def listed(words: Sequence[str]) -> str:
    """Join words as a sentence does."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def share(count: int, total: int) -> str:
    """Give a share in percent."""
    return f"{count / total:.0%}"


def link(stage: Stage) -> str:
    """Give a stage's name with a link to its page, as README has it."""
    return f"[`{stage.name}`](docs/ladder/{Path(stage.file).stem}.md)"


# --- README's blocks ------------------------------------------------------------------------------


def square_ratios(precision: str) -> list[str]:
    """Give how many times as fast as torch.mm the squares are."""
    labels = [f"square {size} NN" for size in SQUARES]
    return [f"{torch_us(label) / fastest_us(label, precision):.1f}" for label in labels]


def gpt2_step() -> tuple[str, dict[str, float], dict[str, float]]:
    """Where GPT-2's step was measured, its ms by way, and how far losses are from stock's."""
    record = newest("steps")[1]
    step = record["models"]["gpt2"]
    device = " ".join(record["facts"]["device"].split()[1:2])  # "H100"
    return device, step["ms"], step["largest_difference"]


def gains() -> list[str]:
    """What it gains, in four sentences."""
    errors, (device, ms, off) = normal_errors(DEPTH), gpt2_step()
    pinn = newest("steps-compiled")[1]["models"]["pinn"]["ms"]
    squares_device = newest("select")[1]["facts"]["device"]
    ours, theirs, its = (errors[name]["rms"] for name in ("sgemm", "torch.mm", "TF32"))
    sizes, ratios = listed(list(map(str, SQUARES))), listed(square_ratios("fp32"))
    return [
        f"On one {squares_device}, squares of {sizes} run at {ratios} times the",
        "speed of torch's FP32 product, which is cuBLAS. The root mean square error at "
        f"K = {DEPTH}, in units of 2^-24 |A| |B|, is",
        f"{ours:.2f}; torch's is {theirs:.2f}, TF32's {its:.0f}. On an {device} a training step of "
        f"GPT-2 124M, converted inside `patch()`,",
        f"takes {ms['patched']:.0f} ms in place of {ms['stock']:.0f}; TF32 takes {ms['tf32']:.0f}, "
        f"and its losses differ from FP32's by {off['tf32']:.0e} in 20 steps; ours by "
        f"{off['patched']:.0e}.",
        f"A compiled step of a physics-informed network takes {pinn['converted']:.0f} ms, "
        f"stock {pinn['stock']:.0f}, TF32 {pinn['tf32']:.0f}.",
    ]


def kernel_at(size: int, precision: str, sm: int, sm_count: int) -> str:
    """Give the stage that ``auto`` takes for a square on some GPU."""
    chosen = explain_command.choose(
        size, size, size, precision=precision, sm=sm, sm_count=sm_count, gpu=UNTUNED
    )
    return chosen["kernel"]


def gpus() -> list[str]:
    """What runs where, and what has been measured."""
    devices = {newest(kind)[1]["facts"]["device"] for kind in ("select", "random", "data")}
    rows = []
    for names, chips, code in GPUS:
        taken = {
            precision: listed(list(dict.fromkeys(
                f"`{kernel_at(4096, precision, sm, count)}`" for sm, count in chips
            )))
            for precision in PRECISIONS
        }  # fmt: skip
        models = {model for name in names.split("; ") for model in name.split(", ")}
        here = sorted(model for model in models if any(model in d.split() for d in devices))
        known = ", ".join(here)
        capabilities = ", ".join(f"sm_{sm}" for sm, _ in chips)
        rows.append((
            f"{names} ({capabilities})", code, taken["fp32"], taken["ieee"],
            f"{known} only" if known and len(here) < len(models) else known or "no",
        ))  # fmt: skip
    return table(("GPU", "code", '`"fp32"` at 4096', '`"ieee"` at 4096', "measured"), rows)


def chart() -> list[str]:
    """The chart, and in its alternative text what it says."""
    data = chart_data()
    speeds = "; ".join(
        f"{name} {', '.join(f'{x:.0f}' for x in values)}" for name, values in data["speed"].items()
    )
    errors = ", ".join(f"{name} {figure(e['rms'])}" for name, e in data["errors"].items())
    steps = ", ".join(f"{name} {ms:.0f} ms" for name, ms in data["steps"].items())
    alt = (
        f"TFLOP/s of squares of {', '.join(map(str, SQUARES))}: {speeds}. Root mean square errors "
        f"in u: {errors}. A step of GPT-2 124M, {data['steps_device']}: {steps}."
    )
    return [f"![{alt}]({CHART.relative_to(ROOT)})"]


def speeds() -> list[str]:
    """Squares, layers and a model, beside torch."""
    rows: list[Sequence[object]] = []
    named = [(f"{size} x {size} x {size}", f"square {size} NN") for size in SQUARES]
    named += [
        (f"linear {a} to {b}, {n} row{'s' * (n > 1)}", f"linear {a}-{b} rows {n} forward")
        for (a, b), n in LAYERS
    ]
    for name, label in named:
        reference = torch_us(label)
        cells = [beside(fastest_us(label, precision), reference) for precision in PRECISIONS]
        rows.append((name, duration(reference), *cells))
    device, ms, _ = gpt2_step()
    stock = ms["stock"] * 1e3
    rows.append((f"training step of GPT-2 124M, {device}", duration(stock), "not measured",
                 beside(ms["patched"] * 1e3, stock)))  # fmt: skip
    return table(("product", "torch FP32", '`"ieee"`', '`"fp32"`'), rows)


def steps() -> list[Stage]:
    """Give the rungs that gained most at 4096, NN: each is faster than all below it."""
    times, best, gained = runs()[4096, "NN"], 0.0, []
    for stage in measured():
        speed = times.get(stage.name, {"tflops": 0.0})["tflops"]
        if speed > best:
            gained.append((speed / best if best else float("inf"), stage))
            best = speed
    most = sorted(gained, key=lambda pair: -pair[0])[:STEPS]
    return sorted((stage for _, stage in most), key=lambda stage: stage.rung)


def ladder() -> list[str]:
    """A line for each of `steps`."""
    times = runs()[4096, "NN"]
    return [
        f"- {link(stage)}, {speed_cell(stage, times).replace(' ', ' TFLOP/s ')}: {stage.idea}"
        for stage in steps()
    ]  # fmt: skip


def limits() -> list[str]:
    """What does not hold, and where it loses."""
    found = random_ratios("fp32")
    ratios = [ratio for ratio, _, _ in found]
    long = [ratio for ratio, us, _ in found if us >= LONG]
    thin = [r for r, us, sizes in found if min(sizes[1:3]) == 1 and us < LONG / 2]
    behind = [share(sum(r < BEHIND for r in some), len(some)) for some in (ratios, long)]
    worst, _, sizes = min(found)
    slow = [(cell["us"] / cell["normal_us"], p, kind) for p, kind, cell in data_cells()]
    usual = max(x for x in slow if kinds.KINDS[x[2]].realistic)
    longest = max(slow)
    exotic = [
        cell["us"] > cell["torch_mm_us"]
        for _, kind, cell in data_cells()
        if not kinds.KINDS[kind].realistic
    ]
    lines = [
        f"- **Small and thin products.** Of {len(found)} problems of random sizes, `auto` is "
        f"behind cuBLAS by over 2% in {behind[0]};",
        f"  of the {len(long)} that take cuBLAS {LONG} us or more, in {behind[1]}. With one row or "
        f"one column, where cuBLAS takes less than {LONG / 2:.0f} us,",
        f"  it loses {sum(r < BEHIND for r in thin)} of {len(thin)}; the worst of all, "
        f"{'x'.join(map(str, sizes[1:4]))} {sizes[4]}, runs at {worst:.2f} times cuBLAS's speed.",
        "- **Adversarial data cost time.** Kinds of data that people multiply take up to "
        f"{usual[0]:.1f} times what normal data take",
        f"  (`{usual[2]}`, {usual[1]}), others up to {longest[0]:.0f} times (`{longest[2]}`, "
        f"{longest[1]}); {share(sum(exotic), len(exotic))} of the latter are slower than cuBLAS.",
        "  What the limbs cannot certify is recomputed by FP32 operations.",
    ]
    for kind, (rms, largest) in outside_contract().items():
        lines += [
            f"- **`{kind}` is outside the contract** ({kinds.KINDS[kind].what}): root mean square "
            f"error up to {rms:.2f} u,",
            f"  largest {largest:.1f} u. Where one product makes up nearly all of a sum, tensor "
            'cores truncate the others. Take `"ieee"` there.',
        ]
    return lines


def outside_contract() -> dict[str, tuple[float, float]]:
    """Give the kinds of data that break the contract: largest root mean square and error."""
    found: dict[str, tuple[float, float]] = {}
    for _, kind, cell in data_cells():
        # Of infinities and NaN the record has one count of its own.
        mine, chain = (Errors(**{"misplaced": 0, **cell[whose]}) for whose in ("errors", "chain"))
        if broken(mine, chain) or cell["misplaced"]:
            rms, largest = found.get(kind, (0.0, 0.0))
            found[kind] = max(rms, mine.rms), max(largest, mine.largest)
    return found


# --- the blocks of docs/measurements.md -----------------------------------------------------------


def sources() -> list[str]:
    """The records that the page is made from."""
    rows = []
    optional = {"steps-moe", "steps-transformers", "attention", "examples", "peers"}
    for kind in ("stages", "select", "random", "data", "accuracy", "gpt2-200-steps",
                 "gpt2-200-steps-tf32", "steps", "steps-compiled", "reach", "steps-moe",
                 "steps-transformers", "grouped", "mixed", "invariant", "async-tp", "attention",
                 "examples", "peers"):  # fmt: skip
        if kind in optional and if_any(kind) is None:
            continue
        name, record = newest(kind)
        facts = {**record.get("environment", {}), **record.get("facts", {})}
        by = facts.get("command", "-")
        rows.append((
            f"[{name}](../benchmarks/results/{name})", facts["device"], facts["torch"],
            f"`{facts['commit'][:10]}`" if "commit" in facts else "not on record",
            f"`{by}`" if by != "-" else "not on record",
        ))  # fmt: skip
    return table(("record", "device", "torch", "commit", "command"), rows)


def speed_cell(stage: Stage, times: dict[str, dict[str, float]]) -> str:
    """Give TFLOP/s and the share of cuBLAS: times of it for what is not strict."""
    time = times.get(stage.name)
    if time is None:
        return "-"
    speed = f"{time['tflops']:.1f}" if time["tflops"] < 60 else f"{time['tflops']:.0f}"
    part = f"{time['share']:.0%}" if stage.strict else f"{time['share']:.2f}x"
    return f"{speed} ({part})"


def ladder_table() -> list[str]:
    """Every stage of the record at 4096 and 8192."""
    return table(
        ("rung", "operator", "the one idea", "4096", "8192"),
        (
            (stage.rung or "", f"`{stage.name}`", stage.idea,
             *(speed_cell(stage, runs()[size, "NN"]) for size in (4096, 8192)))
            for stage in measured()
        ),
    )  # fmt: skip


def layouts() -> list[str]:
    """The fastest stages that are strict and that are not, by size and layout."""
    rows = []
    for strict in (True, False):
        at = runs()[4096, "NN"]
        mine = [stage for stage in measured() if stage.strict == strict and stage.name in at]
        best = max(mine, key=lambda stage: at[stage.name]["tflops"])
        for layout in shapes.LAYOUTS:
            cells = [speed_cell(best, runs()[size, layout]) for size in SQUARES]
            rows.append((f"`{best.name}`", layout, *cells))
    return table(("stage", "layout", *map(str, SQUARES)), rows)


def few_rows() -> list[str]:
    """The three products of linear layers with few rows."""
    products = ("forward", "grad_x", "grad_w")
    rows = []
    for (inside, outside), count in FEW_ROWS:
        cells = []
        for precision in PRECISIONS:
            for product in products:
                label = f"linear {inside}-{outside} rows {count} {product}"
                us = fastest_us(label, precision)
                cells.append(f"{us:.{0 if us >= 100 else 3}{'f' if us >= 100 else 'g'}} "
                             f"({torch_us(label) / us:.2f}x)")  # fmt: skip
        rows.append((f"{inside} to {outside}", count, *cells))
    head = ("layer", "rows", 'y, `"ieee"`', "dX", "dW", 'y, `"fp32"`', "dX", "dW")
    return table(head, rows)


def suite() -> list[str]:
    """The suite as a whole: what the fastest rows come to."""
    rows = []
    for precision in PRECISIONS:
        labels = list(newest("select")[1]["problems"])
        ratios = [torch_us(label) / fastest_us(label, precision) for label in labels]
        rows.append((
            f'`"{precision}"`', len(ratios), f"{geometric_mean(ratios):.2f}x",
            sum(ratio < BEHIND for ratio in ratios), f"{min(ratios):.2f}x",
        ))  # fmt: skip
    return table(("precision", "problems", "geometric mean", "behind by over 2%", "worst"), rows)


def random_problems() -> list[str]:
    """``auto`` on problems with random sizes."""
    rows = []
    for precision in PRECISIONS:
        found = random_ratios(precision)
        for what, ratios in (
            ("all", [ratio for ratio, _, _ in found]),
            (f"cuBLAS takes {LONG} us or more", [ratio for ratio, us, _ in found if us >= LONG]),
            ("one row or one column", [r for r, _, sizes in found if min(sizes[1:3]) == 1]),
        ):
            rows.append((
                f'`"{precision}"`', what, len(ratios), f"{geometric_mean(ratios):.2f}x",
                share(sum(ratio < BEHIND for ratio in ratios), len(ratios)), f"{min(ratios):.2f}x",
            ))  # fmt: skip
    head = ("precision", "problems", "count", "geometric mean", "behind by over 2%", "worst")
    return table(head, rows)


def training() -> list[str]:
    """A training step of GPT-2."""
    rows = []
    for kind, what in (("gpt2-200-steps", "FP32"), ("gpt2-200-steps-tf32", "TF32")):
        name, record = newest(kind)
        ms = record["interleaved_ms"]
        rows.append((
            what, f"{ms['stock']:.0f} ms", f"{ms['converted']:.0f} ms",
            f"{record['difference']['largest']:.1e}", f"`benchmarks/results/{name}`",
        ))  # fmt: skip
    head = ("stock layers by", "stock", "converted", "losses differ by at most", "record")
    return table(head, rows)


def gained(ms: Mapping[str, float], way: str) -> str:
    """Give a way's ms, and how many times as fast as stock that is; "-" if it was not measured."""
    return f"{ms[way]:.1f} ({ms['stock'] / ms[way]:.2f}x)" if way in ms else "-"


def step_table(kind: str = "steps") -> list[str]:
    """Training steps of several models, and where a converted one's time goes.

    "-" is for what was not measured, as of a model without attention inside a patch.
    """
    rows = []
    for name, m in newest(kind)[1]["models"].items():
        ms, kinds, off = m["ms"], m["families_ms"], m["largest_difference"]
        inside = m.get("patched_families_ms", {})

        def cell(of: dict[str, float], name: str, form: str) -> str:
            return format(of[name], form) if name in of else "-"

        rows.append((
            f"{name}: {m['what']}", *(f"{ms[way]:.1f}" for way in ("stock", "tf32")),
            *(gained(ms, way) for way in ("converted", "patched", "attention")),
            ", ".join(f"{sum(of.values()):.1f}" if of else "-" for of in (kinds, inside)),
            f"{m['need_ms']:.1f}" if m["need_ms"] else "-",
            f"{kinds['products of limbs']:.1f}", f"{kinds['decompositions']:.1f}",
            f"{kinds['attention']:.1f}, {cell(inside, 'attention', '.1f')}",
            f"{m['peak_mib']['converted'] / m['peak_mib']['stock']:.2f}",
            f"{off['converted']:.0e}, {cell(off, 'patched', '.0e')}, {off['tf32']:.0e}",
        ))  # fmt: skip
    head = ("model", "stock", "TF32", "converted", "and patch", "or our attention",
            "kernels, patch's", "need", "limbs", "decomposed", "attention, patch's", "memory",
            "losses off, patch's, TF32's")  # fmt: skip
    return table(head, rows)


def named_step_table() -> list[str]:
    """Training steps of a library's models whose attention convert puts ours in place of."""
    record = if_any("steps-transformers")
    if record is None:
        return ["No record yet: `benchmarks/steps.py --models gpt2-hf llama-gqa`, on a GPU."]
    rows = []
    for m in record["models"].values():
        ms, off, peak = m["ms"], m["largest_difference"], m["peak_mib"]
        rows.append((
            m["what"], m["library"], f"{ms['stock']:.1f}", f"{ms['tf32']:.1f}",
            *(gained(ms, way) for way in ("converted", "patched", "attention")),
            f"{peak['attention'] / peak['stock']:.2f}",
            f"{off['attention']:.0e}, {off['tf32']:.0e}",
        ))  # fmt: skip
    head = ("model", "library", "stock", "TF32", "convert", "convert inside patch",
            "convert(attention=True)", "its memory", "its losses off, TF32's")  # fmt: skip
    return table(head, rows)


def library_step_table() -> list[str]:
    """The same of a library's models, and the share of their FLOP that is reached."""
    record = if_any("steps-moe")
    if record is None:
        return ["No record yet: `benchmarks/steps.py --models falcon mixtral`, on a GPU."]
    rows = []
    for m in record["models"].values():
        ms, off = m["ms"], m["largest_difference"]
        ways = m["reach"]
        rows.append((
            m["what"], m["library"], f"{ms['stock']:.1f}", f"{ms['tf32']:.1f}",
            gained(ms, "converted"),
            *(reach_page.percent(ways[way]["share"])
              for way in ("convert", "patch", "convert and patch")),
            reach_page.left(ways["convert and patch"]),
            f"{m['peak_mib']['converted'] / m['peak_mib']['stock']:.2f}",
            f"{off['converted']:.0e}, {off['tf32']:.0e}",
        ))  # fmt: skip
    head = ("model", "library", "stock", "TF32", "convert inside patch", "reached by convert",
            "by patch", "by both", "torch's own", "memory", "losses off, TF32's")  # fmt: skip
    return table(head, rows)


def grouped_table() -> list[str]:
    """Products of groups, beside torch's own and those made group by group."""
    rows = []
    for case in newest("grouped")[1]["groups"]:
        for name, found in case["products"].items():
            ms, u = found["ms"], found["error_u"]
            rows.append((
                case["name"], f"{case['rows']} x {case['k']} x {case['n']}", name,
                f"{ms['torch']:.2f}", f"{ms['by group']:.2f}",
                f"{ms['grouped_mm']:.2f} ({ms['torch'] / ms['grouped_mm']:.2f}x)",
                f"{u['torch']:.1f}, {u['grouped_mm']:.1f}",
            ))  # fmt: skip
    head = ("experts", "rows x K x N", "product", "torch", "group by group", "grouped_mm",
            "largest error, u: torch's, ours")  # fmt: skip
    return table(head, rows)


def mixed_table() -> list[str]:
    """Linear layers of bf16 activations and FP32 weights, beside those of an FP32 copy."""
    rows = []
    for case in newest("mixed")[1]["mixed"]:
        us = {way: 1e3 * ms for way, ms in case["ms"].items()}
        u = case["error_u"]
        rows.append((
            case["name"], f"{case['m']} x {case['n']} x {case['k']}",
            *(f"{us[way]:.0f}" for way in ("torch", "TF32", "copy")),
            f"{us['mixed_linear']:.0f} ({us['torch'] / us['mixed_linear']:.2f}x)",
            f"{u['torch']:.1f}, {u['TF32']:.0f}, {u['mixed_linear']:.1f}",
        ))  # fmt: skip
    head = ("layer", "M x N x K", "torch", "TF32", "linear of a copy", "mixed_linear",
            "largest error, u: torch's, TF32's, ours")  # fmt: skip
    return table(head, rows)


def invariant_table() -> list[str]:
    """Linear layers by either precision, without and with invariant=; old records have one."""
    cases = newest("invariant")[1]["invariant"]
    of = {"ieee": ("batch", "tp"), "fp32": ("fp32 batch", "fp32 batch, packed")}
    of = {precision: tuple(way for way in ways if way in cases[0]["us"])
          for precision, ways in of.items() if precision in cases[0]["us"]}  # fmt: skip
    rows = []
    for case in cases:
        us, eager = case["us"], case["eager_us"]
        device, calls = [f"{us['torch']:.1f}"], []
        for precision, ways in of.items():
            device.append(f"{us[precision]:.1f}")
            device += [f"{us[way]:.1f} ({us[precision] / us[way]:.2f}x)" for way in ways]
            calls += [f"{eager[way]:.0f}" for way in (precision, *ways)]
        rows.append((f"{case['m']} x {case['n']} x {case['k']}", *device, *calls))
    titles = {"fp32 batch": '"fp32", "batch"', "fp32 batch, packed": '"fp32", "batch", packed'}
    named = [titles.get(way, f'"{way}"')
             for precision, ways in of.items() for way in (precision, *ways)]  # fmt: skip
    head = ("M x N x K", "torch", *named, f"a call of {named[0]}",
            *(f"of {name}" for name in named[1:]))  # fmt: skip
    return table(head, rows)


def parallel_table() -> list[str]:
    """Tensor-parallel layers: a collective and a product, in order and overlapped."""
    rows = []
    name, record = newest("async-tp")
    for case in record["cases"]:
        for function, found in case["layers"].items():
            ms, step = found["ms"], found["step_ms"]
            rows.append((
                case["name"], f"`{function}`",
                *(f"{ms[way]:.2f}"
                  for way in ("collective", "product", "in order", "overlapped", "torch")),
                f"{step['in order']:.2f}, {step['overlapped']:.2f}",
            ))  # fmt: skip
    head = ("layers", "function", "collective", "product", "in order", "overlapped",
            "torch's overlapped", "a step, in order and overlapped")  # fmt: skip
    return [f"{record['ranks']} GPUs:", "", *table(head, rows)]


def attention_table() -> list[str]:
    """Attention, forward and backward, beside torch's own."""
    record = if_any("attention")
    if record is None:
        return ["No record yet: `python benchmarks/attention.py --json attention.json`, on a GPU."]
    return table(attention_page.HEAD, attention_page.rows(record))


def error_table() -> list[str]:
    """Errors on normal data by depth."""
    names = {"chain": '`"ieee"` (one chain)', "torch.mm": "torch FP32", "sgemm": '`"fp32"`',
             "TF32": "TF32"}  # fmt: skip
    rows = []
    for k in newest("accuracy")[1]["depths"]:
        errors = normal_errors(k)
        cells = [f"{errors[name]['rms']:.3g} / {errors[name]['largest']:.3g}" for name in names]
        rows.append((k, *cells))
    return table(("K", *names.values()), rows)


def data_table() -> list[str]:
    """Each kind of data: the longest time beside normal data's, and the largest errors."""
    by_kind: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for problem, kind, cell in data_cells():
        by_kind.setdefault(kind, []).append((problem, cell))
    rows = []
    for kind, cells in by_kind.items():
        slow, where = max((cell["us"] / cell["normal_us"], problem) for problem, cell in cells)
        least = min(cell["torch_mm_us"] / cell["us"] for _, cell in cells)
        rms = max(cell["errors"]["rms"] for _, cell in cells)
        largest = max(cell["errors"]["largest"] for _, cell in cells)
        known = kinds.KINDS[kind]
        rows.append((
            f"`{kind}`", known.what, "yes" if known.realistic else "no",
            f"{slow:.2f}x" + (f" ({where})" if slow >= 1.3 else ""), f"{least:.2f}x",
            f"{rms:.2f}", f"{largest:.2f}",
        ))  # fmt: skip
    head = ("kind", "what", "people multiply it", "longest time beside normal data's",
            "least speed beside cuBLAS", "rms", "largest")  # fmt: skip
    return table(head, rows)


def reach_table() -> list[str]:
    """What convert and patch reach of each architecture."""
    return table(reach_page.HEAD, reach_page.rows(newest("reach")[1]))


def reach_in_words() -> list[str]:
    """How many architectures there are, and how many a patch reaches nearly all of."""
    found = newest("reach")[1]["models"].values()
    shares = {
        way: [e[way]["share"] for e in found if e.get(way, {}).get("flops")]
        for way in ("convert", "patch")
    }
    ran = sum(e["status"] == "ok" for e in found)
    counts = [sum(share > 0.9 for share in shares[way]) for way in shares]
    return [
        f"{ran} of {len(found)} ran in every way. More than nine tenths of the FLOP are reached in",
        f"{counts[0]} by `convert`, in {counts[1]} by `patch`.",
    ]


def peer_table() -> list[str]:
    """Each library's speed and error on each problem, or why there is none."""
    record = if_any("peers")
    if record is None:
        return ["No record yet: `python benchmarks/peers.py --json peers.json`, on a GPU."]
    products = record["products"]
    labels = sorted(products, key=lambda label: (products[label]["problem"][4], label))
    rows = []
    for name, about in record["peers"].items():
        version = f" {about['version'].partition('+')[0]}" if about["version"] else ""
        cells = []
        for label in labels:
            entry = products[label]
            _, m, n, k, _ = entry["problem"]
            if name not in entry["us"]:
                cells.append(about["absent"] or ("failed" if name in entry["failed"] else "-"))
                continue
            speed = tflops(m, n, k, entry["us"][name] * 1e-6)
            cells.append(f"{figure(speed)} / {figure(entry['errors'][name]['rms'])}")
        rows.append((name, f"{about['what']}{version}", *cells))
    return table(("library", "call", *(label.removeprefix("square ") for label in labels)), rows)


# --- the blocks of docs/examples.md ---------------------------------------------------------------


def example_table() -> list[str]:
    """Times, memory and errors of the examples."""
    record = if_any("examples")
    return examples_page.rows(record, table) if record else examples_page.NOTHING


def example_details() -> list[str]:
    """Their sizes, and what they count."""
    record = if_any("examples")
    return examples_page.details(record) if record else []


def example_chart() -> list[str]:
    """The chart of their errors."""
    record = if_any("examples")
    name = EXAMPLES_CHART.relative_to(ROOT / "docs")
    return [f"![{examples_page.alternative(record)}]({name})"] if record else []


BLOCKS: dict[str, Callable[[], list[str]]] = {
    "gains": gains, "gpus": gpus, "chart": chart, "speeds": speeds, "ladder": ladder,
    "limits": limits, "records": sources, "ladder-table": ladder_table, "layouts": layouts,
    "few-rows": few_rows, "suite": suite, "random": random_problems, "training": training,
    "steps": step_table, "steps-compiled": partial(step_table, "steps-compiled"),
    "steps-moe": library_step_table, "steps-transformers": named_step_table,
    "grouped": grouped_table, "mixed": mixed_table,
    "invariant": invariant_table, "async-tp": parallel_table,
    "attention": attention_table,
    "errors": error_table, "data": data_table, "reach": reach_table,
    "reach-in-words": reach_in_words, "peers": peer_table, "examples": example_table,
    "examples-chart": example_chart, "examples-details": example_details,
}  # fmt: skip


# --- the chart ------------------------------------------------------------------------------------


def chart_data() -> dict[str, Any]:
    """Give what the chart shows: speeds of squares, errors, and the times of a training step."""
    speed: dict[str, list[float]] = {"torch FP32": [], "ieee": [], "fp32": []}
    for size in SQUARES:
        label = f"square {size} NN"
        for name, us in (
            ("torch FP32", torch_us(label)),
            *((precision, fastest_us(label, precision)) for precision in PRECISIONS),
        ):
            speed[name].append(tflops(size, size, size, us * 1e-6))
    errors = normal_errors(DEPTH)
    of = {"torch FP32": "torch.mm", "ieee": "chain", "fp32": "sgemm", "TF32": "TF32"}
    device, ms, _ = gpt2_step()
    return {
        "device": newest("select")[1]["facts"]["device"],
        "speed": speed,
        "errors": {
            name: {key: errors[mine][key] for key in ("rms", "largest")}
            for name, mine in of.items()
        },
        "steps": {"torch FP32": ms["stock"], "fp32": ms["patched"], "TF32": ms["tf32"]},
        "steps_device": device,
    }  # fmt: skip


def digest(data: dict[str, Any]) -> str:
    """Name what a picture shows: a chart drawn from other figures has another."""
    text = json.dumps(data, sort_keys=True)
    drawn = re.sub(r"\d+\.\d+(e-?\d+)?", lambda found: f"{float(found[0]):.3g}", text)
    return hashlib.sha256(drawn.encode()).hexdigest()[:16]


def draw(data: dict[str, Any], path: Path) -> None:
    """Draw the chart into an SVG, or by its suffix a PNG."""
    from matplotlib import rc_context
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch

    colors = {"torch FP32": plotting.GREY, "ieee": plotting.BLUE, "fp32": plotting.GREEN,
              "TF32": plotting.ORANGE}  # fmt: skip
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "xgemm", "font.family": "sans-serif"}):
        made = plotting.new_figure(11, 3.9)
        grid = made.add_gridspec(1, 3, width_ratios=(1.7, 1.25, 0.9), wspace=0.28,
                                   left=0.04, right=0.985, top=0.74, bottom=0.13)  # fmt: skip
        made.text(0.04, 0.94, f"FP32 matrix products on an {data['device']}", fontsize=13,
                    fontweight="bold", color=plotting.INK)  # fmt: skip
        speed, error, step = (made.add_subplot(grid[0, i]) for i in range(3))
        plotting.dress(speed, "TFLOP/s, M = N = K, normal data")
        for i, (name, values) in enumerate(data["speed"].items()):
            places = [j + 0.27 * (i - 1) for j in range(len(values))]
            speed.bar(places, values, 0.25, color=colors[name])
            for x, y in zip(places, values, strict=True):
                speed.text(x, y + 3, f"{y:.0f}", ha="center", fontsize=8, color=plotting.INK)
        speed.set_xticks(range(len(SQUARES)), list(map(str, SQUARES)), fontsize=8)
        speed.grid(axis="x", visible=False)
        plotting.dress(error, f"error, u = 2^-24 |A| |B|, K = {DEPTH}")
        for i, (name, e) in enumerate(data["errors"].items()):
            error.bar(i - 0.2, e["rms"] - FLOOR, 0.36, FLOOR, color=colors[name])
            light = [0.45 * x + 0.55 for x in to_rgb(colors[name])]
            error.bar(i + 0.2, e["largest"] - FLOOR, 0.36, FLOOR, color=light)
            for x, y in ((i - 0.2, e["rms"]), (i + 0.2, e["largest"])):
                error.text(x, y * 1.15, figure(y), ha="center", fontsize=8, color=plotting.INK)
        error.set_yscale("log")
        error.set_ylim(FLOOR, 4000)
        error.minorticks_off()
        error.set_xticks(range(len(data["errors"])), list(data["errors"]), fontsize=8)
        error.text(0.02, 0.93, "dark: root mean square\nlight: largest", fontsize=8, va="top",
                   color=plotting.QUIET, transform=error.transAxes)  # fmt: skip
        error.grid(axis="x", visible=False)
        plotting.dress(step, f"GPT-2, ms a step ({data['steps_device']})")
        for i, (name, ms) in enumerate(data["steps"].items()):
            step.bar(i, ms, 0.6, color=colors[name])
            step.text(i, ms + 2, f"{ms:.0f}", ha="center", fontsize=8, color=plotting.INK)
        step.set_xticks(range(len(data["steps"])), list(data["steps"]), fontsize=8)
        step.grid(axis="x", visible=False)
        names = {"torch FP32": "torch FP32 (cuBLAS)", "ieee": 'xgemm_torch, precision="ieee"',
                 "fp32": 'xgemm_torch, precision="fp32"', "TF32": "torch, TF32"}  # fmt: skip
        made.legend([Patch(color=colors[name]) for name in names], list(names.values()), ncols=4,
                      loc="upper left", bbox_to_anchor=(0.03, 0.93), frameon=False, fontsize=8.5,
                      labelcolor=plotting.INK)  # fmt: skip
        about = {"Date": None, "Description": digest(data)} if path.suffix == ".svg" else None
        made.savefig(path, metadata=about)


# --- all together ---------------------------------------------------------------------------------


def filled(text: str) -> str:
    """Give a page with every block made anew; KeyError for a block that there is not."""

    def block(found: re.Match[str]) -> str:
        return found[1] + "".join(f"{line}\n" for line in BLOCKS[found[2]]()) + found[3]

    return BLOCK.sub(block, text)


def stale_examples(chart: Path = EXAMPLES_CHART) -> bool:
    """Whether the chart of the examples is not what the record shows."""
    record = if_any("examples")
    if record is None:
        return False
    wanted = digest(examples_page.shown(record))
    return not chart.exists() or wanted not in chart.read_text(encoding="utf-8")


def stale(pages: Sequence[Path] = PAGES, chart: Path = CHART) -> list[str]:
    """Say which pages, and whether the chart, are not what they would be if made now."""
    wrong = []
    for path in pages:
        text = path.read_text(encoding="utf-8")
        if filled(text) != text:
            wrong.append(f"{path.name}: stale")
    if not chart.exists() or digest(chart_data()) not in chart.read_text(encoding="utf-8"):
        wrong.append(f"{chart.name}: stale")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Write, or check; returns 1 when something is stale under --check, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, say what is stale")
    if parser.parse_args(arguments).check:
        wrong = stale() + [f"{EXAMPLES_CHART.name}: stale"] * stale_examples()
        for line in wrong:
            print(line)
        return 1 if wrong else 0
    for path in PAGES:
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    if stale(pages=()):
        draw(chart_data(), CHART)
    if stale_examples() and (record := if_any("examples")) is not None:
        data = examples_page.shown(record)
        examples_page.draw(data, digest(data), EXAMPLES_CHART)
    charts = [path for path in (CHART, EXAMPLES_CHART) if path.exists()]
    print(", ".join(str(path.relative_to(ROOT)) for path in (*PAGES, *charts)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
