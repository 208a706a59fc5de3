"""What a figure depends on besides the code; recorded with every figure."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import torch


def environment(device: torch.device) -> dict[str, str | None]:
    """GPU (or CPU), driver, CUDA and torch versions, commit of the checkout; None: not known."""
    facts: dict[str, str | None] = {
        "device": platform.processor() or platform.machine(),
        "driver": None,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": _output("git", "describe", "--always", "--dirty", "--abbrev=12"),
    }
    if device.type == "cuda":
        facts["device"] = torch.cuda.get_device_name(device)
        driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        facts["driver"] = driver.splitlines()[0] if driver else None
    return facts


def _output(*command: str) -> str | None:
    here = Path(__file__).resolve().parent
    try:
        result = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip() or None
