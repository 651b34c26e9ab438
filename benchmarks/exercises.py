"""The exercises' model solutions on a GPU: bits, then speed beside torch.mm.

    python benchmarks/exercises.py --json exercises.json            # on a GPU, with nvcc
    python benchmarks/exercises.py --show exercises.json            # anywhere
    python benchmarks/exercises.py --show exercises.json --marks    # writes the exercises' marks

Each solution is compiled as ``xgemm exercise --check`` compiles a learner's file, runs the same
problems, and is timed in the same turns with torch.mm, where xgemm_torch/course/exercises/speed.py
has it among those with a speed. The marks are shares of torch.mm, in marks.json beside speed.py.
Exit code 1 when a result is wrong, or a solution was not run.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import provenance
import recording
import records

from xgemm_torch.course.exercises import gpu, speed
from xgemm_torch.course.exercises.exercise import SOLUTION, Exercise, exercises
from xgemm_torch.course.exercises.program import DoesNotCompile
from xgemm_torch.tools import timing
from xgemm_torch.tools.files import write_text

RESULTS = Path(__file__).parent / "results"


def built(each: Exercise, folder: Path, sm: int) -> Path | str:
    """Compile a solution; gives a library, or why there is none."""
    if why := gpu.missing(each, sm):
        return why
    path = folder / each.file_name
    path.write_text(each.render(SOLUTION), encoding="utf-8")
    try:
        return gpu.build(path, folder, sm)
    except (gpu.CannotAsk, DoesNotCompile) as error:
        return str(error)


def entry(each: Exercise, told: dict[str, Any]) -> dict[str, Any]:
    """What a record has of an exercise, from the worker's answer."""
    found = {"ok": told["kind"] == "good"}
    if not found["ok"]:
        return {**found, "kind": told["kind"], "text": told.get("text") or json.dumps(told)}
    found |= {"ran": told["ran"], "left_out": told["left_out"]}
    if "us" in told:
        product = speed.SPEEDS[each.stem].product
        found |= {
            "product": product, "us": told["us"], "torch_mm_us": told["torch_mm_us"],
            "tflops": timing.tflops(*product, told["us"] / 1e6),
            "share": told["torch_mm_us"] / told["us"],
        }  # fmt: skip
    return found


def measure(worker: gpu.Worker, sm: int) -> dict[str, Any]:
    """Compile all solutions, run them one after another; gives a record."""
    began = time.monotonic()
    todo = [each for each in exercises() if each.kind != "predict"]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="xgemm_exercise-") as name, timing.Clocks() as clocks:
        folder = Path(name)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            libraries = list(pool.map(lambda each: built(each, folder, sm), todo))
        clocks.mark()
        for each, library in zip(todo, libraries, strict=True):
            if isinstance(library, str):
                found[each.stem] = {"ok": False, "kind": "not run", "text": library}
            else:
                found[each.stem] = entry(each, worker.ask(gpu.request(each, library)))
            print(line(each.stem, found[each.stem]), flush=True)
        summary = clocks.summary()
    return {
        "facts": provenance.facts(), "clocks": summary, "clock_source": clocks.source,
        "seconds": time.monotonic() - began, "exercises": found,
    }  # fmt: skip


def line(stem: str, found: dict[str, Any]) -> str:
    """Say what was found of an exercise."""
    if not found["ok"]:
        return f"{stem:22} {found['kind']}: {found['text'][:200]}"
    said = f"{stem:22} {found['ran']:2} problems right"
    if found["left_out"]:
        said += f", {found['left_out']} too large"
    if "share" not in found:
        return said
    sizes = "x".join(map(str, found["product"]))
    return f"{said}   {found['tflops']:6.3g} TFLOP/s at {sizes}, {found['share']:6.1%} of torch.mm"


def write_marks(record: dict[str, Any], name: str) -> None:
    """Write marks.json from a record of this name."""
    shares = {
        stem: round(found["share"], 4)
        for stem, found in record["exercises"].items()
        if "share" in found
    }
    facts = record["facts"]
    told = {"record": name, "device": facts["device"], "date": facts["date"], "shares": shares}
    write_text(speed.FILE, json.dumps(told, indent=1) + "\n", who="exercises")
    print(f"{speed.FILE.name}: {len(shares)} marks; now run python docs/make_course.py")


def main() -> int:
    """Measure or show."""
    parser = recording.parser(__doc__)
    parser.add_argument("--marks", action="store_true", help="with --show: write marks.json")
    options = parser.parse_args()
    if options.json:
        if options.marks:
            parser.error("--marks goes with --show")
        recording.require_yardstick("exercises")
        sm = gpu.architecture()
        assert sm is not None
        try:
            with gpu.Worker() as worker:
                record = measure(worker, sm)
        except gpu.CannotAsk as error:
            raise SystemExit(f"exercises: {error}") from None
        records.write(options.json, record)
        print(f"{record['facts']['device']}, {record['seconds']:.0f} s: {options.json}")
    else:
        record = records.read(options.show)
        for stem, found in record["exercises"].items():
            print(line(stem, found))
    failed = [stem for stem, found in record["exercises"].items() if not found["ok"]]
    if failed:
        print(f"not as they should be: {', '.join(failed)}")
    elif options.marks:
        path = options.show.resolve()
        known = path.is_relative_to(RESULTS.resolve())
        write_marks(record, str(path.relative_to(RESULTS.resolve()) if known else path.name))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
