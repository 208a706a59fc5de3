"""Gradients with variants and with dropout on a second stream, in new threads and in CUDA graphs:
what an ordinary call gives."""

from __future__ import annotations

import pytest
import torch
from support.gpu_kernels import dropout_is_built
from support.gradient_calls import CALLS, Call, close, in_threads

pytestmark = pytest.mark.gpu


@pytest.fixture(params=CALLS)
def call(request) -> Call:
    found = CALLS[request.param]
    if found.dropout_p and not dropout_is_built():
        pytest.skip("the kernels with dropout are not built: pyflash build --set dropout")
    return found


def expected_of(call: Call, seed: int) -> tuple[torch.Tensor, ...]:
    """An ordinary call, which compiles what it needs."""
    results = call.results(*call.inputs("cuda", seed))
    torch.cuda.synchronize()
    assert all(x.isfinite().all() and x.norm() > 0 for x in results)
    return results


def test_a_second_stream(call):
    """The inputs arrive late, and on that stream alone."""
    inputs, expected = call.inputs("cuda", 1), expected_of(call, 1)
    late = [torch.full_like(x, torch.nan) if x.is_floating_point() else x for x in inputs]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        for target, source in zip(late, inputs, strict=True):
            target.copy_(source)
        found = call.results(*late)
    side.synchronize()
    assert close(found, expected)


@pytest.mark.parametrize("stream", ["current", "own"])
def test_the_first_call_of_a_thread(call, stream):
    inputs, expected = call.inputs("cuda", 2), expected_of(call, 2)

    def work() -> tuple[torch.Tensor, ...]:
        on = torch.cuda.Stream() if stream == "own" else torch.cuda.default_stream()
        with torch.cuda.stream(on):
            found = call.results(*inputs)
        torch.cuda.synchronize()
        return found

    (found,) = in_threads([work])
    assert close(found, expected)


def test_threads_at_once_on_streams_of_their_own(call):
    seeds = range(6)
    inputs = [call.inputs("cuda", seed) for seed in seeds]
    expected = [expected_of(call, seed) for seed in seeds]

    def work(i: int) -> tuple[torch.Tensor, ...]:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(10):
                found = call.results(*inputs[i])
        stream.synchronize()
        return found

    results = in_threads([lambda i=i: work(i) for i in seeds])
    assert all(map(close, results, expected))


def test_a_graph_replays_with_other_inputs(call):
    """Both passes are captured; what a variant captures and the state of dropout are read anew."""
    expected = {seed: expected_of(call, seed) for seed in (3, 4, 5)}
    inputs = call.inputs("cuda", 3)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call.results(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call.results(*inputs)
    for seed, others in expected.items():
        for target, source in zip(inputs, call.inputs("cuda", seed), strict=True):
            target.copy_(source)
        for x in found:
            x.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert close(found, others), seed


def test_deterministic_gradients_have_the_same_bits_everywhere(call):
    if not call.deterministic:
        pytest.skip("sums are added in any order")
    inputs, expected = call.inputs("cuda", 6), expected_of(call, 6)

    def work() -> tuple[torch.Tensor, ...]:
        with torch.cuda.stream(torch.cuda.Stream()):
            found = call.results(*inputs)
            torch.cuda.current_stream().synchronize()
        return found

    for found in in_threads([work] * 4):
        assert all(map(torch.equal, found, expected))
