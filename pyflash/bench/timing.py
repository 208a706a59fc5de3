"""Seconds per call of several contenders, interleaved."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles

import torch

Calls = Callable[[int], None]  # makes this many calls

SECONDS_PER_SAMPLE = 2e-3  # enough calls that the overhead of the clock is negligible
SECONDS_OF_WARMUP = 1.0
CYCLES_AHEAD = 4_000_000  # of the GPU's clock, some 2 ms: the host takes less for a call


@dataclass(frozen=True, slots=True)
class Timing:
    seconds: float  # per call, the median of the samples
    spread: float  # interquartile range of the samples over their median
    n_samples: int

    @classmethod
    def of(cls, samples: list[float]) -> Timing:
        lower, middle, upper = quantiles(samples, n=4, method="inclusive")
        return cls(middle, (upper - lower) / middle, len(samples))


def time_in_turns(
    calls: Mapping[str, Calls], device: torch.device, n_samples: int
) -> dict[str, Timing]:
    """Times each of `calls`, n_samples >= 2 times. Samples are interleaved, and every turn starts
    with another contender, so that clocks and temperature affect all alike."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    repeats = _warm_up(calls, device)
    names = list(calls)
    for turn in range(n_samples):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(seconds_per_call(calls[name], device, repeats[name]))
    return {name: Timing.of(values) for name, values in samples.items()}


def seconds_per_call(calls: Calls, device: torch.device, n: int) -> float:
    """The mean of n calls, by CUDA events or, on the CPU, by the wall clock."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(CYCLES_AHEAD)  # so that the host is ahead when the first call begins
        start.record()
        calls(n)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / n
    begin = time.perf_counter()
    calls(n)
    return (time.perf_counter() - begin) / n


def _warm_up(calls: Mapping[str, Calls], device: torch.device) -> dict[str, int]:
    """Runs all until the clocks are up; returns the number of calls per sample of each."""
    seen: dict[str, list[float]] = {name: [] for name in calls}
    until = time.monotonic() + SECONDS_OF_WARMUP
    while time.monotonic() < until or min(map(len, seen.values())) < 3:
        for name, call in calls.items():
            seen[name].append(seconds_per_call(call, device, 1))
    return {
        name: max(1, round(SECONDS_PER_SAMPLE / median(values))) for name, values in seen.items()
    }
