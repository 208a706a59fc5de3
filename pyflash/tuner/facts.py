"""The facts that a journal's figures depend on."""

from __future__ import annotations

import datetime
import hashlib
import json
from pathlib import Path
from typing import Any

import torch

import pyflash
from pyflash.bench.environment import environment
from pyflash.tuner.model import Gpu


def identity_of(gpu: Gpu) -> dict[str, Any]:
    """What all runs of a journal have in common."""
    return {"gpu": gpu.name, "sm": gpu.arch.sm, "kernels": kernels_digest()}


def facts_of(gpu: Gpu, device: torch.device) -> dict[str, Any]:
    """For the record of a run."""
    return {
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "version": pyflash.__version__,
        **identity_of(gpu),
        "n_sms": gpu.n_sms,
        "environment": environment(device),
    }


def kernels_digest() -> str:
    """A digest of the kernels' sources: with another one, figures are of other kernels."""
    folder = Path(pyflash.__file__).resolve().parent / "cute_kernels"
    if not folder.is_dir():
        folder = folder.parents[1] / "cute_kernels"
    contents = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".h", ".cuh", ".cu")):
        relative = path.relative_to(folder).as_posix()
        contents.update(json.dumps([relative, path.read_text()]).encode())
    return contents.hexdigest()[:16]
