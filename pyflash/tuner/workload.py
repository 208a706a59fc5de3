"""A problem with data on its device, on which configs are checked and timed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from pyflash.bench.timing import Calls, seconds_per_call
from pyflash.op.ops import attention, attention_varlen
from pyflash.op.options import PER_HEAD
from pyflash.op.reference import Expected, expect, expect_varlen
from pyflash.op.selection import TORCH_DTYPES, Problem
from pyflash.op.variants.reference import expect as expect_variant
from pyflash.tuner.problems import packed_lengths
from pyflash.ui.variants import AskedVariant
from pyflash.variant import bind
from pyflash.variant import tiles as variant_tiles

SECONDS_PER_SAMPLE = 1e-3
_MOST_CALLS = 200  # of a sample, which a CUDA graph holds
_HOST_BOUND = 60e-6  # calls that take less may take the host longer than the GPU
# Time until the GPU reaches its power limit and its clocks settle; a pause of 50 ms raises them
# again. Which config is faster depends on it: docs/experiments/2026-11-tuning.md.
_SECONDS_OF_WARMUP = 0.15
# Over the fastest. Beside kernels that take longer, which one is the fastest differs by up to 5 %.
_NEAR = 1.3


@dataclass(frozen=True, slots=True)
class Contender:
    """A config by its short form, "" for the selected one; num_splits 0: chosen by the rule."""

    config: str
    num_splits: int = 0


class Workload:
    """Normal random inputs of a problem; in so many buffers, where `cold`, that L2 does not hold
    one until its next use. Packed sequences have lengths from half of max_seqlen to all of it."""

    def __init__(
        self,
        problem: Problem,
        seed: int = 0,
        cold: bool = True,
        asked: AskedVariant | None = None,
    ) -> None:
        self.problem = problem
        self.device = torch.device(problem.device)
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self._lengths = self._draw_lengths(seed) if problem.packed else ()
        self._options = dict(problem.options)
        for name in PER_HEAD:
            if problem.options.get(name) is not None:
                self._options[name] = torch.randn(
                    problem.heads_q, generator=self._generator, device=self.device
                )
        self._buffers = [self._draw_inputs()]
        n_buffers = 1
        if cold and self.device.type == "cuda":
            l2_bytes = torch.cuda.get_device_properties(self.device).L2_cache_size
            n_bytes = sum(x.numel() * x.element_size() for x in self._buffers[0])
            n_buffers = 2 + 2 * l2_bytes // n_bytes
        self._buffers += [self._draw_inputs() for _ in range(n_buffers - 1)]
        self._expected: Expected | None = None
        self._given: dict[str, Any] = {}
        if asked:
            lengths = problem.seqlen_q, problem.seqlen_k
            of_problem = variant_tiles.Problem(*lengths, problem.batch, problem.heads_q)
            tensors = asked.tensors(of_problem, problem.device)
            self._given = {"variant": bind(asked.variant, **tensors)}

    def call(self, contender: Contender, inputs: tuple[Tensor, ...] | None = None) -> Any:
        """(out, lse). Raises what attention raises."""
        function = attention_varlen if self.problem.packed else attention
        options = {"config": contender.config, "num_splits": contender.num_splits}
        options |= self._given
        inputs = inputs or self._buffers[0]
        return function(*inputs, *self._lengths, return_lse=True, **self._options | options)

    def check(self, contender: Contender) -> tuple[float, float]:
        """(error of out, its bound) by the project's tolerance rule. Raises AssertionError for a
        wrong out or lse, in words, and what attention raises."""
        out, lse = self.call(contender)
        expected = self.expected()
        return expected.check(out, lse), expected.bound

    def expected(self) -> Expected:
        """The fp32 reference of the first inputs, computed once."""
        if self._expected is None:
            if self._given:
                arguments = (*self._buffers[0], *self._lengths[:2])
                self._expected = expect_variant(*arguments, **self._given, **self._options)
            elif self.problem.packed:
                arguments = (*self._buffers[0], *self._lengths[:2])
                self._expected = expect_varlen(*arguments, **self._options)
            else:
                self._expected = expect(*self._buffers[0], **self._options)
        return self._expected

    def sample(self, contenders: list[Contender], n_samples: int) -> list[list[float]]:
        """Seconds per call: `n_samples` of each contender, in turns, after all have warmed up.
        Those that are about as fast as the fastest take turns among themselves."""
        calls = [self._calls(contender) for contender in contenders]
        seconds = self._warm_up(calls)
        near = [k for k, value in enumerate(seconds) if value <= _NEAR * min(seconds)]
        far = [k for k in range(len(calls)) if k not in near]
        samples: list[list[float]] = [[] for _ in calls]
        for group in (far, near):
            mine = [calls[k] for k in group]
            if group is near and far:
                self._warm_up(mine)
            for turn in range(n_samples):
                for k, value in zip(group, self._turn(mine, turn), strict=True):
                    samples[k].append(value)
        return samples

    def _warm_up(self, calls: list[tuple[Calls, int]]) -> list[float]:
        """One turn at least, of which the last one's seconds are returned."""
        seconds = _SECONDS_OF_WARMUP if self.device.type == "cuda" else 0.0
        until = time.monotonic() + seconds
        for turn in itertools.count():
            last = self._turn(calls, turn)
            if time.monotonic() >= until:
                break
        return last

    def _turn(self, calls: list[tuple[Calls, int]], turn: int) -> list[float]:
        """Seconds per call of each contender, of which each turn starts with another one."""
        seconds = [0.0] * len(calls)
        for k in range(len(calls)):
            run, n = calls[i := (turn + k) % len(calls)]
            seconds[i] = seconds_per_call(run, self.device, 1) / n
        return seconds

    def _calls(self, contender: Contender) -> tuple[Calls, int]:
        """What runs a sample of a contender, and how many calls of attention that is.

        On a GPU these are a CUDA graph: a call takes the host longer than many kernels run.
        """
        inputs = itertools.cycle(self._buffers)

        def run(n: int) -> None:
            for _ in range(n):
                self.call(contender, next(inputs))

        one = median(seconds_per_call(run, self.device, 1) for _ in range(3))
        n = max(1, min(_MOST_CALLS, round(SECONDS_PER_SAMPLE / one)))
        if self.device.type != "cuda":
            return lambda _: run(n), n
        if one < _HOST_BOUND:  # not known before they are in a graph
            n = _MOST_CALLS
        n = max(n, min(len(self._buffers), _MOST_CALLS))
        graph = self._capture(lambda: run(n))
        return lambda _: graph.replay(), n

    def _capture(self, run: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """NOTE: `torch.cuda.graph` would collect garbage and empty the allocator's cache each time,
        which takes longer than a sample."""
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                run()
            finally:
                graph.capture_end()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        return graph

    def _draw_inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        problem = self.problem
        q = (problem.seqlen_q, problem.heads_q)
        kv = (problem.seqlen_k, problem.heads_kv)
        rows = self._totals if problem.packed else ((problem.batch, q[0]), (problem.batch, kv[0]))
        sizes = ((*rows[0], q[1]), (*rows[1], kv[1]), (*rows[1], kv[1]))
        return tuple(
            torch.randn(
                *size,
                problem.d_head,
                generator=self._generator,
                device=self.device,
                dtype=TORCH_DTYPES[problem.dtype],
            )
            for size in sizes
        )

    def _draw_lengths(self, seed: int) -> tuple[Tensor, Tensor, int, int]:
        """cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k; the first sequence is longest."""
        longest = (self.problem.seqlen_q, self.problem.seqlen_k)
        lengths = [packed_lengths(self.problem.batch, n, seed) for n in longest]
        self._totals = tuple((sum(values),) for values in lengths)
        starts = [list(itertools.accumulate(values, initial=0)) for values in lengths]
        cu_seqlens = (torch.tensor(x, dtype=torch.int32, device=self.device) for x in starts)
        return (*cu_seqlens, *longest)
