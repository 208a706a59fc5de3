"""A backend whose clock is a table: everything of a tuning run but the GPU's time.

In the worker it imports nothing but the standard library, so that a process starts at once.
"""

from __future__ import annotations

import ctypes
import json
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyflash import Problem
    from pyflash.config import KernelConfig

# What the tuner's model does not know: effects of fields, and of a pair of them.
HIDDEN: dict[str, dict[Any, float]] = {
    "n_warps": {8: 1.12},
    "mma_double_buffer_loads": {True: 1.05},
    "V_mma_load_K_tiles": {0: 1.07, 2: 0.97},
    "Q_mma_load_K_tiles": {0: 1.03},
}

# Time with a number of splits over time with the rule's.
SPLITS = {0: 1.0, 1: 3.0, 8: 0.9}


def true_seconds(config: KernelConfig, problem: Problem) -> float:
    """Without noise."""
    import torch

    from pyflash.tuner.model import gpu_of, predict

    seconds = predict(config, problem, gpu_of(torch.device("cpu"), "sm_90"))
    for name, factors in HIDDEN.items():
        seconds *= factors.get(getattr(config, name), 1.0)
    if config.B_c == 32 and config.Q_mma_load_K_tiles == 2:
        seconds *= 0.93
    return seconds * (1 + random.Random(str(config)).uniform(-0.01, 0.01))  # of no field


class Simulated:
    """`table`: a JSON file, seconds by config by problem. `faults`: configs by what they do:
    "crash", "crash_late" (not before they are timed), "hang", "wrong", "raise"."""

    def __init__(
        self,
        table: str,
        faults: dict[str, list[str]],
        seed: int = 0,
        noise: float = 0.01,
        pause: float = 0.0,
        token: str = "",  # to be found on the command line
        wrong_splits: int = -1,  # a number of them with which every config is wrong
    ) -> None:
        self._table = json.loads(Path(table).read_text())
        self._faults = {config: fault for fault, configs in faults.items() for config in configs}
        self._rng = random.Random(seed)
        self._noise, self._pause = noise, pause
        self._drift = 1.0
        self._wrong_splits = wrong_splits

    def check(self, problem: dict[str, Any], candidate: dict[str, Any]) -> tuple[float, float]:
        fault = self._faults.get(candidate["config"])
        if fault == "crash":
            ctypes.string_at(0)
        while fault == "hang":
            time.sleep(60)
        if fault == "wrong" or candidate["num_splits"] == self._wrong_splits:
            raise AssertionError("out: 3 at (0, 0, 0, 0), expected 1: error 2; bound 1e-3")
        if fault == "raise":
            raise RuntimeError("CUDA error: misaligned address")
        return 1e-4, 1e-3

    def sample(
        self, problem: dict[str, Any], candidates: list[dict[str, Any]], n_samples: int
    ) -> list[list[float]]:
        configs = [candidate["config"] for candidate in candidates]
        splits = [SPLITS.get(candidate["num_splits"], 1.2) for candidate in candidates]
        if any(self._faults.get(config) == "crash_late" for config in configs):
            ctypes.string_at(0)
        time.sleep(self._pause)
        self._drift *= self._rng.uniform(0.97, 1.03)  # a clock that wanders
        seconds = self._table[json.dumps(problem)]
        return [
            [
                seconds[config] * factor * self._drift * self._rng.gauss(1, self._noise)
                for _ in range(n_samples)
            ]
            for config, factor in zip(configs, splits, strict=True)
        ]

    def is_usable(self) -> bool:
        return True
