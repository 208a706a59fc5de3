"""CUDA graphs of calls, how long they take, and what calls ask of CUDA."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

from pyflash.inspect.sass import demangle


def captured(call: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A CUDA graph of a call, and what it returns."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    return graph, results


def microseconds(calls: Mapping[Any, Callable[[], Any]], rounds: int) -> dict[Any, list[float]]:
    """What each call takes the GPU, round by round, in turns."""
    times: dict[Any, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for call in calls.values():
        call()
    for i in range(rounds):
        events = []
        for name in names[i % len(names) :] + names[: i % len(names)]:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(1_000_000)  # the host is ahead when the call begins
            begin.record()
            calls[name]()
            end.record()
            events.append((name, begin, end))
        torch.cuda.synchronize()
        for name, begin, end in events:
            times[name].append(1e3 * begin.elapsed_time(end))
    return times


def medians(calls: Mapping[Any, Callable[[], Any]], rounds: int) -> dict[Any, float]:
    return {name: statistics.median(times) for name, times in microseconds(calls, rounds).items()}


def asked_of_cuda(call: Callable[[], Any]) -> list[str]:
    """The functions of CUDA that a call calls; [] where CUPTI may not trace."""
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profile:
        with torch.profiler.record_function("asked of CUDA"):
            call()
        torch.cuda.synchronize()
    on_host = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CPU]
    (mark,) = (event.time_range for event in on_host if event.name == "asked of CUDA")
    return [
        event.name
        for event in on_host
        if event.name.startswith("cu") and mark.start <= event.time_range.start <= mark.end
    ]


def names_of_kernels(call: Callable[[], Any]) -> list[str]:
    """The kernels that a call launches, demangled; [] where CUPTI may not trace."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    on_gpu = torch.autograd.DeviceType.CUDA
    return [demangle(e.name) for e in profile.events() if e.device_type == on_gpu]
