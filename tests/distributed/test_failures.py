"""A rank that dies, or calls with something else, is an error on every rank, not a hang."""

from __future__ import annotations

import os
import re
import time
from datetime import timedelta

import pytest
import torch
from ranks import Died, outcomes, results

from pyflash import distributed

TIMEOUT = timedelta(seconds=3)


def qkv(seqlen: int = 16, heads: int = 4, heads_kv: int = 4) -> list[torch.Tensor]:
    heads_of = (heads, heads_kv, heads_kv)
    return [torch.ones(1, seqlen, n, 32, dtype=torch.float16).requires_grad_() for n in heads_of]


def attend_while_one_dies(rank: int, method: str, moment: str) -> None:
    q, k, v = qkv(heads=6, heads_kv=6)
    if moment == "first":
        torch.distributed.barrier()  # else it may be gone while others still set up the group
    else:
        out = distributed.attention(q, k, v, method=method)
    if rank == 1:
        time.sleep(0.5)  # for others to leave the barrier
        os._exit(1)
    if moment == "backward":
        out.sum().backward()
    distributed.attention(q, k, v, method=method)


@pytest.mark.parametrize(
    ("method", "moment"),
    [("ring", "first"), ("ring", "later"), ("ring", "backward"), ("all_to_all", "later")],
)
def test_a_rank_that_dies(method, moment):
    found = outcomes(3, attend_while_one_dies, method, moment, timeout=TIMEOUT)
    assert isinstance(found[1], Died)
    for rank in (0, 2):
        assert isinstance(found[rank], RuntimeError), found[rank]
        assert str(found[rank]).startswith(f"pyflash: rank {rank} could not ")
        assert "one of them died" in str(found[rank])


def attend_while_one_does_not_come(rank: int) -> None:
    if rank == 1:
        time.sleep(2 * TIMEOUT.total_seconds())
        return
    distributed.ring_attention(*qkv())


def test_a_rank_that_does_not_come():
    start = time.monotonic()
    found = outcomes(2, attend_while_one_does_not_come, timeout=TIMEOUT)
    assert "did not come within the group's timeout" in str(found[0])
    assert time.monotonic() - start < 30


DIFFERENT = {
    "another length": (lambda: distributed.ring_attention(*qkv(18)), "q is"),
    "another number of heads": (lambda: distributed.ring_attention(*qkv(16, 4, 2)), "k is"),
    "another mask": (lambda: distributed.ring_attention(*qkv(), causal=True), "causal is"),
    "another method": (lambda: distributed.all_to_all_attention(*qkv()), "method is"),
    "packed": (
        lambda: distributed.ring_attention(*(x[0] for x in qkv()), cu_seqlens_q=[0, 16, 32]),
        "is None on rank",
    ),
}


def attend_with_something_else_on_one(rank: int) -> list[str]:
    sentences = []
    for call, _ in DIFFERENT.values():
        try:
            call() if rank == 1 else distributed.ring_attention(*qkv())
        except ValueError as error:
            sentences.append(str(error))
    return sentences


def test_a_rank_that_calls_with_something_else():
    for sentences in results(2, attend_with_something_else_on_one):
        assert len(sentences) == len(DIFFERENT)
        for sentence, (_, expected) in zip(
            sentences[:-1], list(DIFFERENT.values())[:-1], strict=True
        ):
            assert expected in sentence
            assert "on rank 0" in sentence
            assert "on rank 1" in sentence


def attend_with_something_else_later(rank: int) -> None:
    distributed.ring_attention(*qkv())
    distributed.ring_attention(*qkv(18 if rank == 1 else 16))


def test_a_rank_that_calls_with_something_else_later():
    """The others know their call, and do not ask again: all end within the timeout."""
    for error in outcomes(3, attend_with_something_else_later, timeout=TIMEOUT):
        assert isinstance(error, RuntimeError)
        assert "called with other arguments" in str(error)


REFUSED = [
    ({"method": "tree"}, "method = 'tree': expected auto, ring, all_to_all"),
    ({"layout": "striped"}, "layout = 'striped': expected zigzag or contiguous"),
    ({"seqlen": 15}, "q has 15 rows on rank [01]: expected an even number"),
    ({"heads": 3, "heads_kv": 3, "method": "all_to_all"}, "q has 3 heads: expected a multiple"),
    ({"causal": True, "window_right": 3}, "causal = True sets window_right = 0"),
    ({"window_left": -2}, "window_left = -2: expected"),
    ({"sinks": torch.zeros(3)}, r"sinks has shape \(3,\): expected \(4,\)"),
    ({"heads_kv": 3}, "expected a number of heads that divides the 4 of q"),
    ({"cu_seqlens_q": [0, 32]}, r"q has shape .*: expected \(local rows, heads, d_head\)"),
    ({"config": "(BF16, 64, 64, 64, 4): async+load_0_0_0_tiles"}, "is for BF16, q is FP16"),
]


def attend_with_what_is_refused(rank: int) -> list[str]:
    sentences = []
    for options, _ in REFUSED:
        shape = {n: options[n] for n in ("seqlen", "heads", "heads_kv") if n in options}
        others = {n: x for n, x in options.items() if n not in shape}
        try:
            distributed.attention(*qkv(**shape), **others)
        except (ValueError, RuntimeError) as error:
            sentences.append(str(error))
        # One rank is wrong: the other hears of it.
        try:
            distributed.attention(*qkv(**shape), **others) if rank == 1 else (
                distributed.ring_attention(*qkv(20))
            )
        except (ValueError, RuntimeError) as error:
            sentences.append(str(error))
    return sentences


def test_refusals():
    here, there = results(2, attend_with_what_is_refused)
    for i, (_, expected) in enumerate(REFUSED):
        on_all, on_the_other = slice(2 * i, 2 * i + 1), 2 * i + 1
        for sentence in (*here[on_all], *there[on_all], here[on_the_other], there[on_the_other]):
            assert sentence.startswith("pyflash: ")
            assert re.search(expected, sentence), sentence
        assert "rank 1 of the group refused the call" in here[on_the_other]


def test_without_a_process_group():
    with pytest.raises(RuntimeError, match="there is no process group: call"):
        distributed.attention(*qkv())
