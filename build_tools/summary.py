"""The screenful that ends a build."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

from .library import Plan


def text(plan: Plan, module: Path | None, torch_version: str, seconds: float) -> str:
    """Says what was built, with what, for which GPUs; or why without CUDA."""
    host_only = [s.name for s in plan.sources.stages if plan.toolkit and not plan.cuda_archs(s)]
    rows = [
        ("module", f"{module} ({module.stat().st_size / 2**20:.1f} MiB)" if module else "none"),
        ("torch", f"{torch_version} headers; loads in every torch from 2.10 on, CPU or CUDA"),
        ("compiler", f"{plan.compiler.name} ({plan.compiler.path})"),
    ]
    if plan.toolkit:
        nvcc = plan.toolkit.nvcc
        nvcc = nvcc.relative_to(plan.root) if nvcc.is_relative_to(plan.root) else nvcc
        rows += [
            ("CUDA", f"{plan.toolkit.version}, {nvcc} (from {plan.toolkit.found})"),
            ("GPUs", " ".join(arch.code for arch in plan.archs)),
        ]
    else:
        rows.append(("CUDA", f"no kernels: {plan.why_no_cuda}"))
        if plan.settings.cuda == "auto":
            rows.append(("", "`make nvcc` gets one from PyPI; or set CUDA_HOME and build again"))
    flavours = "host and CUDA" if plan.toolkit else "emulator alone"
    names = ", ".join(stage.name for stage in plan.sources.stages)
    rows.append((f"{len(plan.sources.stages)} stages", f"{flavours}: {names}"))
    if host_only:
        rows.append(("", f"not for these GPUs, so host alone: {', '.join(host_only)}"))
    if plan.settings.stages:
        rows.append(("", "chosen by XGEMM_STAGES; the others are not in this module"))
    rows.append(("time", f"{seconds:.0f} s with {plan.settings.jobs} jobs"))
    lines = [
        fill(
            value,
            96,
            initial_indent=f"  {name:<9} ",
            subsequent_indent=" " * 12,
            break_on_hyphens=False,
        )
        for name, value in rows
    ]
    rule = "-" * 96
    return "\n".join([rule, "  xgemm_torch", *lines, rule])
