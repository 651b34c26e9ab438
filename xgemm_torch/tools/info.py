"""``python -m xgemm_torch info``: what is installed, what it can run here, and whether it works."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from . import environment
from .invocation import called

# Ragged on purpose: no tile divides these, and every edge is met.
SELF_TEST_SIZES = (37, 29, 19)
# What two results of that depth may be apart, each with an error of half of it at most; a lost limb
# of an operand costs hundreds.
SELF_TEST_ROUNDINGS = 16


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--self-test",
        action="store_true",
        help="run every stage on a small problem and compare bits; exit code 1 when one is wrong",
    )


def _compiled() -> tuple[Any, str | None]:
    """Give the compiled module and None, or None and why it does not load."""
    try:
        return import_module("xgemm_torch._C"), None
    except ImportError as error:
        return None, str(error)


def version() -> str:
    """Say in a line which version this is, with which torch, and for which GPUs it is built."""
    module, error = _compiled()
    build = json.loads(module.build_info()) if module else {}
    kernels = (
        f"CUDA {build['cuda_version']} kernels for {build['archs']}" if build.get("cuda")
        else "no CUDA kernels" if module
        else f"the compiled module does not load: {error}"
    )  # fmt: skip
    number = import_module("xgemm_torch").__version__
    return f"xgemm_torch {number}, torch {torch.__version__}, {kernels}"


def runs_on(row: dict[str, Any], sm: int) -> bool:
    """Say whether a stage, as the compiled module describes it, runs on ``sm`` (as in 90)."""
    newest = row.get("max_sm", 0) or sm
    return row["cuda"] and row["min_sm"] <= sm <= newest


def _gpus(stages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    rows = []
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        sm = 10 * gpu.major + gpu.minor
        rows.append(
            {
                "index": index,
                "name": gpu.name,
                "sm": sm,
                "multiprocessors": gpu.multi_processor_count,
                "memory_gib": round(gpu.total_memory / 2**30, 1),
                "stages": [row["name"] for row in stages if runs_on(row, sm)],
            }
        )
    return rows


def _tuned(gpus: list[dict[str, Any]]) -> dict[str, Any]:
    """Say which file of tuned problems is read, and how many of its records are for which GPU."""
    from .. import tuned

    file = tuned.path()
    if file is None:
        return {"file": None, "error": tuned.why_no_path(), "records": 0, "for_gpus": []}
    try:
        records, error = tuned.read(file), None
    except ValueError as fault:
        records, error = [], str(fault)
    here = [
        sum(
            (r.gpu, r.sm, r.sm_count) == (g["name"], g["sm"], g["multiprocessors"]) for r in records
        )
        for g in gpus
    ]
    return {"file": tuned.shown(file), "error": error, "records": len(records), "for_gpus": here}


def collect() -> dict[str, Any]:
    """Gather all that ``info`` prints, as JSON values. Starts CUDA only to look at the GPUs."""
    module, error = _compiled()
    stages = json.loads(module.stages()) if module else []
    gpus = _gpus(stages)
    return {
        "xgemm_torch": environment.package_version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": str(torch.__version__),
        "torch_cuda": torch.version.cuda,
        "compiled_module": getattr(module, "__file__", None),
        "load_error": error,
        "build": json.loads(module.build_info()) if module else {},
        "stages": [row["name"] for row in stages],
        "stage_faults": json.loads(module.stage_faults()) if module else [],
        "gpus": gpus,
        "tuned": _tuned(gpus) if module else None,
        "fp32_precision": environment.fp32_state(),
        "environment_variables": environment.knobs(),
    }


def self_test(begins: Callable[[str], object] | None = None) -> list[dict[str, Any]]:
    """Run every stage on a small problem of partial tiles, on the CPU and on a GPU if there is one.

    The inputs are small integers over a power of two, so the exact result has a float32 and every
    stage must give it. A second, random problem must give every strict stage the bits of the strict
    chain, and the others a result within a few roundings of it.

    Args:
        begins: is told each stage's name before it runs on a device.

    Returns:
        A row for each stage and device: ``stage``, ``device``, ``ok``, ``detail``.
    """
    from .. import ops, registry
    from . import accuracy

    m, n, k = SELF_TEST_SIZES
    generator = torch.Generator().manual_seed(0)
    whole = [torch.randint(-8, 9, s, generator=generator) / 8 for s in ((k, m), (k, n), (m, n))]
    random = [torch.randn(s, generator=generator) for s in ((k, m), (k, n), (m, n))]
    settings = {"alpha": 0.5, "beta": -2.0, "trans_a": True}
    exact = (0.5 * (whole[0].double().T @ whole[1].double()) - 2.0 * whole[2].double()).float()
    chain = ops.sgemm(*random[:2], random[2], precision="ieee", **settings)
    size = 0.5 * (random[0].T.abs() @ random[1].abs()) + 2.0 * random[2].abs()
    rows = []
    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        for stage in registry.stages():
            row = {"stage": stage.name, "device": device, "ok": False}
            rows.append(row)
            if begins is not None:
                begins(stage.name)
            try:
                results = [
                    ops.sgemm(*(x.to(device) for x in case), kernel=stage.name, **settings).cpu()
                    for case in (whole, random)
                ]
            except (RuntimeError, ValueError) as error:
                row["detail"] = str(error).splitlines()[0]
                continue
            wrong = []
            if not torch.equal(results[0], exact):
                wrong.append("not exact on integers")
            if stage.strict and not torch.equal(results[1], chain):
                wrong.append("not the bits of the strict chain")
            near = (results[1] - chain).abs() <= SELF_TEST_ROUNDINGS * accuracy.U * size
            if not stage.strict and not bool(near.all()):
                wrong.append("not as accurate as the strict chain")
            right = "exact; bits of the chain" if stage.strict else "exact; accurate as the chain"
            row["ok"], row["detail"] = not wrong, "; ".join(wrong) or right
    return rows


def _tuned_words(tuned: dict[str, Any]) -> str:
    if tuned["file"] is None:
        return f"no file is read: {tuned['error']}"
    if tuned["error"]:
        return f"no use: {tuned['error']}"
    if not tuned["records"]:
        return f"nothing yet in {tuned['file']}; {called('tune M N K')}"
    counts = [f"{count} for GPU {index}" for index, count in enumerate(tuned["for_gpus"])]
    return f"{tuned['file']}: {', '.join([str(tuned['records']) + ' records', *counts])}"


def _fault_words(fault: dict[str, Any]) -> str:
    rung = f"rung {fault['rung']}, " if fault["rung"] else ""
    return f"{fault['name']} ({rung}{fault['flavour']} flavour): {fault['why']}"


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    build = facts["build"]
    kernels = (
        f"CUDA {build.get('cuda_version')} kernels for {build.get('archs')}"
        if build.get("cuda")
        else "emulator only, no CUDA kernels"
    )
    gpus = [
        f"{gpu['index']}: {gpu['name']}, sm_{gpu['sm']}, {gpu['multiprocessors']} multiprocessors, "
        f"{gpu['memory_gib']} GiB; runs {', '.join(gpu['stages']) or 'no stage of this build'}"
        for gpu in facts["gpus"]
    ]
    settings = facts["fp32_precision"], facts["environment_variables"]
    fp32, knobs = (", ".join(f"{key}={value}" for key, value in d.items()) for d in settings)
    lines = [
        ("xgemm_torch", facts["xgemm_torch"]),
        ("python", f"{facts['python']} on {facts['platform']}"),
        ("torch", f"{facts['torch']}, CUDA {facts['torch_cuda'] or 'none'}"),
        ("compiled module", str(facts["compiled_module"])),
    ]
    if facts["load_error"]:
        lines.append(("load error", facts["load_error"]))
    else:
        lines.append(
            (
                "build",
                f"{kernels}; {build.get('compiler')}, for torch >= {build.get('torch_target')}",
            )
        )
        lines.append(("stages", ", ".join(facts["stages"])))
        lines.extend(("stage left out", _fault_words(row)) for row in facts["stage_faults"])
        lines.append(("tuned", _tuned_words(facts["tuned"])))
    lines.append(("GPUs", "\n".join(gpus) or "none that torch can use"))
    lines.append(("fp32_precision", fp32))
    lines.append(("environment", knobs or "no variable of ours or CUDA's is set"))
    return lines


def run(options: argparse.Namespace) -> int:
    """Print the facts; returns 1 when the module does not load or a stage is wrong, else 0.

    A stage that was left out is wrong.
    """
    facts = collect()
    tests = self_test() if options.self_test and not facts["load_error"] else []
    well = not facts["load_error"] and not facts["stage_faults"] and all(r["ok"] for r in tests)
    if options.json:
        if options.self_test:
            facts["self_test"] = tests
        print(json.dumps(facts, indent=2))
        return 0 if well else 1
    try:
        _print_tables(facts, tests, well)
    except ModuleNotFoundError:  # rich; what is wrong must be told without it, too
        for name, value in _lines(facts):
            print(f"{name}: {value}")
        for row in tests:
            print(f"{'OK' if row['ok'] else 'FAIL'} {row['stage']} {row['device']} {row['detail']}")
        if options.self_test:
            print("OK" if well else "FAIL")
    return 0 if well else 1


def _print_tables(facts: dict[str, Any], tests: list[dict[str, Any]], well: bool) -> None:
    from rich.table import Table

    from .console import Column, Fitted, console

    out = console()
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _lines(facts):
        table.add_row(name, value)
    out.print(table)
    if tests:
        verdicts = Fitted(
            "self-test", [Column("stage"), Column("device"), Column(""), Column("detail", words=24)]
        )
        for row in tests:
            verdict = "[green]OK[/]" if row["ok"] else "[bold red]FAIL[/]"
            verdicts.add_row(row["stage"], row["device"], verdict, row["detail"])
        out.print(verdicts)
        out.print("OK" if well else "FAIL")
