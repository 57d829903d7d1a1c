"""Environment of a measurement: device, driver, libraries, revision."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import torch


def device_facts(device: str) -> dict[str, object]:
    """Device, its limits and driver; on a CPU its machine type."""
    if device == "cpu":
        return {"device": "cpu", "machine": platform.machine(), "threads": torch.get_num_threads()}
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    facts: dict[str, object] = {
        "device": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "sm_count": properties.multi_processor_count,
        "l2_cache_bytes": properties.L2_cache_size,
        "memory_total_bytes": properties.total_memory,
        "clocks": "default, not locked",
    }
    query = "driver_version,clocks.max.sm,clocks.max.memory,power.limit"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", f"--id={index}"]
    values = _output(command)
    if values:
        names = ("driver", "sm_clock_max_mhz", "memory_clock_max_mhz", "power_limit_w")
        facts.update(zip(names, (part.strip() for part in values.split(",")), strict=True))
    return facts


def software_facts() -> dict[str, object]:
    """Versions of Python, torch and its CUDA, Triton, and the revision of this repository where known."""
    facts: dict[str, object] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
    }
    revision = _output(["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"])
    if revision:
        facts["revision"] = revision
    return facts


def _output(command: list[str]) -> str:
    """First line of a command's output; empty if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""
