"""The op among streams, CUDA graphs, threads and devices."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from support.problems import NO_MASK, Mask, Packed, Shape, make_inputs, make_packed

from pyflash import attention, attention_varlen
from pyflash.op.reference import Expected, expect, expect_varlen

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
DTYPE = torch.float16
CAUSAL = Mask("causal", causal=True)
RAGGED = Shape("ragged", 2, 131, 197, 6, heads_kv=2)
DECODE = Shape("decode", 2, 1, 4099, 8, heads_kv=2)
PACKED = Packed("ragged", (113, 0, 300, 67), (127, 9, 300, 131), 6, 2)


class Way(NamedTuple):
    """A way to call the op."""

    problem: Shape | Packed
    mask: Mask = NO_MASK
    num_splits: int = 0

    def arguments(self, device: str = "cuda", seed: int = 0) -> tuple[Any, ...]:
        make = make_packed if isinstance(self.problem, Packed) else make_inputs
        return make(self.problem, DTYPE, 128, device, seed)

    def run(self, arguments: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        call = attention_varlen if isinstance(self.problem, Packed) else attention
        options = {"num_splits": self.num_splits, "return_lse": True, **self.mask.options}
        return call(*arguments, **options)

    def expected(self, arguments: tuple[Any, ...]) -> Expected:
        if isinstance(self.problem, Packed):
            return expect_varlen(*arguments[:5], **self.mask.options)
        return expect(*arguments, **self.mask.options)


WAYS = {
    "full": Way(RAGGED),
    "causal": Way(RAGGED, CAUSAL),
    "softcap": Way(RAGGED, Mask("softcap", softcap=5.0)),
    "splits": Way(RAGGED, CAUSAL, num_splits=3),
    "decode": Way(DECODE),
    "packed": Way(PACKED, CAUSAL),
    "packed_splits": Way(PACKED, CAUSAL, num_splits=3),
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


def delay():
    """Keeps the current stream busy for tens of milliseconds."""
    torch.cuda._sleep(100_000_000)


def copy_tensors(targets, sources):
    """Numbers are no place to copy to."""
    for target, source in zip(targets, sources, strict=True):
        if isinstance(target, torch.Tensor):
            target.copy_(source)


def copies(arguments):
    return [x.clone() if isinstance(x, torch.Tensor) else x for x in arguments]


# Streams


@every_way
def test_runs_on_the_current_stream(way):
    """Pitfall 5: wrong GPU, default stream. The inputs arrive late, and only on the side stream."""
    arguments = way.arguments()
    late = copies(arguments)
    for x in late[:3]:
        x.fill_(torch.nan)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        delay()
        copy_tensors(late, arguments)
        out, lse = (x.clone() for x in way.run(late))
    side.synchronize()
    way.expected(arguments).check(out, lse)


@every_way
def test_does_not_wait_for_the_gpu(way):
    """Pitfall 6: CUDA graph capture breaks. Nothing synchronises, lengths on the GPU stay there."""
    arguments = way.arguments()
    way.run(arguments)
    torch.cuda.synchronize()
    delay()
    results = way.run(arguments)
    assert not torch.cuda.current_stream().query(), "the op returned after the stream was done"
    way.expected(arguments).check(*results)


def test_threads_on_streams_of_their_own():
    arguments = [WAYS["splits"].arguments(seed=seed) for seed in range(8)]
    expected = [WAYS["splits"].expected(x) for x in arguments]
    torch.cuda.synchronize()
    results = {}

    def work(i):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(20):
                results[i] = WAYS["splits"].run(arguments[i])
        stream.synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(8):
        expected[i].check(*results[i])


@every_way
def test_a_call_waits_for_the_one_before(way):
    """Kernels of the SM90 family start while the one before them still runs."""
    q, *others = way.arguments()

    def chain(apart: bool = False) -> list[torch.Tensor]:
        outs = [q]
        for _ in range(12):
            outs.append(way.run((outs[-1], *others))[0])
            if apart:
                torch.cuda.synchronize()
        return outs

    expected = chain(apart=True)
    assert all(map(torch.equal, chain(), expected))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chain()
    for out in captured[1:]:
        out.fill_(torch.nan)
    for _ in range(3):
        graph.replay()
    assert all(map(torch.equal, captured, expected))


# CUDA graphs

FIRST_CALL_IN_A_CAPTURE = """
import torch
from pyflash import attention
from pyflash.op.reference import check
q, k, v = (torch.randn(2, 131, 3, 128, device="cuda", dtype=torch.float16) for _ in range(3))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    results = {
        options: attention(q, k, v, causal=options[0], num_splits=options[1], return_lse=True)
        for options in ((False, 1), (True, 1), (True, 3))
    }
for _ in range(3):
    q.normal_(), k.normal_(), v.normal_()
    graph.replay()
    for (causal, _), (out, lse) in results.items():
        check(out, q, k, v, lse=lse, causal=causal)
print("right three times")
"""


def test_the_first_call_of_a_process_may_be_captured_in_a_graph():
    """Pitfall 6: CUDA graph capture breaks. The size of shared memory is set by the first call."""
    command = [sys.executable, "-c", FIRST_CALL_IN_A_CAPTURE]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "right three times" in result.stdout, result.stderr


@every_way
def test_graphs_replay_with_new_inputs(way):
    """Pitfall 6: CUDA graph capture breaks."""
    arguments = copies(way.arguments())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = way.run(arguments)
    for seed in (1, 2):
        copy_tensors(arguments, way.arguments(seed=seed))
        graph.replay()
        way.expected(arguments).check(*results)


@pytest.mark.parametrize("num_splits", [1, 3])
def test_graphs_replay_with_other_lengths(num_splits):
    """Pitfall 6: CUDA graph capture breaks. The lengths are read by the kernel, at each replay."""
    way = Way(PACKED, CAUSAL, num_splits)
    arguments = copies(way.arguments())
    total_q, total_k = arguments[0].shape[0], arguments[1].shape[0]
    arguments[5:] = total_q, total_k  # the largest lengths are those of the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = way.run(arguments)
    for starts_q, starts_k in (
        ((0, 1, 2, 400, total_q), (0, 300, 301, 500, total_k)),
        ((0, 0, 0, 0, total_q), (0, 5, 5, 5, total_k)),
        ((0, total_q, total_q, total_q, total_q), (0, 0, 100, 200, total_k)),
    ):
        for target, starts in zip(arguments[3:5], (starts_q, starts_k), strict=True):
            target.copy_(torch.tensor(starts, dtype=torch.int32))
        graph.replay()
        way.expected(arguments).check(*results)


# Devices


@every_way
def test_the_device_is_that_of_q(way):
    """Pitfall 5: wrong GPU, default stream."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    arguments = way.arguments("cuda:1")
    assert torch.cuda.current_device() == 0
    out, lse = way.run(arguments)
    assert out.device == lse.device == torch.device("cuda:1")
    assert torch.cuda.current_device() == 0
    way.expected(arguments).check(out, lse)
