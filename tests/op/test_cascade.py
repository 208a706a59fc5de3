"""Attention over shared prefixes: beside attention over the whole sequences, in fp64."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.paged import Cache
from support.refusals import int32

import pyflash

OPTIONS = {
    "full": {},
    "causal": {"causal": True},
    "softcap": {"softcap": 2.0, "causal": True},
    "sinks": {"sinks": torch.linspace(-2, 3, 4), "causal": True},
    "scaled": {"softmax_scale": 0.3},
}


class Shared:
    """Five sequences, queries and own keys of each; and levels before them: the lengths of their
    prefixes, and the groups of sequences that share each."""

    own, lengths_q = (37, 5, 1, 64, 7), (3, 5, 1, 0, 2)

    def __init__(self, levels, page_size=16):
        lengths = [n for of_level, _ in levels for n in of_level]
        self.cache = Cache((*lengths, *self.own), page_size)
        self.starts = [0, *itertools.accumulate(self.lengths_q)]
        self.q = torch.randn(self.starts[-1], 4, 64).half()
        self.levels, self.parts = [], [[] for _ in self.own]
        first = 0
        for of_level, groups in [*levels, (self.own, [1] * len(self.own))]:
            bounds = [0, *itertools.accumulate(groups)]
            assert bounds[-1] == len(self.own)
            for i, (begin, end) in enumerate(itertools.pairwise(bounds)):
                for b in range(begin, end):
                    self.parts[b].append(first + i)
            starts = int32(*(self.starts[b] for b in bounds))
            rows = slice(first, first + len(of_level))
            of_all = (self.cache.table[rows], self.cache.seqlens[rows])
            self.levels.append((*of_all, starts, max(int(starts.diff().max()), 1)))
            first += len(of_level)

    def check(self, out, lse, **options):
        whole = self.cache
        keys, values = (
            [torch.cat([x[part] for part in parts]) for parts in self.parts]
            for x in (whole.keys, whole.values)
        )
        whole.keys, whole.values = keys, values
        for b, (begin, end) in enumerate(itertools.pairwise(self.starts)):
            rows = slice(begin, end)
            whole.check(b, self.q[rows], out[rows], lse[:, rows], **options)


LEVELS = {
    "none": [],
    "one": [((100,), [5])],
    "two groups": [((100, 33), [2, 3])],
    "some without": [((100, 0, 16), [2, 1, 2])],
    "two levels": [((64,), [5]), ((9, 40), [4, 1])],
}


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("page_size", [1, 16, 24])
def test_levels(levels, options, page_size):
    torch.manual_seed(0)
    shared = Shared(levels, page_size)
    caches = (shared.cache.k, shared.cache.v)
    into = torch.full_like(shared.q, torch.nan)
    out, lse = pyflash.attention_cascade(
        shared.q, *caches, shared.levels, out=into, return_lse=True, **options
    )
    assert out is into
    again = pyflash.attention_cascade(shared.q, *caches, shared.levels, **options)
    assert torch.equal(again, out)
    shared.check(out, lse, **options)


def test_compiled():
    shared = Shared(LEVELS["one"])
    caches = (shared.cache.k, shared.cache.v)
    compiled = torch.compile(pyflash.attention_cascade, fullgraph=True, backend="aot_eager")
    expected = pyflash.attention_cascade(shared.q, *caches, shared.levels, causal=True)
    out = compiled(shared.q, *caches, shared.levels, causal=True)
    torch.testing.assert_close(out, expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"levels": []}, "levels is empty: expected at least that of each"),
        ({"levels": [(1, 2)]}, r"levels\[0\] has 2 items: expected block_table, seqlens_k, cu_se"),
        ({"window_left": 3}, "attention_cascade got window_left: expected no option but causal"),
        ({"attention_chunk": 8}, "attention_cascade got attention_chunk: expected no option but c"),
        ({"alibi_slopes": torch.ones(4)}, "attention_cascade got alibi_slopes: expected no opt"),
    ],
)
def test_wrong_calls_are_refused_in_words(changed, said):
    shared = Shared(LEVELS["one"])
    caches = {"k_cache": shared.cache.k, "v_cache": shared.cache.v}
    arguments = {"q": shared.q, **caches, "levels": shared.levels, **changed}
    with pytest.raises(ValueError, match=f"^pyflash: {said}"):
        pyflash.attention_cascade(**arguments)
    with pytest.raises(TypeError, match="attention_cascade got an unexpected keyword"):
        pyflash.attention_cascade(**{**arguments, "casual": True})
