"""Which config runs a variant where none is named."""

from __future__ import annotations

import pytest
import torch
from support.fake_library import build_fake_library

import pyflash
from pyflash.config import Arch, DType
from pyflash.config.variant_needs import FEW_KEYS
from pyflash.op import library
from pyflash.op.variants import call, jit
from pyflash.op.variants.jit import default_config
from pyflash.op.variants.selection import select
from pyflash.variant import parse
from pyflash.variant.library import named
from pyflash.variant.needs import needs_of

SM90 = Arch.of(90)
FOUR = "(FP16, 64, 256, 64, 4): sm90+stages_4+overlap+persistent+rescale_threshold"
SHORT = "(FP16, 64, 64, 64, 1): sm90+stages_2+overlap+persistent+rescale_threshold+three_ctas"
THREE = "(FP16, 64, 192, 96, 3): sm90+stages_3+overlap+persistent+rescale_threshold"
DECODING = "(FP16, 64, 64, 128, 1): sm90+stages_2+overlap+persistent+rescale_threshold+pack_gqa"
WIDE = "(FP16, 128, 192, 64, 3): sm90+stages_3+overlap+persistent+rescale_threshold"
FEW_OF_TWO = "(FP16, 512, 64, 64, 1): sm90+stages_2+pack_gqa"
MANY_OF_TWO = "(FP16, 512, 128, 64, 2): sm90+stages_2"
WIDE_TWO = "(FP16, 128, 128, 128, 2): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold"


@pytest.mark.parametrize("name", ["causal", "window", "documents", "prefix_lm", "softcap"])
def test_intervals_and_functions_of_a_score_need_nothing(name):
    needs = needs_of(named(name).variant)
    assert needs.words == ""
    assert str(default_config(DType.FP16, 64, SM90, needs)) == FOUR
    assert str(default_config(DType.FP16, 128, SM90, needs)) == WIDE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("alibi", "scores by position"),
        ("t5_bias", "scores by position"),
        ("natten_2d", "a mask as bits"),
        ("bools(m: bool[2]): s where m[q, k]",
         "a mask as bits and tensors of an element for each pair"),
        ("fullbias(bias: bf16[4]): s + bias[b, h, q, k]",
         "scores by position and tensors of an element for each pair"),
    ],
)  # fmt: skip
def test_what_is_kept_needs_room(text, words):
    needs = needs_of(parse(text) if ":" in text else named(text).variant)
    assert needs.words == words
    assert str(default_config(DType.FP16, 64, SM90, needs)) == THREE
    assert str(default_config(DType.FP16, 128, SM90, needs)) == WIDE_TWO


def test_masks_as_bits_have_small_tiles_where_keys_are_few():
    of_mask = needs_of(named("natten_2d").variant)
    assert str(default_config(DType.FP16, 64, SM90, of_mask, few_keys=True)) == SHORT
    assert str(default_config(DType.FP16, 128, SM90, of_mask, few_keys=True)) == WIDE_TWO
    for name in ("causal", "alibi"):
        needs = needs_of(named(name).variant)
        few = default_config(DType.FP16, 64, SM90, needs, few_keys=True)
        assert few == default_config(DType.FP16, 64, SM90, needs)


@pytest.mark.parametrize("name", ["causal", "alibi", "natten_2d"])
def test_few_queries_have_one_small_tile(name):
    needs = needs_of(named(name).variant)
    for few_keys in (False, True):
        few = {"few_keys": few_keys, "few_queries": True}
        assert str(default_config(DType.FP16, 64, SM90, needs, **few)) == DECODING
        for d_head in (128, 256):
            config = default_config(DType.FP16, d_head, SM90, needs, **few)
            assert (config.d_head, config.B_r, config.pack_gqa) == (d_head, 64, True)
        assert default_config(DType.FP16, 64, Arch.of(80), needs, **few).family.generation == 80


@pytest.mark.parametrize(
    ("n_queries", "heads", "heads_kv", "expected"),
    [(1, 4, 4, True), (64, 4, 4, True), (65, 4, 4, False), (16, 8, 2, True), (17, 8, 2, False),
     (1, 128, 1, False), (0, 0, 0, True)],
)  # fmt: skip
def test_queries_are_counted_with_the_heads_that_share_keys(n_queries, heads, heads_kv, expected):
    padded = torch.empty(2, n_queries, heads, 64, device="meta")
    keys = torch.empty(2, 99, heads_kv, 64, device="meta")
    assert jit._has_few_queries(padded, keys, None) == expected
    packed = torch.empty(1000, heads, 64, device="meta")
    for of_keys in (keys.flatten(0, 1), keys):  # in pages
        assert jit._has_few_queries(packed, of_keys, n_queries) == expected
    assert not jit._has_few_queries(packed, keys, None)
    for refused in (torch.empty(64, device="meta"), padded):
        assert not jit._has_few_queries(refused, keys, n_queries)


@pytest.mark.parametrize("rank_of_few", [-99, -1])
def test_of_several_kernels_that_are_built_few_queries_choose_the_one_that_reads_keys_once(
    tmp_path, monkeypatch, rank_of_few
):
    """Whichever of two has the lower rank."""
    variant = parse(f"ranked: s + {-rank_of_few} * q")
    macros = f'VARIANT_KEY="{variant.normal.key}"', f"OF_FEW={rank_of_few}"
    library.load(build_fake_library(tmp_path, "variants", *macros))
    monkeypatch.setattr("pyflash.op.variants.selection.architecture_of", lambda _: (90, 132))

    def config(heads, heads_kv, n_queries, **packed):
        sizes = {"heads_q": heads, "heads_kv": heads_kv, "seqlen_q": n_queries, "seqlen_k": 4096}
        problem = pyflash.Problem(**{"batch": 1} | sizes | packed, d_head=512, dtype="FP16")
        return str(select(problem, variant).config)

    for heads, heads_kv in ((4, 4), (8, 2), (16, 1), (64, 1), (128, 1)):
        most = 64 * heads_kv // heads
        packed = {"packed": True, "batch": 3, "total_k": 4096}
        for n_queries in (1, max(most, 1), most + 1, 4096):
            expected = FEW_OF_TWO if n_queries <= most else MANY_OF_TWO
            assert config(heads, heads_kv, n_queries) == expected
            beside = packed | {"total_q": n_queries + 2}
            assert config(heads, heads_kv, n_queries, **beside) == expected


@pytest.mark.parametrize(("keys", "expected"), [(FEW_KEYS, True), (FEW_KEYS + 1, False)])
def test_keys_are_counted_of_the_longest_sequence(keys, expected):
    padded = torch.empty(2, keys, 1, 64, device="meta")
    packed = torch.empty(9 * keys, 1, 64, device="meta")
    starts = torch.tensor([0, keys, 9 * keys])
    assert jit._has_few_keys(padded, ()) == expected
    assert jit._has_few_keys(packed, (starts, starts, 1, keys)) == expected


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("dynamic", "expected"), [(False, True), (True, False)])
def test_lengths_that_a_graph_keeps_symbolic_may_be_long(monkeypatch, dynamic, expected, packed):
    """A call of which a GPU compiles the kernel asks for a config. Its d_head and options are those
    of the graph."""
    asked = []
    monkeypatch.setattr(call, "is_asked", lambda q, compile: True)
    monkeypatch.setattr(jit, "_ensure_once", lambda *problem: asked.append(problem[6]) or "")

    @torch.compile(backend="eager", fullgraph=True, dynamic=dynamic)
    def run(q, starts, longest, left):
        options = {"variant": "chunked", "tensors": {"chunk": 3}, "window_left": left}
        if packed:
            lengths = (starts, starts, longest, longest)
            return pyflash.attention_varlen(q, q, q, *lengths, **options)
        return pyflash.attention(q, q, q, **options)

    for keys in (20, 30):
        q = torch.randn(2 * keys, 1, 64) if packed else torch.randn(2, keys, 1, 64)
        run(q.half(), torch.tensor([0, keys, 2 * keys], dtype=torch.int32), keys, 7)
    assert set(asked) == {(expected, expected)}


def test_the_smallest_d_head_that_is_large_enough_and_other_families():
    assert default_config(DType.BF16, 72, SM90).d_head == 96
    assert default_config(DType.BF16, 64, Arch.of(80)).family.name == "sm80_forward"
    with pytest.raises(ValueError, match="no config is for BF16 with d_head 300"):
        default_config(DType.BF16, 300, SM90)
