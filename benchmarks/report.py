"""Writes one HTML file that shows all records: charts, and tables that sort and filter.

    python benchmarks/report.py --html report.html               # of benchmarks/results
    python benchmarks/report.py --html mine.html my-random.json  # of these records alone
    python benchmarks/report.py --html report.html --git         # and history from git's older ones

Needs no GPU. The file fetches nothing, and the same records give the same bytes. A record is shown
by what it holds, whatever its name is; a form that is not known is listed among the records.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import attention_page  # noqa: E402
import kinds  # noqa: E402
import page  # noqa: E402
import paired  # noqa: E402
import reach_page  # noqa: E402
import records  # noqa: E402
import shapes  # noqa: E402
from page import choice, figures, num, words  # noqa: E402

from xgemm_torch.registry import stages  # noqa: E402
from xgemm_torch.tools import accuracy  # noqa: E402
from xgemm_torch.tools.contenders import keeps, rows_of  # noqa: E402
from xgemm_torch.tools.files import write_text  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
PRECISIONS = ("fp32", "ieee")
WAYS = {"stock": "stock FP32", "tf32": "TF32", "converted": "converted"}
CLASSES = ("one row or column", "few rows", "short K", "large")
# Rows or columns, and K, that are few.
FEW = 64
# Behind torch.mm by more than this share of its time.
BEHIND = 0.98


@dataclass(frozen=True)
class Record:
    """A record: its name, its form by what it holds, and its content."""

    name: str
    content: Mapping[str, Any]

    @property
    def form(self) -> str:
        """Which of `FORMS` it has; "" for none."""
        return next((form for form, holds in FORMS.items() if holds(self.content)), "")

    @property
    def series(self) -> str:
        """What records of one history have in common: the name without date and count."""
        name = re.sub(r"^\d{4}-\d\d-\d\d-", "", Path(self.name).name.partition(".")[0])
        return re.sub(r"^[a-z-]+-stages$", "stages", name)

    @property
    def facts(self) -> Mapping[str, Any]:
        """Where and how it was measured, as far as it says; a training has an environment, too."""
        return {**self.content.get("environment", {}), **self.content.get("facts", {})}

    @property
    def gpu(self) -> str:
        """The GPU's name without its maker and memory; `overview` has the whole one."""
        name = str(self.facts.get("device", "-")).removeprefix("NVIDIA ")
        if name.endswith(" threads"):  # a CPU
            return "-"
        return re.sub(r" \d+GB.*", "", name)

    @property
    def date(self) -> str:
        """The day, of the facts or of the name."""
        found = re.match(r"\d{4}-\d\d-\d\d", Path(self.name).name)
        return str(self.facts.get("date", found[0] if found else "-"))[:10]


def _problems(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = content.get("problems")
    return list(found.values()) if isinstance(found, dict) else []


def _each_has(content: Mapping[str, Any], *keys: str) -> bool:
    found = _problems(content)
    return bool(found) and all(key in found[0] for key in keys)


FORMS = {
    "async-tp": lambda c: "ranks" in c and "cases" in c,
    "auto": lambda c: _each_has(c, "torch_mm_us", "auto_us", "problem"),
    "rows": lambda c: _each_has(c, "torch_mm_us", "us"),
    "split-k": lambda c: _each_has(c, "torch.mm", "one chain"),
    "stages": lambda c: "cases" in c,
    "data": lambda c: "cells" in c,
    "accuracy": lambda c: "depths" in c and "rows" in c,
    "reach": lambda c: "models" in c and "precision" in c,
    "steps": lambda c: "models" in c,
    "examples": lambda c: "examples" in c,
    "training": lambda c: "runs" in c and "interleaved_ms" in c,
    "compile": lambda c: "nvcc" in c and "stages" in c,
    "peers": lambda c: "peers" in c and "products" in c,
    "benches": lambda c: "benches" in c,
    "exercises": lambda c: "exercises" in c,
    "gate": lambda c: "planted" in c and "pairs" in c,
    "grouped": lambda c: "groups" in c,
    "mixed": lambda c: "mixed" in c,
    "attention": lambda c: "attention" in c,
    "invariant": lambda c: "invariant" in c,
}


def read(paths: Iterable[Path]) -> list[Record]:
    """Give the records of files, named by their place in the results' folder."""
    return [
        Record(
            path.resolve().relative_to(RESULTS).as_posix()
            if path.resolve().is_relative_to(RESULTS)
            else path.name,
            records.read(path),
        )
        for path in paths
    ]


def of(found: Sequence[Record], *forms: str) -> list[Record]:
    """Those of some forms."""
    return [record for record in found if record.form in forms]


def told_apart(record: Record, among: Sequence[Record]) -> str:
    """Give a record's series, with the day where it has a namesake of the same GPU."""
    same = [r for r in among if (r.series, r.gpu) == (record.series, record.gpu)]
    return f"{record.series}, {record.date}" if len(same) > 1 else record.series


def listed(pairs: Iterable[tuple[str, float]]) -> str:
    """Names and figures for a text alternative."""
    return ", ".join(f"{name} {num(value)}" for name, value in pairs)


# --- records --------------------------------------------------------------------------------------


def overview(found: Sequence[Record]) -> str:
    """Hardware, software, commit and command of each record, and its main figures."""
    rows = []
    for record in found:
        facts = record.facts
        driver = facts.get("driver", {})
        clocks = _clocks(record.content)
        rows.append((
            record.name, record.form or "not shown below", facts.get("device", "-"), record.date,
            facts.get("commit", "")[:10] or "not on record", facts.get("torch", "not on record"),
            driver.get("driver_version", "-"), facts.get("cuda") or facts.get("torch_cuda")
            or record.content.get("nvcc", "-"),
            facts.get("build", {}).get("archs") or record.content.get("arch", "-"),
            driver.get("clocks.max.sm", "-"), *clocks,
            facts.get("command", "not on record"),
        ))  # fmt: skip
    columns = (
        words("record"), choice("form"), choice("GPU", "gpu"), words("date"), words("commit"),
        words("torch"), words("driver"), words("CUDA", "cuda"), words("code for", "archs"),
        words("most MHz", "max_mhz"), figures("SM MHz, median", "mhz"), figures("W, median", "w"),
        words("command"),
    )  # fmt: skip
    lines = [
        (told_apart(r, found), r.gpu, what, value)
        for r in found
        for what, value in (followed(r) or {}).items()
    ]
    return page.table(
        "t-records", "Each record: where, with what and how", columns, rows
    ) + page.table(
        "t-figures", "What each record says, in few figures; times are medians, ratios of times",
        (choice("record"), choice("GPU", "gpu"), words("figure"), figures("value")), lines,
    )  # fmt: skip


def _clocks(content: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Medians of clock and power over all that the record says of them."""
    found: list[Mapping[str, Any]] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "sm_mhz" in value:
                found.append(value)
            else:
                for inner in value.values():
                    walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk({key: content[key] for key in ("clocks", "cases", "models", "examples") if key in content})
    return (
        median(c["sm_mhz"]["p50"] for c in found) if found else None,
        median(c["power_w"]["p50"] for c in found) if found else None,
    )


# --- speed by size --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """One problem in one precision, beside torch.mm."""

    record: Record
    batch: int
    m: int
    n: int
    k: int
    layout: str
    precision: str
    torch_us: float
    us: float
    by: str

    @property
    def ratio(self) -> float:
        """How many times as fast as torch.mm."""
        return self.torch_us / self.us

    @property
    def shape(self) -> str:
        """Which of `CLASSES` it is of."""
        least = min(self.m, self.n)
        if least == 1:
            return CLASSES[0]
        return CLASSES[1 if least <= FEW else 2 if self.k <= FEW else 3]


def products(record: Record) -> Iterator[Product]:
    """Problems by precision: what `auto` took, or where only rows were measured the fastest one."""
    if record.form == "auto":
        for p in _problems(record.content):
            for precision in PRECISIONS:
                yield Product(record, *p["problem"], precision, p["torch_mm_us"],
                              p["auto_us"][precision], p["auto"][precision])  # fmt: skip
        return
    suite = {p.label: p for p in shapes.suite()}
    known = rows_of(stages())
    for label, p in record.content["problems"].items():
        if label not in suite:
            continue
        at = suite[label]
        for precision in PRECISIONS:
            strict = precision == "ieee"
            times = {r.key: p["us"][r.key] for r in known
                     if r.key in p["us"] and keeps(r, at, strict=strict)}  # fmt: skip
            if times:
                best = min(times, key=lambda key: times[key])
                yield Product(record, 1, at.m, at.n, at.k, at.layout, precision,
                              p["torch_mm_us"], times[best], best)  # fmt: skip


def speeds(found: Sequence[Record]) -> str:
    """How speed depends on size: summary by class, scatters, and every problem."""
    mine = sorted(of(found, "auto", "rows"), key=lambda r: (r.form, r.series != "random", r.name))
    each = [
        (record, precision, [p for p in products(record) if p.precision == precision])
        for record in mine
        for precision in PRECISIONS
    ]
    summary, drawn, lines = [], [], []
    for record, precision, some in each:
        if not some:
            continue
        how = "auto" if record.form == "auto" else "fastest config"
        series = told_apart(record, mine)
        for name in ("all", *CLASSES):
            ratios = [p.ratio for p in some if name in ("all", p.shape)]
            if ratios:
                behind = sum(r < BEHIND for r in ratios) / len(ratios)
                summary.append((series, record.gpu, how, precision, name, len(ratios),
                                f"{geometric_mean(ratios):.2f}x", f"{behind:.0%}",
                                f"{min(ratios):.2f}x", f"{max(ratios):.2f}x"))  # fmt: skip
        title = f"{series}, {record.gpu}: {how}, {precision}"
        drawn.append(_scatter(title, some, len(lines)))
        lines += [
            (series, record.gpu, p.batch, p.m, p.n, p.k, p.layout, p.shape, precision,
             p.torch_us, p.us, round(p.ratio, 3), _config(p.by))
            for p in some
        ]  # fmt: skip
    return "".join((
        page.note(
            "Times are device time: medians of CUDA-graph replays in turns with torch.mm (cuBLAS "
            "FP32), operands rotated through memory, chip hot. Ratio: torch.mm's time over ours. "
            f"Classes: min(M, N) = 1; few rows, or columns: up to {FEW}; short K: up to {FEW}; "
            "large: the rest, squares among them. A mark tells its problem when pointed at, and "
            "leads to its row; the table's filter hides marks."
        ),
        page.charts(*drawn),
        page.table(
            "t-classes", "Ratio to torch.mm by class of shape; behind: by over 2%",
            (choice("record"), choice("GPU", "gpu"), choice("by"), choice("precision"),
             choice("class"), figures("problems"), figures("geometric mean", "mean"),
             figures("behind"), figures("least"), figures("most")), summary,
        ),
        page.table(
            "t-problems", "Every problem, in microseconds",
            (choice("record"), choice("GPU", "gpu"), figures("batch"), figures("M", "m"),
             figures("N", "n"), figures("K", "k"), choice("layout"), choice("class"),
             choice("precision"), figures("torch.mm", "torch"), figures("ours", "us"),
             figures("ratio"), words("config")), lines,
        ),
    ))  # fmt: skip


def _config(key: str) -> str:
    """The stage and the block's tile of a row's key."""
    return " ".join(key.split(" ", 2)[:2])


def _scatter(title: str, some: Sequence[Product], first: int) -> str:
    x = page.span((p.torch_us for p in some), "torch.mm, us", log=True)
    y = page.span([1.0, *(p.ratio for p in some)], "times as fast as torch.mm", log=True)
    said = "; ".join(
        f"{name}: {len(r)} problems, geometric mean {geometric_mean(r):.2f}, "
        f"from {min(r):.2f} to {max(r):.2f}"
        for name in CLASSES
        if (r := [p.ratio for p in some if p.shape == name])
    )
    return page.chart(
        title, f"{title}. Ratio to torch.mm by torch.mm's time, both logarithmic. {said}.", x, y,
        lambda fx, fy: page.marks(
            (fx(p.torch_us), fy(p.ratio), CLASSES.index(p.shape)) for p in some
        ),
        series=[(name, i) for i, name in enumerate(CLASSES)], level=1.0,
        points=f"t-problems {first}",
    )  # fmt: skip


# --- data -----------------------------------------------------------------------------------------

LIMITS = (
    ("rms", 1.0, accuracy.RMS_FLOOR),
    ("largest", accuracy.LARGEST_LIMIT, accuracy.LARGEST_FLOOR),
    ("mean", 1.0, accuracy.MEAN_FLOOR),
)


def of_limit(errors: Mapping[str, float], chain: Mapping[str, float]) -> float:
    """The largest share that an error has of what the contract allows beside the chain's."""
    return max(
        abs(errors[term]) / max(factor * abs(chain[term]), floor) for term, factor, floor in LIMITS
    )


def slower(x: float) -> str:
    """The colour of a time beside that of normal data."""
    return _level("b", x, (1.05, 1.2, 1.5, 2.0, 3.0)) if x >= 1 else _level("g", 1 / x, (1.05, 1.2))


def faster(x: float) -> str:
    """The colour of a speed beside torch.mm's."""
    levels = (1.02, 1.3, 2.0, 3.0, 4.0)
    return _level("g", x, levels) if x >= 1 else _level("b", 1 / x, (1.02, 1.15, 1.3, 1.6, 2.0))


def inexact(x: float) -> str:
    """The colour of a share of the limit."""
    return "b5" if x > 1 else _level("g", x, (0.1, 0.25, 0.5, 0.75))


def _level(letter: str, x: float, levels: Sequence[float]) -> str:
    count = sum(x >= level for level in levels)
    return f"{letter}{count}" if count else "n"


def data(found: Sequence[Record]) -> str:
    """By what operands hold: heat maps of kinds and problems, and every cell."""
    parts = [page.note(
        "Every cell was timed in turns with random normal data and with torch.mm on the same "
        "operands. Errors are of sampled rows against float64, in units of u = 2^-24 |A| |B|, "
        "beside those of one sequential FP32 FMA chain. Share of the limit: of root mean square, "
        "largest and mean error the one that is nearest to what the contract of "
        'precision="fp32" allows; over 1 is outside it.'
    )]  # fmt: skip
    rows = []
    for number, record in enumerate(of(found, "data")):
        cells = record.content["cells"]
        names = list(dict.fromkeys(kind for by_kind in cells.values() for kind in by_kind))
        maps = (
            ("time", "time beside that of normal data", slower,
             lambda c: c["us"] / c["normal_us"]),
            ("speed", "speed beside torch.mm", faster, lambda c: c["torch_mm_us"] / c["us"]),
            ("error", "error as a share of the contract's limit", inexact,
             lambda c: of_limit(c["errors"], c["chain"])),
        )  # fmt: skip
        for short, what, level, value in maps:
            parts.append(page.heat(
                f"h-{short}-{number}", f"{record.series}, {record.gpu}: {what}, kinds of data x "
                "problems M x N x K-layout", list(cells),
                [(kind, [value(c[kind]) if kind in c else None for c in cells.values()])
                 for kind in names], level,
            ))  # fmt: skip
        for problem, by_kind in cells.items():
            sizes, _, layout = problem.partition("-")
            for kind, c in by_kind.items():
                known = kinds.KINDS.get(kind)
                errors, chain = c["errors"], c["chain"]
                rows.append((
                    record.gpu, kind, "-" if known is None else "yes" if known.realistic else "no",
                    *map(int, sizes.split("x")), layout, c["us"], c["normal_us"], c["torch_mm_us"],
                    round(c["us"] / c["normal_us"], 3), round(c["torch_mm_us"] / c["us"], 3),
                    errors["rms"], chain["rms"], errors["largest"], chain["largest"],
                    round(of_limit(errors, chain), 3), c["misplaced"],
                    "; ".join(f"{term} {said}" for term, said in c["broken"].items()) or "kept",
                ))  # fmt: skip
    columns = (
        choice("GPU", "gpu"), choice("kind"), choice("people multiply it", "realistic"),
        figures("M", "m"), figures("N", "n"), figures("K", "k"), choice("layout"),
        figures("us"), figures("normal data's", "normal"), figures("torch.mm", "torch"),
        figures("x normal", "slower"), figures("ratio to torch.mm", "ratio"), figures("rms"),
        figures("chain's rms", "chain_rms"), figures("largest"),
        figures("chain's largest", "chain_largest"), figures("share of the limit", "share"),
        figures("misplaced"), words("contract"),
    )  # fmt: skip
    parts.append(page.table("t-data", "Every kind of data in every problem: microseconds and "
                            "errors in u", columns, rows))  # fmt: skip
    return "".join(parts)


# --- accuracy -------------------------------------------------------------------------------------


def depths(found: Sequence[Record]) -> str:
    """Errors by depth, of each scheme on each kind of operands."""
    drawn, rows = [], []
    for record in of(found, "accuracy"):
        by_kind: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for row in record.content["rows"]:
            by_kind[row["distribution"]].append(row)
            for scheme, e in row["errors"].items():
                rows.append((
                    record.gpu, row["distribution"], row["k"], scheme, e["rms"], e["largest"],
                    e["mean"], e["misplaced"], row.get("recomputed", {}).get(scheme, "-"),
                    row.get("units", {}).get(scheme, "-"),
                ))  # fmt: skip
        schemes = list(record.content["rows"][0]["errors"])
        drawn += [_by_depth(record, kind, some, schemes) for kind, some in by_kind.items()]
    columns = (
        choice("GPU", "gpu"), choice("operands"), figures("K", "k"), choice("scheme"),
        figures("rms"), figures("largest"), figures("mean"), figures("misplaced"),
        figures("recomputed"), figures("units"),
    )  # fmt: skip
    return "".join((
        page.note(
            "Against float64, in units of u = 2^-24 |A| |B|. Lines: root mean square; dots: the "
            "largest error. sgemm is precision=\"fp32\" by the stage that auto takes; TF32 is what "
            "rounding the operands costs; chain is one sequential FP32 FMA chain. A zero, which a "
            "logarithmic axis does not have, is left out."
        ),
        page.charts(*drawn),
        page.table("t-depths", "Errors by kind of operands, depth and scheme", columns, rows),
    ))  # fmt: skip


def _by_depth(
    record: Record, kind: str, some: Sequence[Mapping[str, Any]], schemes: Sequence[str]
) -> str:
    shown = [s for s in ("chain", "torch.mm", "TF32", "sgemm") if s in schemes]
    values = [row["errors"][s][t] for row in some for s in shown for t in ("rms", "largest")]
    x = page.span((row["k"] for row in some), "K", log=True)
    y = page.span(values, "error, u", log=True)
    deepest = max(some, key=lambda row: row["k"])
    title = f"{kind}, {record.gpu}"
    said = listed((s, deepest["errors"][s]["rms"]) for s in shown)
    numbers = {"chain": 4, "torch.mm": 0, "TF32": 5, "sgemm": 2}

    def draw(fx: page.Scale, fy: page.Scale) -> str:
        parts = []
        for scheme in shown:
            for term in ("rms", "largest"):
                at = [(row["k"], row["errors"][scheme][term]) for row in some]
                places = [(fx(k), fy(e)) for k, e in at if e > 0 and math.isfinite(e)]
                parts.append(page.line(places, numbers[scheme], dots=term == "largest"))
        return "".join(parts)

    return page.chart(
        title, f"{title}: errors by K. Root mean square at K = {deepest['k']}, in u: {said}.",
        x, y, draw, series=[(s, numbers[s]) for s in shown], height=270,
    )  # fmt: skip


# --- stages ---------------------------------------------------------------------------------------


def ladder(found: Sequence[Record]) -> str:
    """Stages at squares, and what ptxas gives their kernels."""
    drawn, rows, compiled = [], [], []
    for record in of(found, "stages"):
        for case in record.content["cases"]:
            errors = case["check"].get("errors", {})
            for name, t in case["times"].items():
                samples = t.get("samples_s", [])
                spread = (max(samples) - min(samples)) / t["median_s"] if len(samples) > 1 else None
                rows.append((
                    record.gpu, name, case["size"], case["layout"], t["median_s"] * 1e6,
                    t["tflops"], round(t["share"], 3),
                    None if spread is None else round(100 * spread, 2),
                    errors.get(name, {}).get("rms"), errors.get(name, {}).get("largest"),
                ))  # fmt: skip
        largest = [c for c in record.content["cases"] if (c["size"], c["layout"]) == (4096, "NN")]
        for case in largest[:1]:
            at = [(name, t["tflops"], t["share"]) for name, t in case["times"].items()]
            title = f"Stages at 4096 x 4096 x 4096 NN, {record.gpu}: TFLOP/s (ratio to torch.mm)"
            drawn.append(page.bars(
                title, f"{title}: {listed((name, value) for name, value, _ in at)}.",
                [(name, [(value, 4 if name == "torch.mm" else 0, f"{value:.1f} ({share:.2f})")])
                 for name, value, share in at],
            ))  # fmt: skip
    for record in of(found, "compile"):
        for stage, kernels in record.content["stages"].items():
            compiled += [
                (stage, k["kernel"], k["tile"], k["threads"], k["registers"], k["smem"],
                 k["local"], k["blocks_per_sm"], round(k["occupancy"], 3))
                for k in kernels
            ]  # fmt: skip
    parts = [page.charts(*drawn)]
    if rows:
        parts.append(page.table(
            "t-stages", "Stages at squares: TFLOP/s, ratio to torch.mm, spread of samples; errors "
            "in u where a stage is not bit-exact to the chain",
            (choice("GPU", "gpu"), choice("stage"), choice("size"), choice("layout"),
             figures("us"), figures("TFLOP/s", "tflops"), figures("ratio"),
             figures("spread, %", "spread"), figures("rms"), figures("largest")), rows,
        ))  # fmt: skip
    if compiled:
        parts.append(page.table(
            "t-compile", "What ptxas gives: registers a thread, bytes of static shared memory, "
            "bytes of local memory, blocks a multiprocessor",
            (choice("stage"), words("kernel"), figures("config"), figures("threads"),
             figures("registers"), figures("smem"), figures("local"),
             figures("blocks/SM", "blocks"), figures("occupancy")), compiled,
        ))  # fmt: skip
    return "".join(parts)


def split_k(found: Sequence[Record]) -> str:
    """Products of few results: one chain an element, or several."""
    rows = []
    for record in of(found, "split-k"):
        for label, times in record.content["problems"].items():
            several = {k: v for k, v in times.items() if k not in ("torch.mm", "one chain")}
            if not several:
                continue
            best = min(several, key=lambda key: several[key])
            one, many = times["one chain"], several[best]
            rows.append((
                record.gpu, label, times["torch.mm"], one, many, best, round(one / many, 3),
                round(times["torch.mm"] / min(one, many), 3),
            ))  # fmt: skip
    return page.table(
        "t-split-k", "Fastest strict config with one chain an element and with several (tile, "
        "split_k_size), microseconds",
        (choice("GPU", "gpu"), words("problem"), figures("torch.mm", "torch"),
         figures("one chain", "one"), figures("several"), words("by"),
         figures("one / several", "gain"), figures("ratio to torch.mm", "ratio")), rows,
    )  # fmt: skip


# --- models ---------------------------------------------------------------------------------------

# What a converted step's time is made of, as steps.py has it, and the colours.
FAMILIES = {
    "products of limbs": 2, "decompositions": 1, "recomputed": 5, "attention": 3,
    "stock products": 0, "strict products": 7, "rest": 4,
}  # fmt: skip
OF_WAY = {"stock": 4, "tf32": 1, "converted": 2, "patched": 3, "attention": 5}
OF_PASS = {"forward": 2, "backward": 1}


# Of models with attention, as steps.py has them.
MORE_WAYS = {"patched": "converted inside patch()", "attention": "converted, attention ours"}


def steps(found: Sequence[Record]) -> str:
    """Training steps of models by stock, TF32 and converted layers, those inside a patch, and those
    whose attention is ours by its name."""
    labels = {**WAYS, **MORE_WAYS}
    drawn, rows = [], []
    for record in of(found, "steps"):
        models, compiled = record.content["models"], record.content.get("compiled", False)
        where = f"{'torch.compile' if compiled else 'eager'}, {record.gpu}"
        for name, m in models.items():
            ms, off, peak = m["ms"], m["largest_difference"], m["peak_mib"]
            families, inside = m["families_ms"], m.get("patched_families_ms", {})
            rows.append((
                record.gpu, "torch.compile" if compiled else "eager", name,
                "; ".join((m["what"], *filter(None, [m.get("library")]))),
                *(ms.get(way) for way in labels), f"{ms['stock'] / ms['converted']:.2f}x",
                f"{ms['stock'] / ms['tf32']:.2f}x",
                *(f"{ms['stock'] / ms[way]:.2f}x" if way in ms else "-" for way in MORE_WAYS),
                reach_page.of_step(m), reach_page.of_step(m, "patched"),
                "convert and patch()" if "library" in m and "patched" not in ms else "convert",
                m["need_ms"] or None,
                *(families.get(f, 0.0) for f in FAMILIES), inside.get("attention"),
                round(peak["converted"] / peak["stock"], 3), off["converted"], off["tf32"],
                off.get("patched"),
            ))  # fmt: skip
        title = f"Training step, {where}: ms"
        here = {
            w: label for w, label in labels.items() if any(w in m["ms"] for m in models.values())
        }
        said = "; ".join(f"{name}: {listed((here[w], m['ms'][w]) for w in here if w in m['ms'])}"
                         for name, m in models.items())  # fmt: skip
        drawn.append(page.bars(
            title, f"{title}. {said}.",
            [(name, [(m["ms"][w], OF_WAY[w], f"{m['ms'][w]:.1f}"
                      + (f" ({m['ms']['stock'] / m['ms'][w]:.2f}x)" if w != "stock" else ""))
                     for w in here if w in m["ms"]]) for name, m in models.items()],
            series=[(label, OF_WAY[w]) for w, label in here.items()],
        ))  # fmt: skip
        title = f"Kernels of a converted step, {where}: ms"
        said = "; ".join(f"{name}: {listed((f, m['families_ms'].get(f, 0.0)) for f in FAMILIES)}"
                         for name, m in models.items())  # fmt: skip
        drawn.append(page.stacked(
            title, f"{title}. {said}.",
            [(name, [(m["families_ms"].get(f, 0.0), s) for f, s in FAMILIES.items()],
              f"{sum(m['families_ms'].values()):.1f}") for name, m in models.items()],
            series=list(FAMILIES.items()),
        ))  # fmt: skip
    columns = (
        choice("GPU", "gpu"), choice("mode"), choice("model"), words("what"),
        *(figures(label, way) for way, label in labels.items()),
        figures("converted / stock", "gain"), figures("TF32 / stock", "tf32_gain"),
        figures("inside patch() / stock", "patched_gain"),
        figures("attention ours / stock", "attention_gain"), figures("FLOP reached", "reached"),
        figures("inside patch()", "patched_reached"),
        choice("converted by", "by"), figures("need"), *(figures(f) for f in FAMILIES),
        figures("attention inside patch()", "patched_attention"),
        figures("memory"), figures("losses off", "off"), figures("TF32's losses off", "tf32_off"),
        figures("losses off inside patch()", "patched_off"),
    )  # fmt: skip
    return page.charts(*drawn) + page.table(
        "t-steps", "Training steps in ms, what a converted one is made of, memory beside stock's, "
        "largest difference of losses from stock FP32's", columns, rows,
    )  # fmt: skip


def reach(found: Sequence[Record]) -> str:
    """What convert and patch reach of architectures."""
    rows = []
    for record in of(found, "reach"):
        for name, entry in record.content["models"].items():
            ways = [entry.get(way) or {} for way in ("convert", "patch")]
            errors = [entry.get("errors", {}).get(way, (None, None)) for way in reach_page.WAYS]
            rows.append((
                entry["package"], entry["version"] or "-", name, ways[1].get("flops"),
                *(way.get("share") for way in ways),
                reach_page.left(ways[1]) if ways[1].get("flops") else "-",
                *(e[0] for e in errors), *(e[1] for e in errors), entry["status"],
            ))  # fmt: skip
    columns = (
        choice("library"), words("version"), words("model"), figures("FLOP"), figures("convert"),
        figures("patch"), words("torch's own inside patch", "left"),
        *(figures(f"{of_what}, {way}", f"{of_what}_{way}")
          for of_what in ("outputs", "gradients") for way in reach_page.WAYS),
        words("a step", "step"),
    )  # fmt: skip
    return page.table(
        "t-reach", "Shares of the FLOP that xgemm makes, of 1, and errors beside float64", columns,
        rows,
    )  # fmt: skip


def training(found: Sequence[Record]) -> str:
    """Whole trainings: losses, their difference, step times."""
    drawn, rows = [], []
    for record in of(found, "training"):
        runs, ms = record.content["runs"], record.content["interleaved_ms"]
        stock, converted = runs["stock"], runs["converted"]
        config = record.content["config"]
        off = record.content["difference"]
        rows.append((
            record.gpu, record.name, config["size"], config["steps"], ms["stock"], ms["converted"],
            f"{ms['stock'] / ms['converted']:.2f}x", stock["final_loss"], converted["final_loss"],
            stock["validation"], converted["validation"], off["largest"], off["mean"],
        ))  # fmt: skip
        gaps = [abs(a - b) for a, b in zip(stock["losses"], converted["losses"], strict=True)]
        title = f"{record.series}, {record.gpu}: stock's losses less converted's, absolute"
        drawn.append(page.chart(
            title, f"{title}. Largest {num(off['largest'])} at step {off['largest_at_step']}, "
            f"mean {num(off['mean'])}.",
            page.Axis(0, len(gaps), "step"),
            page.span([g for g in gaps if g > 0], "difference of losses", log=True),
            lambda fx, fy, gaps=gaps: page.line(
                [(fx(i), fy(g)) for i, g in enumerate(gaps) if g > 0], 2, dots=True
            ),
            height=270,
        ))  # fmt: skip
    columns = (
        choice("GPU", "gpu"), words("record"), words("model"), figures("steps"),
        figures("stock, ms", "stock"), figures("converted, ms", "converted"), figures("gain"),
        figures("final loss, stock", "loss"), figures("converted", "converted_loss"),
        figures("validation, stock", "validation"), figures("converted", "converted_validation"),
        figures("largest difference", "largest"), figures("mean difference", "mean"),
    )  # fmt: skip
    return page.charts(*drawn) + page.table(
        "t-training", "Trainings: ms a step in turns, losses", columns, rows, filtered=False
    )


def examples(found: Sequence[Record]) -> str:
    """The programs of examples/ in three ways."""
    drawn, rows = [], []
    for record in of(found, "examples"):
        for name, e in record.content["examples"].items():
            for way, label in WAYS.items():
                w = e["ways"][way]
                rows.append((
                    record.gpu, name, label, e["steps"], w["ms"],
                    f"{e['ways']['stock']['ms'] / w['ms']:.2f}x", w["seconds"], w["peak_mib"],
                    median(w["errors"]), e["error_is"], e["what"],
                ))  # fmt: skip
            curves = {way: [(s, x) for _, s, x in e["ways"][way]["curve"]] for way in WAYS}
            values = [x for c in curves.values() for _, x in c if math.isfinite(x)]
            log = bool(values) and min(values) > 0 and max(values) > 10 * min(values)
            said = listed((WAYS[w], median(e["ways"][w]["errors"])) for w in WAYS)
            drawn.append(page.chart(
                f"{name}, {record.gpu}", f"{name}: {e['error_is']} by seconds. At the end: {said}.",
                page.span([s for c in curves.values() for s, _ in c], "seconds"),
                page.span(values, e["error_is"].split(",")[0], log=log),
                lambda fx, fy, curves=curves: "".join(
                    page.line([(fx(s), fy(x)) for s, x in c if math.isfinite(x)], OF_WAY[w])
                    for w, c in curves.items()
                ),
                series=[(label, OF_WAY[w]) for w, label in WAYS.items()], height=270,
            ))  # fmt: skip
    columns = (
        choice("GPU", "gpu"), choice("example"), choice("layers", "way"), figures("steps"),
        figures("ms a step", "ms"), figures("gain"), figures("seconds"), figures("MiB", "mib"),
        figures("error"), words("error is"), words("what"),
    )  # fmt: skip
    return page.charts(*drawn) + page.table(
        "t-examples", "Programs by stock FP32, TF32 and converted layers; errors are medians over "
        "seeds", columns, rows,
    )  # fmt: skip


# --- peers ----------------------------------------------------------------------------------------

# A library's colour.
LIBRARIES = {"xgemm": 2, "torch": 0, "triton": 1, "jax": 3, "cupy": 6}
TORCH_FP32 = "torch FP32"


@dataclass(frozen=True)
class Beside:
    """A peer on a problem, beside torch's FP32 product."""

    peer: str
    label: str
    us: float
    tflops: float
    ratio: float | None
    errors: Mapping[str, float]

    @property
    def colour(self) -> int:
        """The library's, grey for one that is not known."""
        return LIBRARIES.get(self.peer.partition(" ")[0], 4)


def compared(record: Record) -> Iterator[Beside]:
    """What a record of peers has measured, by problem."""
    for label, entry in record.content["products"].items():
        batch, m, n, k, _ = entry["problem"]
        reference = entry["us"].get(TORCH_FP32)
        for name, us in entry["us"].items():
            yield Beside(
                name, label, us, 2e-6 * batch * m * n * k / us,
                reference / us if reference else None, entry["errors"][name],
            )  # fmt: skip


def peers(found: Sequence[Record]) -> str:
    """Products of other libraries: errors beside speeds, and who was not measured."""
    drawn, lines, missing = [], [], []
    for record in of(found, "peers"):
        some = sorted(compared(record), key=lambda b: (b.label, -b.tflops))
        if not some:
            continue
        told = record.content["peers"]
        drawn.append(_errors_by_speed(record, some, len(lines)))
        for label in sorted(record.content["products"], key=lambda name: _by_work(record, name)):
            each = [b for b in some if b.label == label]
            title = f"{label}, {record.gpu}: TFLOP/s, rms error in u"
            said = "; ".join(f"{b.peer} {num(b.tflops)}, {num(b.errors['rms'])} u" for b in each)
            drawn.append(page.bars(
                title, f"{title}. {said}.",
                [(b.peer, [(b.tflops, b.colour, f"{b.tflops:.3g}, {_error(b.errors['rms'])} u")])
                 for b in each],
            ))  # fmt: skip
        lines += [
            (record.gpu, b.label, b.peer, told[b.peer]["what"], told[b.peer]["version"],
             told[b.peer]["clock"], b.us, b.tflops, b.ratio and round(b.ratio, 3),
             b.errors["rms"], b.errors["largest"], b.errors["mean"], b.errors["misplaced"])
            for b in some
        ]  # fmt: skip
        for name, about in told.items():
            failed = {
                label: entry["failed"][name]
                for label, entry in record.content["products"].items() if name in entry["failed"]
            }  # fmt: skip
            if about["absent"]:
                failed = {"all": about["absent"]}
            missing += [
                (record.gpu, name, about["what"], about["version"] or "-", label, why)
                for label, why in failed.items()
            ]
    parts = [
        page.note(
            "Every library gets the same random normal operands, rotated through memory, in turns; "
            "medians. Errors are of the whole result against float64, in units of "
            "u = 2^-24 |A| |B|. Clock: what timed it; the host's has launches in it as far as the "
            "GPU waits for them."
        ),
        page.charts(*drawn),
        page.table(
            "t-peers", "Libraries' products: microseconds, TFLOP/s, ratio to torch's FP32 product, "
            "errors in u",
            (choice("GPU", "gpu"), choice("problem"), choice("peer"), words("what"),
             words("version"), choice("clock"), figures("us"), figures("TFLOP/s", "tflops"),
             figures("ratio"), figures("rms"), figures("largest"), figures("mean"),
             figures("misplaced")), lines,
        ),
    ]  # fmt: skip
    if missing:
        parts.append(page.table(
            "t-missing", "Not measured", (choice("GPU", "gpu"), words("peer"), words("what"),
            words("version"), words("problem"), words("why")), missing, filtered=False,
        ))  # fmt: skip
    return "".join(parts)


def _by_work(record: Record, label: str) -> tuple[bool, int]:
    """Squares before layers, each by FLOP."""
    batch, m, n, k, _ = record.content["products"][label]["problem"]
    return not m == n == k, batch * m * n * k


def _error(u: float) -> str:
    return f"{u:.2g}" if u < 100 else f"{u:.0f}"


def _errors_by_speed(record: Record, some: Sequence[Beside], first: int) -> str:
    least = min((b.errors["rms"] for b in some if b.errors["rms"] > 0), default=1.0)
    x = page.span((b.tflops for b in some), "TFLOP/s", log=True)
    y = page.span((b.errors["rms"] for b in some), "root mean square error, u", log=True)
    by_peer = {b.peer: [o for o in some if o.peer == b.peer] for b in some}
    said = "; ".join(
        f"{name}: up to {num(max(b.tflops for b in each))} TFLOP/s, error up to "
        f"{num(max(b.errors['rms'] for b in each))} u"
        for name, each in by_peer.items()
    )
    shown = {b.peer.partition(" ")[0]: b.colour for b in some}
    title = f"{record.series}, {record.gpu}: error by speed"
    return page.chart(
        title, f"{title}, all problems, both axes logarithmic. {said}.", x, y,
        lambda fx, fy: page.marks(
            (fx(b.tflops), fy(max(b.errors["rms"], least)), b.colour) for b in some
        ),
        series=shown.items(), points=f"t-peers {first}",
    )  # fmt: skip


# --- pytest-benchmark -----------------------------------------------------------------------------


def benches(found: Sequence[Record]) -> str:
    """What pytest-benchmark's suites measured, beside torch's own."""
    rows = [
        (record.series, record.gpu, name, b["us"], b["iqr_us"], b["rounds"],
         None if "ratio" not in b else round(b["ratio"], 3), b.get("tflops"), b.get("error_u"),
         b.get("allowed_u"), b.get("note") or b.get("cache", "-"))
        for record in of(found, "benches")
        for name, b in record.content["benches"].items()
    ]  # fmt: skip
    return page.table(
        "t-benches", "Calls, layers and products: medians and interquartile ranges in "
        "microseconds, ratio to torch's own in turns, largest error and what FP32 allows in u",
        (choice("record"), choice("GPU", "gpu"), words("benchmark"), figures("us"),
         figures("range", "iqr"), figures("rounds"), figures("ratio"),
         figures("TFLOP/s", "tflops"), figures("error"), figures("allowed"), words("note")), rows,
    )  # fmt: skip


# --- the gate -------------------------------------------------------------------------------------

OF_PAIR = {"planted": 5, "equal": 2}


def gates(found: Sequence[Record]) -> str:
    """Comparisons of builds: with a planted slowdown, and of a build with itself."""
    drawn, rows = [], []
    for record in of(found, "gate"):
        tolerance, pairs = record.content["tolerance"], record.content["pairs"]
        for number, p in enumerate(pairs, 1):
            mean, low, high = p["ratios"][paired.MEAN]
            single = {name: r for name, (r, _, _) in p["ratios"].items() if name != paired.MEAN}
            rows.append((
                record.gpu, number, p["kind"], p["seed"], "slower" if p["slower"] else "not slower",
                mean, f"{low:.4f} .. {high:.4f}",
                *(f"{pick(single.values()):.3f}: {pick(single, key=single.__getitem__)}"
                  for pick in (min, max)),
                len([name for name in p["slower"] if name != paired.MEAN]), round(p["seconds"]),
            ))  # fmt: skip
        places = [
            (number, ratio, OF_PAIR[p["kind"]], name == paired.MEAN)
            for number, p in enumerate(pairs, 1)
            for name, (ratio, _, _) in p["ratios"].items()
        ]
        said = "; ".join(
            f"{kind}: {sum(bool(p['slower']) for p in some)} of {len(some)} slower"
            for kind in OF_PAIR
            if (some := [p for p in pairs if p["kind"] == kind])
        )
        title = f"Gate at {tolerance:.0%}, {record.gpu}: {said}"
        drawn.append(page.chart(
            title, f"{title}. Planted: {record.content['planted']}. B's time over A's by pair: "
            "dots are problems, a line is the geometric mean.",
            page.Axis(0.5, len(pairs) + 0.5, "pair"),
            page.span([r for _, r, _, _ in places], "B's time over A's"),
            lambda fx, fy, places=places: "".join(
                page.line([(fx(n - 0.3), fy(r)), (fx(n + 0.3), fy(r))], s) if mean
                else page.line([(fx(n), fy(r))], s, dots=True)
                for n, r, s, mean in places
            ),
            series=OF_PAIR.items(), level=1 + tolerance, height=270,
        ))  # fmt: skip
    planted = "; ".join(dict.fromkeys(r.content["planted"] for r in of(found, "gate")))
    return "".join((
        page.note(
            f"compare.py on pairs of builds. Planted: {planted}. Equal: a build beside itself. "
            "Dots are problems, lines geometric means; the line across is the tolerance. B is "
            "slower where a whole interval is above it, twice, the second time by new processes."
        ),
        page.charts(*drawn),
        page.table(
            "t-gate", "Pairs of builds: verdict, geometric mean of B's time over A's and its "
            "interval, least and largest ratio of a problem, problems that are slower",
            (choice("GPU", "gpu"), figures("pair"), choice("kind"), figures("seed"),
             choice("verdict"), figures("mean"), words("interval"), words("least"),
             words("largest"), figures("slower"), figures("seconds")), rows,
        ),
    ))  # fmt: skip


# --- history --------------------------------------------------------------------------------------


def headlines(record: Record) -> dict[str, float]:
    """The figures that a record is followed by; what its form does not have is left out."""
    content = record.content
    if record.form in ("auto", "rows"):
        ratios = {p: [x.ratio for x in products(record) if x.precision == p] for p in PRECISIONS}
        return {
            f"{precision}: geometric mean ratio to torch.mm": geometric_mean(some)
            for precision, some in ratios.items() if some
        } | {
            f"{precision}: share behind torch.mm by over 2%": fmean(r < BEHIND for r in some)
            for precision, some in ratios.items() if some
        }  # fmt: skip
    if record.form == "data":
        usual = [c for by_kind in content["cells"].values() for kind, c in by_kind.items()
                 if kind in kinds.KINDS and kinds.KINDS[kind].realistic]  # fmt: skip
        return {
            "realistic data: longest time beside normal data's":
                max(c["us"] / c["normal_us"] for c in usual),
            "realistic data: geometric mean ratio to torch.mm":
                geometric_mean([c["torch_mm_us"] / c["us"] for c in usual]),
        }  # fmt: skip
    if record.form == "accuracy":
        return {
            f"normal data, K = {row['k']}: rms of sgemm, u": row["errors"]["sgemm"]["rms"]
            for row in content["rows"]
            if row["distribution"] == "normal" and row["k"] in (2048, 65536)
        }
    if record.form == "stages":
        (case,) = [c for c in content["cases"] if (c["size"], c["layout"]) == (4096, "NN")]
        best = max((t["tflops"], name) for name, t in case["times"].items())
        return {"4096 NN: TFLOP/s of the fastest stage": best[0]}
    if record.form == "steps":
        return {
            f"{name}: stock / {what}": m["ms"]["stock"] / m["ms"][way]
            for name, m in content["models"].items()
            for way, what in {"converted": "converted", **MORE_WAYS}.items()
            if way in m["ms"]
        }
    if record.form == "examples":
        ways = {name: e["ways"] for name, e in content["examples"].items()}
        return {f"{name}: stock / converted": w["stock"]["ms"] / w["converted"]["ms"]
                for name, w in ways.items()}  # fmt: skip
    if record.form == "grouped":
        ratios = [p["ms"]["torch"] / p["ms"]["grouped_mm"]
                  for case in content["groups"] for p in case["products"].values()]  # fmt: skip
        return {"geometric mean ratio to torch's own": geometric_mean(ratios)}
    if record.form == "mixed":
        ratios = [case["ms"]["torch"] / case["ms"]["mixed_linear"] for case in content["mixed"]]
        return {"geometric mean ratio to torch's own": geometric_mean(ratios)}
    if record.form == "async-tp":
        return {
            f"{content['ranks']} ranks: collective, then product / overlapped, geometric mean":
                geometric_mean(layer["ms"]["in order"] / layer["ms"]["overlapped"]
                               for case in content["cases"] for layer in case["layers"].values())
        }  # fmt: skip
    if record.form == "invariant":
        return {
            f"{of} / invariant={way.removeprefix('fp32 ')}, geometric mean of device times":
                geometric_mean(c["us"][of] / c["us"][way] for c in content["invariant"])
            for of, way in (("ieee", "batch"), ("ieee", "tp"), ("fp32", "fp32 batch"),
                            ("fp32", "fp32 batch, packed"))
            if all(way in c["us"] for c in content["invariant"])
        }  # fmt: skip
    if record.form == "attention":
        return {
            f"{what}: geometric mean ratio to torch's own, {name}":
                geometric_mean(attention_page.gain(e, passes) for e in some)
            for what, rand in (("models", False), ("random", True))
            if (some := list(attention_page.of(content, random=rand).values()))
            for name, passes in attention_page.TOGETHER.items()
        }  # fmt: skip
    if record.form == "peers":
        reached = [b for b in compared(record) if b.ratio is not None and b.peer != TORCH_FP32]
        return {
            f"{name}: geometric mean ratio to torch FP32":
                geometric_mean(b.ratio or 1.0 for b in reached if b.peer == name)
            for name in dict.fromkeys(b.peer for b in reached)
        }  # fmt: skip
    if record.form == "benches":
        ratios = [b["ratio"] for b in content["benches"].values() if "ratio" in b]
        return {"geometric mean ratio to torch's own": geometric_mean(ratios)}
    if record.form == "gate":
        by_kind = {
            kind: [bool(p["slower"]) for p in content["pairs"] if p["kind"] == kind]
            for kind in OF_PAIR
        }
        return {f"{kind} pairs: share slower": fmean(x) for kind, x in by_kind.items() if x}
    if record.form == "training":
        ms = content["interleaved_ms"]
        return {"ms a step, stock": ms["stock"], "ms a step, converted": ms["converted"]}
    return {}


def followed(record: Record) -> dict[str, float] | None:
    """Give `headlines`, None where the record is an older form or too small a part of one."""
    try:
        return headlines(record)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


# In git's history h200.py and exercises.py have these beside their cases, not under "facts".
FLAT = ("date", "command", "commit", "torch", "cuda", "build", "device", "driver")


def older(folder: str = "benchmarks/results") -> tuple[list[Record], int]:
    """Give the records that git's history of this branch has, and how many could not be read."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True,
                              check=True).stdout  # fmt: skip

    found, unread, seen = [], 0, set()
    for entry in git("log", "--format=", "--raw", "--no-abbrev", "--diff-filter=AM", "--no-renames",
                     "--", folder).splitlines():  # fmt: skip
        blob, path = entry.split()[3], entry.partition("\t")[2]
        if not path.endswith(".json") or Path(path).name == "compile.json" or blob in seen:
            continue
        seen.add(blob)
        try:
            with tempfile.TemporaryDirectory() as scratch:
                file = Path(scratch) / "record.json"
                file.write_text(git("cat-file", "blob", blob), encoding="utf-8")
                content = records.read(file)
            content.setdefault("facts", {key: content[key] for key in FLAT if key in content})
            found.append(Record(Path(path).relative_to(folder).as_posix(), content))
        except (ValueError, KeyError, TypeError):  # a form that records.py no longer reads
            unread += 1
    return found, unread


def history(found: Sequence[Record], unread: int = 0) -> str:
    """Figures over the records of a kind, by GPU; drawn where there are three or more."""
    by_line: dict[tuple[str, str, str], dict[str, tuple[float, Record]]] = defaultdict(dict)
    for record in sorted(found, key=lambda r: (str(r.facts.get("date", r.date)), r.name)):
        lines = followed(record)
        if lines is None:
            unread += 1
            continue
        when = str(record.facts.get("date", record.date))
        for what, value in lines.items():
            by_line[record.series, record.gpu, what][when] = value, record
    rows, drawn = [], []
    for (series, gpu, what), by_date in by_line.items():
        values = [value for value, _ in by_date.values()]
        before = None
        for when, (value, record) in by_date.items():
            change = "-" if before is None else f"{value / before - 1:+.1%}" if before else "-"
            rows.append((series, gpu, what, when[:16].replace("T", " "), value, change,
                         str(record.facts.get("commit", "-"))[:10]))  # fmt: skip
            before = value
        if len(values) > 2 and all(map(math.isfinite, values)):
            title = f"{series}, {gpu}: {what}"
            drawn.append(page.chart(
                title, f"{title}. {listed((w[:10], v) for w, (v, _) in by_date.items())}.",
                page.Axis(1, len(values), "record, oldest first"),
                # A change that is none does not fill the chart.
                page.span([*values, 0.98 * min(values), 1.02 * max(values)], ""),
                lambda fx, fy, values=values: page.line(
                    at := [(fx(i), fy(v)) for i, v in enumerate(values, 1)], 0
                ) + page.line(at, 0, dots=True),
                height=220,
            ))  # fmt: skip
    said = (
        "A kind is a record's name without its date. Records of other chips, seeds or software are "
        "not comparable to the per cent: their commands and facts say what differs. Of records of "
        "rows, the fastest of today's configs counts; one that has gone since does not."
    )
    if unread:
        said += f" {unread} older records have forms that are not read."
    return page.note(said) + page.charts(*drawn) + page.table(
        "t-history", "Figures by record, and the change from the one before",
        (choice("kind"), choice("GPU", "gpu"), words("figure"), words("when"), figures("value"),
         figures("change"), words("commit")), rows,
    )  # fmt: skip


# --- the file -------------------------------------------------------------------------------------


def solutions(found: Sequence[Record]) -> str:
    """The model solutions of the course: whether they are right on a GPU, and how fast."""
    rows = [
        (record.gpu, name, "right" if entry["ok"] else entry["text"], entry.get("ran"),
         "x".join(map(str, entry["product"])) if "product" in entry else "-", entry.get("us"),
         entry.get("tflops"), entry.get("share"))
        for record in of(found, "exercises")
        for name, entry in record.content["exercises"].items()
    ]  # fmt: skip
    columns = (
        choice("GPU"), words("exercise"), words("result"), figures("problems"), words("product"),
        figures("us"), figures("TFLOP/s", "tflops"), figures("of torch.mm", "share"),
    )  # fmt: skip
    return page.table("t-exercises", "Model solutions: bits, then speed", columns, rows)


def groups(found: Sequence[Record]) -> str:
    """Products of groups, as experts', in one launch, group by group, and by torch."""
    rows = [
        (record.gpu, case["name"], f"{case['rows']} x {case['k']} x {case['n']}", name,
         *(entry["ms"][way] for way in ("torch", "by group", "grouped_mm")),
         entry["ms"]["torch"] / entry["ms"]["grouped_mm"], entry["tflops"],
         entry["error_u"]["torch"], entry["error_u"]["grouped_mm"])
        for record in of(found, "grouped")
        for case in record.content["groups"]
        for name, entry in case["products"].items()
    ]  # fmt: skip
    columns = (
        choice("GPU"), words("experts"), words("rows x K x N", "sizes"), choice("product"),
        figures("torch, ms", "torch"), figures("group by group, ms", "each"),
        figures("grouped_mm, ms", "one"), figures("gain"), figures("TFLOP/s", "tflops"),
        figures("torch's error, u", "off"), figures("ours, u", "ours"),
    )  # fmt: skip
    return page.table(
        "t-groups", "Products of groups: times with the host's part, largest errors of sampled "
        "rows", columns, rows,
    )  # fmt: skip


def mixed(found: Sequence[Record]) -> str:
    """Linear layers of bf16 activations and FP32 weights, beside those of an FP32 copy."""
    rows = [
        (record.gpu, case["name"], f"{case['m']} x {case['n']} x {case['k']}",
         *(case["ms"][way] for way in ("torch", "TF32", "copy", "mixed_linear")),
         case["ms"]["torch"] / case["ms"]["mixed_linear"], case["tflops"],
         *(case["error_u"][way] for way in ("torch", "TF32", "mixed_linear")))
        for record in of(found, "mixed")
        for case in record.content["mixed"]
    ]  # fmt: skip
    columns = (
        choice("GPU"), choice("layer"), words("M x N x K", "sizes"),
        figures("torch, ms", "torch"), figures("TF32, ms", "tf32"),
        figures("linear of a copy, ms", "copy"), figures("mixed_linear, ms", "mixed"),
        figures("gain"), figures("TFLOP/s", "tflops"), figures("torch's error, u", "off"),
        figures("TF32's, u", "off-tf32"), figures("ours, u", "ours"),
    )  # fmt: skip
    return page.table(
        "t-mixed", "bf16 activations by FP32 weights: times with the host's part and the copy's, "
        "largest errors of sampled rows", columns, rows,
    )  # fmt: skip


def parallel(found: Sequence[Record]) -> str:
    """Tensor-parallel layers: a collective and a product, one after the other and overlapped."""
    rows = [
        (record.gpu, record.content["ranks"], case["name"], name,
         *(layer["ms"].get(way)
           for way in ("collective", "product", "in order", "overlapped", "torch")),
         *(layer["step_ms"].get(way) for way in ("in order", "overlapped")),
         layer["error_u"]["in order"])
        for record in of(found, "async-tp")
        for case in record.content["cases"]
        for name, layer in case["layers"].items()
    ]  # fmt: skip
    columns = (
        choice("GPU"), figures("ranks"), words("model"), choice("function"),
        figures("collective, ms", "collective"), figures("product, ms", "product"),
        figures("in order, ms", "in_order"), figures("overlapped, ms", "overlapped"),
        figures("torch's overlapped, ms", "torch"), figures("step in order, ms", "step"),
        figures("step overlapped, ms", "step_overlapped"), figures("error, u", "error"),
    )  # fmt: skip
    return page.table(
        "t-parallel", "Tensor parallelism: gathered or scattered products, the slowest rank's time",
        columns, rows,
    )  # fmt: skip


def invariants(found: Sequence[Record]) -> str:
    """Linear layers by either precision, without and with invariant=; old records have one."""
    limbs = ("fp32", "fp32 batch", "fp32 batch, packed")

    def of_limbs(us: dict[str, float]) -> tuple[float | None, ...]:
        return tuple(us.get(way) for way in limbs)

    def kept(us: dict[str, float]) -> tuple[float | None, ...]:
        return tuple(us["fp32"] / us[way] if way in us else None for way in limbs[1:])

    rows = [
        (record.gpu, f"{c['m']} x {c['n']} x {c['k']}",
         *(c["us"][way] for way in ("torch", "ieee", "batch", "tp")),
         *(c["us"]["ieee"] / c["us"][way] for way in ("batch", "tp")),
         *(c["eager_us"][way] for way in ("ieee", "batch", "tp")),
         *of_limbs(c["us"]), *kept(c["us"]), *of_limbs(c["eager_us"]))
        for record in of(found, "invariant")
        for c in record.content["invariant"]
    ]  # fmt: skip
    columns = (
        choice("GPU"), words("M x N x K", "sizes"), figures("torch, us", "torch"),
        figures("ieee, us", "ieee"), figures("batch, us", "batch"), figures("tp, us", "tp"),
        figures("ieee / batch", "of_batch"), figures("ieee / tp", "of_tp"),
        figures("a call of ieee, us", "call"), figures("of batch, us", "call_batch"),
        figures("of tp, us", "call_tp"), figures("fp32, us", "fp32"),
        figures("fp32 batch, us", "fp32_batch"), figures("packed, us", "fp32_packed"),
        figures("fp32 / batch", "of_fp32_batch"), figures("fp32 / packed", "of_fp32_packed"),
        figures("a call of fp32, us", "call_fp32"), figures("of fp32 batch, us", "call_fp32_batch"),
        figures("of packed, us", "call_fp32_packed"),
    )  # fmt: skip
    return page.table(
        "t-invariant", "Either precision without and with invariant=: device times, and calls "
        "one after another with the host's part", columns, rows,
    )  # fmt: skip


def attention(found: Sequence[Record]) -> str:
    """Attention, forward and backward, beside torch's own."""
    rows, drawn = [], []
    passes, clocks = attention_page.PASSES, (attention_page.DEVICE, attention_page.CALL)
    for record in of(found, "attention"):
        entries = record.content["attention"]
        rows += [
            (record.gpu, label, e["group"], e["data"], e["by"],
             e["batch"], e["heads"], e["queries"], e["keys"], e["width"],
             "yes" if e["causal"] else "no", "yes" if e["masked"] else "no", name,
             *(e[name][clock][way] for clock in clocks for way in attention_page.WAYS),
             round(attention_page.gain(e, (name,)), 3),
             *(e[name]["tflops"][way] for way in attention_page.WAYS),
             *(attention_page.error(e, way, attention_page.RESULTS[name])
               for way in attention_page.WAYS),
             *(e["peak_mib"][way] for way in attention_page.WAYS))
            for label, e in entries.items() for name in passes
        ]  # fmt: skip
        for random, what in ((False, "shapes of models"), (True, "random shapes")):
            some = attention_page.of(record.content, random=random)
            if not some:
                continue
            gains = {p: [attention_page.gain(e, (p,)) for e in some.values()] for p in passes}
            title = f"Attention beside torch's, {what}, {record.gpu}"
            said = "; ".join(f"{p}: {listed(zip(some, gains[p], strict=True))}" for p in passes)
            drawn.append(page.bars(
                title, f"{title}: times as fast. {said}.",
                # Of a random shape its number is left out, for which a narrow page has no room.
                [(re.sub(r"^random \d+ ", "", label),
                  [(gains[p][i], OF_PASS[p], f"{gains[p][i]:.2f}x") for p in passes])
                 for i, label in enumerate(some)],
                series=[(p, OF_PASS[p]) for p in passes],
            ))  # fmt: skip
    columns = (
        choice("GPU", "gpu"), words("case"), choice("group"), choice("data"),
        choice("made by", "by"), figures("batch"), figures("heads"), figures("queries", "s"),
        figures("keys", "t"), figures("width", "d"), choice("causal"), choice("masked"),
        choice("pass"), figures("torch, ms", "torch"), figures("ours, ms", "ours"),
        figures("torch, one call, ms", "torch_call"), figures("ours, one call, ms", "ours_call"),
        figures("gain"), figures("torch, TFLOP/s", "torch_speed"),
        figures("ours, TFLOP/s", "speed"), figures("torch's error, u", "off"),
        figures("ours, u", "error"), figures("torch, MiB", "torch_mib"),
        figures("ours, MiB", "mib"),
    )  # fmt: skip
    return page.note(
        "Times are medians, torch's function and ours in turns: the GPU's alone, and of one call "
        "that finds the GPU idle, with the host's part. Errors are root mean squares against "
        "float64, beside the sum of the absolute values of what is added, of the gradients the "
        "largest of three. MiB: the peak of forward and backward together."
    ) + page.charts(*drawn) + page.table(
        "t-attention", "Attention, forward and backward, beside torch's own", columns, rows
    )  # fmt: skip


SECTIONS = (
    ("speed", "Speed by size", speeds, ("auto", "rows")),
    ("peers", "Other libraries", peers, ("peers",)),
    ("data", "By what operands hold", data, ("data",)),
    ("accuracy", "Errors by depth", depths, ("accuracy",)),
    ("reach", "What convert and patch reach", reach, ("reach",)),
    ("steps", "Training steps of models", steps, ("steps",)),
    ("training", "Trainings", training, ("training",)),
    ("examples", "Examples", examples, ("examples",)),
    ("stages", "Stages", ladder, ("stages", "compile")),
    ("split-k", "Split-K", split_k, ("split-k",)),
    ("groups", "Products of groups", groups, ("grouped",)),
    ("mixed", "bf16 by FP32", mixed, ("mixed",)),
    ("attention", "Attention", attention, ("attention",)),
    ("invariant", "Bits that no other row changes", invariants, ("invariant",)),
    ("parallel", "Tensor parallelism", parallel, ("async-tp",)),
    ("benches", "Calls and layers", benches, ("benches",)),
    ("exercises", "Exercises of the course", solutions, ("exercises",)),
    ("gate", "What a comparison of builds finds", gates, ("gate",)),
)


def build(found: Sequence[Record], past: Sequence[Record] = (), unread: int = 0) -> str:
    """Give the HTML of records; those of the past are in the history alone."""
    parts = [("records", "Records", overview(found))]
    parts += [(n, title, make(found)) for n, title, make, forms in SECTIONS if of(found, *forms)]
    now = {json.dumps(r.content, sort_keys=True) for r in found} if past else set()
    before = [r for r in past if json.dumps(r.content, sort_keys=True) not in now]
    parts.append(("history", "History", history([*before, *found], unread)))
    gpus = ", ".join(sorted({r.gpu for r in found} - {"-"}))
    lead = (
        f"{len(found)} records of FP32 matrix products; GPUs: {gpus}. Tables sort by their "
        'headings; a filter takes words and conditions, as "NT k<=64 ratio<1".'
    )
    return page.page("xgemm_torch: what was measured", lead, parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "records", nargs="*", type=Path, help="all of benchmarks/results by default"
    )
    parser.add_argument("--html", type=Path, required=True, help="the file to write")
    parser.add_argument("--git", action="store_true", help="history from git's older records, too")
    chosen = parser.parse_args(arguments)
    try:
        found = read(chosen.records or sorted(RESULTS.rglob("*.json*")))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    past, unread = older() if chosen.git else ([], 0)
    text = build(found, past, unread)
    write_text(chosen.html, text, who="report")
    print(f"{chosen.html}: {len(found)} records, {len(text.encode()) / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
