"""The facts that a figure depends on besides the code; every record has them."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_ROOT = Path(__file__).resolve().parents[2]


def environment(device: torch.device) -> dict[str, str | None]:
    """GPU (or CPU), driver, CUDA and torch versions, commit of the checkout; None: not known."""
    import torch

    facts: dict[str, str | None] = {
        "device": _cpu(),
        "driver": None,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit(),
    }
    if device.type == "cuda":
        facts["device"] = torch.cuda.get_device_name(device)
        driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        facts["driver"] = driver.splitlines()[0] if driver else None
    return facts


def commit() -> str | None:
    """The checkout's commit; None for an installation, also inside of another repository."""
    if not (_ROOT / ".git").exists():
        return None
    return _output("git", "describe", "--always", "--dirty", "--abbrev=12")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _output(*command: str) -> str | None:
    try:
        result = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip() or None
