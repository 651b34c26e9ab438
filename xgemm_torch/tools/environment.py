"""What this process runs on, read without changing or initialising anything of torch's."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import torch

# Environment variables that change what is built or what runs.
KNOBS = (
    "XGEMM_CUDA", "XGEMM_STAGES", "XGEMM_LINE_INFO", "XGEMM_GLIBC", "XGEMM_TUNE_CACHE",
    "TORCH_CUDA_ARCH_LIST", "CUDA_HOME", "CXX", "MAX_JOBS", "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS",
)  # fmt: skip


def package_version() -> str:
    """Version of the installed package, or "not installed" in a bare work tree."""
    try:
        return metadata.version("xgemm_torch")
    except metadata.PackageNotFoundError:
        return "not installed"


def knobs() -> dict[str, str]:
    """Give the environment variables that matter and are set."""
    return {name: os.environ[name] for name in KNOBS if name in os.environ}


def fp32_state() -> dict[str, str]:
    """Read torch's per-backend FP32 settings; a value that cannot be read says why.

    The older flags (``allow_tf32``) are left alone: torch raises when both kinds are mixed.
    """
    readers = {
        "all": lambda: torch.backends.fp32_precision,
        "cuda.matmul": lambda: torch.backends.cuda.matmul.fp32_precision,
        "cudnn": lambda: torch.backends.cudnn.fp32_precision,
        "mkldnn.matmul": lambda: torch.backends.mkldnn.matmul.fp32_precision,
    }
    state = {}
    for name, read in readers.items():
        try:
            state[name] = str(read())
        except (AttributeError, RuntimeError) as error:
            state[name] = f"unreadable: {error}"
    return state


def tf32_warnings() -> list[str]:
    """One sentence for each way in which torch's own FP32 products are told to be coarser."""
    lines = []
    for name, value in fp32_state().items():
        if value in ("tf32", "bf16") and name in ("all", "cuda.matmul", "mkldnn.matmul"):
            lines.append(
                f"warning: torch.backends fp32_precision of {name} is {value!r}: torch's own "
                "products are not FP32 here. It is your setting and stays as it is."
            )
    if os.environ.get("NVIDIA_TF32_OVERRIDE") == "1":
        lines.append("warning: NVIDIA_TF32_OVERRIDE=1 makes cuBLAS use TF32 for FP32 products.")
    return lines


def strict_reference() -> str | None:
    """None when torch.mm on CUDA is IEEE FP32, else a sentence saying what selects otherwise."""
    warnings = [line for line in tf32_warnings() if "mkldnn" not in line]
    matmul = fp32_state()["cuda.matmul"]
    if warnings:
        return warnings[0]
    if matmul not in ("ieee", "none"):
        return f"torch.backends.cuda.matmul.fp32_precision is {matmul!r}"
    return None


def device_name(device: str) -> str:
    """Name the GPU, or the CPU and the threads that torch uses on it."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"{_cpu_name()}, {torch.get_num_threads()} threads"


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def summary(device: str) -> dict[str, Any]:
    """Say what results on ``device`` depend on, as JSON values."""
    return {
        "device": device_name(device),
        "torch": str(torch.__version__),
        "torch_cuda": torch.version.cuda,
        "python": platform.python_version(),
        "xgemm_torch": package_version(),
        "fp32_precision": fp32_state(),
    }
