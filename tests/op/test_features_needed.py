"""What a call needs of a kernel: C++ says it, and whoever compiles kernels asks there."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.forgetful import Forgetful
from support.refusals import int32

import pyflash
from pyflash import Features, Problem
from pyflash.config import parse
from pyflash.op import on_demand
from pyflash.op.reference import attended
from pyflash.op.selection import class_of
from pyflash.tuner.candidates import kernels_for

CONFIG = parse("(FP16, 64, 64, 32, 4): async+load_0_0_0_tiles")
LENGTHS = (1, 2, 6)
WINDOWS = (-1, 0, 1, 5, 6)
OTHERS = (
    {},
    {"softcap": 2.0},
    {"sinks": True},
    {"softcap": 2.0, "sinks": True, "num_splits": 3, "softmax_scale": 0.3},
)


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """The features that calls ask the compiler for, on a machine whose GPU is played."""
    features: list[str] = []

    def ensure_once(config: str, needed: str, device_index: int | None) -> str:
        features.append(needed)
        return config

    monkeypatch.setattr(on_demand, "_is_on_gpu", lambda q: True)
    monkeypatch.setattr(on_demand, "_ensure_once", ensure_once)
    monkeypatch.setattr(on_demand, "_built", Forgetful())
    return features


def masks() -> Iterator[dict[str, Any]]:
    for left, right in itertools.product(WINDOWS, WINDOWS):
        yield {"window_left": left, "window_right": right}
    for left in WINDOWS:
        yield {"window_left": left, "causal": True}


def problems(packed: bool, d_head: int, others: dict[str, Any]) -> Iterator[Problem]:
    for seqlen_q, seqlen_k, heads_q, mask in itertools.product(LENGTHS, LENGTHS, (2, 6), masks()):
        options = mask | others
        if options.get("sinks"):
            options["sinks"] = torch.zeros(heads_q)
        yield Problem(
            batch=2,
            heads_q=heads_q,
            heads_kv=2,
            seqlen_q=seqlen_q,
            seqlen_k=seqlen_k,
            d_head=d_head,
            dtype="FP16",
            packed=packed,
            options=options,
        )


def attend(problem: Problem) -> None:
    batch, n_q, n_k = problem.batch, problem.seqlen_q, problem.seqlen_k
    q = torch.zeros(batch, n_q, problem.heads_q, problem.d_head, dtype=torch.float16)
    k = torch.zeros(batch, n_k, problem.heads_kv, problem.d_head, dtype=torch.float16)
    options = {**problem.options, "config": CONFIG, "compile": True}
    if problem.packed:
        q, k = q.flatten(0, 1), k.flatten(0, 1)
        starts = [int32(*range(0, batch * n + 1, n)) for n in (n_q, n_k)]
        pyflash.attention_varlen(q, k, k, *starts, n_q, n_k, **options)
    else:
        pyflash.attention(q, k, k, **options)


@pytest.mark.parametrize("others", OTHERS, ids=lambda others: "+".join(others) or "plain")
@pytest.mark.parametrize("d_head", [64, 56])
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_calls_and_the_tuner_compile_what_cpp_says(asked, packed, d_head, others):
    for problem in problems(packed, d_head, others):
        needed = Features.parse(class_of(problem).features)
        needed = dataclasses.replace(needed, predicated_head_dim=d_head < CONFIG.d_head)
        attend(problem)
        (kernel,) = kernels_for(problem, [CONFIG])
        assert asked.pop() == str(kernel.features) == str(needed), problem


def test_sinks_without_memory_are_sinks():
    for heads, device in itertools.product((1, 6), ("cpu", "meta")):
        options = {"sinks": torch.zeros(heads, device=device)}
        extents = {"batch": 2, "heads_q": heads, "heads_kv": heads, "seqlen_q": 5, "seqlen_k": 7}
        problem = Problem(**extents, d_head=64, dtype="FP16", options=options)
        assert class_of(problem).features == "sinks"


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_a_kernel_masks_where_the_problem_does(asked, packed):
    """The left window of one padded query is fewer keys."""
    for problem in problems(packed, 64, {}):
        n_q, n_k, options = problem.seqlen_q, problem.seqlen_k, problem.options
        right = 0 if options.get("causal") else options["window_right"]
        cut_right = not attended(torch.arange(n_q), n_q, n_k, -1, right).all()
        cut_left = not attended(torch.arange(n_q), n_q, n_k, options["window_left"], -1).all()
        attend(problem)
        masks_left = bool(cut_left) and (packed or n_q > 1)
        needed = Features(right_window=bool(cut_right), left_window=masks_left)
        assert asked.pop() == str(needed), problem


@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        ((1, 300), {"causal": True}),
        ((1, 300), {"causal": True, "window_left": 128}),
        ((300, 300), {"window_left": 299}),
        ((300, 300), {"window_left": 300, "window_right": 300}),
        ((7, 300), {"window_right": 6}),
    ],
)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_masks_that_cut_nothing_ask_for_the_plain_kernel(asked, lengths, options, compiled):
    q, k = (torch.zeros(2, n, 2, 64, dtype=torch.float16) for n in lengths)

    named = options | {"config": str(CONFIG)}

    def call(q, k):
        return pyflash.attention(q, k, k, compile=True, **named)

    torch.compiler.reset()
    (torch.compile(call, backend="eager", fullgraph=True) if compiled else call)(q, k)
    assert asked == ["plain"]


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_length_that_is_symbolic_stands_for_every_length(asked, dynamic):
    """A graph for several lengths has a kernel that masks, whatever the length at hand needs; one
    query is never symbolic."""
    config = str(CONFIG)

    @torch.compile(backend="eager", fullgraph=True, dynamic=dynamic)
    def call(q, k):
        return pyflash.attention(q, k, k, config=config, compile=True, causal=True, window_left=40)

    def needed(n_q: int, n_k: int, batch: int = 2) -> list[str]:
        asked.clear()
        q, k = (torch.randn(batch, n, 2, 64, dtype=torch.float16) for n in (n_q, n_k))
        expected = pyflash.attention(q, k, k, causal=True, window_left=40, config=config)
        assert torch.equal(call(q, k), expected)
        return list(asked)

    torch.compiler.reset()
    first = needed(20, 30)
    assert first == ["right_window" if dynamic is None else "right_window+left_window"]
    lengths = [(21, 31), (22, 300), (7, 7), (500, 3)]
    of_others = [needed(*pair, batch=n) for n, pair in enumerate(lengths, start=2)]
    assert of_others[-1] == []
    asked_for = {features for found in of_others for features in found}
    assert asked_for <= {"right_window+left_window"}
    assert needed(1, 300) == ["plain"]
    assert needed(1, 301) in ([], ["plain"])


@pytest.mark.parametrize("dynamic", [None, True])
def test_options_that_vary_ask_for_what_each_needs(asked, dynamic):
    config = str(CONFIG)

    @torch.compile(backend="eager", fullgraph=True, dynamic=dynamic)
    def call(q, window, softcap):
        return pyflash.attention(
            q, q, q, config=config, compile=True, window_left=window, softcap=softcap
        )

    torch.compiler.reset()
    q = torch.randn(2, 30, 2, 64, dtype=torch.float16)
    for window, softcap, features in (
        (5, 0.0, "left_window"),
        (7, 0.0, "left_window"),
        (-1, 2.5, "softcap"),
        (5, 3.5, "left_window+softcap"),
    ):
        expected = pyflash.attention(q, q, q, window_left=window, softcap=softcap, config=config)
        assert torch.equal(call(q, window, softcap), expected)
        assert asked[-1] == features


@pytest.mark.parametrize(
    ("shapes", "options", "says"),
    [
        (((2, 9, 4, 128), (2, 9, 4, 128)), {}, "is for d_head up to 64, q has d_head 128"),
        (((2, 9, 4, 64), (2, 9, 3, 64)), {}, "expected a number of heads that divides the 4 of q"),
        (((9, 4, 64), (9, 4, 64)), {}, r"q has shape \(9, 4, 64\): expected 4 dimensions"),
        (((2, 9, 4, 64), (2, 9, 4, 64)), {"softcap": -1.0}, "softcap = -1: expected a finite"),
        (((2, 9, 4, 64), (2, 9, 4, 64)), {"sinks": torch.zeros(4, 1)}, "sinks has shape"),
    ],
)
def test_nothing_is_compiled_for_a_call_that_is_refused(asked, shapes, options, says):
    q, k = (torch.zeros(shape, dtype=torch.float16) for shape in shapes)
    with pytest.raises(ValueError, match=says):
        pyflash.attention(q, k, k, config=CONFIG, compile=True, **options)
    assert asked == ([] if "sinks" not in options else ["sinks"])


@pytest.mark.parametrize("starts", [int32(), int32(0), torch.tensor(0), int32(0, 5, 9)], ids=str)
def test_lengths_that_are_none_are_refused_in_the_words_of_the_op(asked, starts):
    q = torch.zeros(9, 4, 64, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"cu_seqlens_q|max_seqlen_q"):
        pyflash.attention_varlen(q, q, q, starts, starts, 4, 4, config=CONFIG, compile=True)


def test_what_autocast_casts_is_compiled(asked):
    q = torch.zeros(2, 9, 4, 64)
    with torch.autocast("cpu", torch.float16):
        pyflash.attention(q, q, q, config=CONFIG, compile=True, causal=True)
    assert asked == ["right_window"]
