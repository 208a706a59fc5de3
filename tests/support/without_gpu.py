"""Stand-ins for a GPU: programs that time kernels run on the CPU, at tiny sizes, so that each of
their lines has run before a GPU runs them. Times are those of the CPU and say nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from support import graphs
from torch import Tensor
from torch.overrides import TorchFunctionMode


class OnTheCpu(TorchFunctionMode):
    """Makes tensors on the CPU where a program asks for CUDA."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is Tensor.cuda:
            return args[0]
        args = tuple("cpu" if isinstance(x, str) and x == "cuda" else x for x in args)
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


class Repeated:
    """In place of a graph: calls again, and writes what comes to where the first results are."""

    def __init__(self, call: Callable[[], Any]):
        self.call, self.results = call, call()

    def replay(self) -> None:
        new = self.call()
        if isinstance(new, tuple):
            for x, y in zip(self.results, new, strict=True):
                x.copy_(y)


def captured(call: Callable[[], Any]) -> tuple[Repeated, Any]:
    graph = Repeated(call)
    return graph, graph.results


def microseconds(calls: Mapping[Any, Callable[[], Any]], rounds: int) -> dict[Any, list[float]]:
    times: dict[Any, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.perf_counter_ns()
            call()
            times[name].append((time.perf_counter_ns() - begin) / 1e3)
    return times


@contextmanager
def without_gpu(*modules: ModuleType) -> Iterator[None]:
    """modules: those that have a `captured` of their own, as support.graphs has."""
    nothing = lambda *_: None  # noqa: E731
    with ExitStack() as stack:
        for module in (graphs, *modules):
            stack.enter_context(patch.object(module, "captured", captured))
        stack.enter_context(patch.object(graphs, "microseconds", microseconds))
        for name in ("synchronize", "empty_cache", "set_sync_debug_mode"):
            stack.enter_context(patch.object(torch.cuda, name, nothing))
        stack.enter_context(patch.object(torch.cuda, "memory_stats", Counter))
        stack.enter_context(patch.object(torch.cuda, "get_device_name", lambda: "no GPU"))
        stack.enter_context(OnTheCpu())
        yield
