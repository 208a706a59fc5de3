"""FlashAttention's functions, in the spellings of FlashAttention 2, 3 and vLLM, beside the formula.

The pitfalls by number are faults that caches had in other libraries."""

from __future__ import annotations

import inspect
import itertools
import math

import pytest
import torch
from support.refusals import int32
from torch import Tensor

import pyflash
from pyflash.compat import flash_attn, flash_attn_interface, vllm_flash_attn
from pyflash.compat.arguments import MISSING
from pyflash.op.reference import expect

SPELLINGS = {"2": flash_attn, "3": flash_attn_interface, "vllm": vllm_flash_attn}
BATCH, CAPACITY, D_HEAD = 3, 48, 16
BEFORE = (37, 0, 11)  # keys in the cache

CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
WINDOWS = pytest.mark.parametrize("window_size", [(-1, -1), (9, -1), (5, 3)])
SOFTCAP = pytest.mark.parametrize("softcap", [0.0, 2.0])
HEADS = pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, D_HEAD).half()


def options_of(causal, window_size, softcap):
    left, right = window_size
    return {
        "causal": causal,
        "window_left": left,
        "window_right": -1 if causal else right,
        "softcap": softcap,
    }


class Cache:
    """Keys of sequences in a cache whose other rows are NaN: in pages of a table, or in rows."""

    def __init__(self, page_size: int | None, heads_kv: int, before=BEFORE, capacity=CAPACITY):
        self.keys = [torch.stack([rows(n, heads_kv), rows(n, heads_kv)]) for n in before]
        self.before, self.page_size = before, page_size or capacity
        width = -(-capacity // self.page_size)
        n_pages = len(before) * width + 2
        self.storage = torch.full((2, n_pages, self.page_size, heads_kv, D_HEAD), math.nan).half()
        self.table = torch.randperm(n_pages)[: len(before) * width].int().view(-1, width)
        self.k, self.v = self.storage.unbind(0)
        for b, n in enumerate(before):
            for key in range(n):
                self.storage[:, self.page(b, key), key % self.page_size] = self.keys[b][:, key]

    def page(self, b: int, key: int) -> int:
        return int(self.table[b, key // self.page_size])

    def places(self) -> dict[str, Tensor]:
        if self.table.shape[1] == 1 and self.page_size == CAPACITY:
            return {"cache_batch_idx": self.table[:, 0].contiguous()}
        return {"block_table": self.table}

    def after(self, k: Tensor | None, v: Tensor | None) -> list[Tensor]:
        """K and V of each sequence, with what is appended."""
        if k is None:
            return self.keys
        new = torch.stack([k, v])
        return [torch.cat([old, new[:, b]], 1) for b, old in enumerate(self.keys)]


@CAUSAL
@WINDOWS
@SOFTCAP
@HEADS
@pytest.mark.parametrize("page_size", [None, 1, 16, 20])
@pytest.mark.parametrize("n_new", [None, 1, 5])
@pytest.mark.parametrize("seqlen_q", [1, 5])
def test_kvcache(causal, window_size, softcap, heads, page_size, n_new, seqlen_q):
    cache = Cache(page_size, heads[1])
    q = rows(BATCH, seqlen_q, heads[0])
    k, v = (None, None) if n_new is None else (rows(BATCH, n_new, heads[1]) for _ in range(2))
    out, lse = flash_attn.flash_attn_with_kvcache(
        q, cache.k, cache.v, k, v, cache_seqlens=int32(*BEFORE), causal=causal,
        window_size=window_size, softcap=softcap, return_softmax_lse=True, **cache.places(),
    )  # fmt: skip
    for b, (key, value) in enumerate(cache.after(k, v)):
        expected = expect(
            q[b : b + 1], key[None], value[None], **options_of(causal, window_size, softcap)
        )
        expected.check(out[b : b + 1], lse[b : b + 1])


@CAUSAL
@WINDOWS
@SOFTCAP
@HEADS
@pytest.mark.parametrize("keys", ["packed", "used", "pages", "pages by cu_seqlens"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_varlen(causal, window_size, softcap, heads, keys, spelling):
    cache = Cache(16, heads[1])
    lengths_q = (5, 2, 9)
    cu_q = int32(0, *itertools.accumulate(lengths_q))
    q = rows(sum(lengths_q), heads[0])
    cu_k, options = int32(0, *itertools.accumulate(BEFORE)), {}
    k, v = torch.cat(cache.keys, 1)
    if keys == "used":  # rows behind the keys of a sequence, which are not its keys
        spare = torch.full((2, 3, heads[1], D_HEAD), math.nan).half()
        k, v = torch.cat([torch.cat([kv, spare], 1) for kv in cache.keys], 1)
        cu_k = int32(0, *itertools.accumulate(n + 3 for n in BEFORE))
        options = {"seqused_k": int32(*BEFORE)}
    elif keys != "packed":
        k, v, options = cache.k, cache.v, {"block_table": cache.table}
        if keys == "pages":
            cu_k, options["seqused_k"] = None, int32(*BEFORE)
    if spelling == "vllm":
        arguments = (q, k, v, max(lengths_q), cu_q, CAPACITY, cu_k)
    else:
        arguments = (q, k, v, cu_q, cu_k, max(lengths_q), CAPACITY)
    out, lse = SPELLINGS[spelling].flash_attn_varlen_func(
        *arguments, causal=causal, window_size=window_size, softcap=softcap,
        return_softmax_lse=True, **options,
    )  # fmt: skip
    for b, (key, value) in enumerate(cache.keys):
        part = slice(int(cu_q[b]), int(cu_q[b + 1]))
        expected = expect(
            q[None, part], key[None], value[None], **options_of(causal, window_size, softcap)
        )
        expected.check(out[None, part], lse[None, :, part])


@CAUSAL
@WINDOWS
@SOFTCAP
@HEADS
@pytest.mark.parametrize("d_heads", [(16, 16), (20, 20), (24, 16), (16, 24)])
def test_padded(causal, window_size, softcap, heads, d_heads):
    q, k = torch.randn(2, 7, heads[0], d_heads[0]), torch.randn(2, 12, heads[1], d_heads[0])
    q, k, v = (x.half() for x in (q, k, torch.randn(2, 12, heads[1], d_heads[1])))
    wide = torch.nn.functional.pad(v, (0, max(0, d_heads[0] - d_heads[1])))
    for module in (flash_attn, flash_attn_interface):
        options = {"causal": causal, "window_size": window_size, "softcap": softcap}
        out = module.flash_attn_func(q, k, v, **options)
        assert out.shape == (*q.shape[:3], d_heads[1])
        if d_heads[0] < d_heads[1]:
            continue
        expected = expect(q, k, wide, **options_of(causal, window_size, softcap))
        expected.check(torch.nn.functional.pad(out, (0, wide.shape[-1] - out.shape[-1])))


@pytest.mark.parametrize("causal", [False, True])
def test_packed_tensors_are_their_parts(causal):
    qkv = rows(2, 9, 3, 4)
    expected = flash_attn.flash_attn_func(*qkv.unbind(2), causal=causal)
    lengths = int32(0, 9, 18)
    found = {
        "qkv": flash_attn.flash_attn_qkvpacked_func(qkv, causal=causal),
        "kv": flash_attn.flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], 0.0, None, causal),
        "varlen qkv": flash_attn.flash_attn_varlen_qkvpacked_func(
            qkv.flatten(0, 1), lengths, 9, 0.0, None, causal
        ),
        "varlen kv": flash_attn.flash_attn_varlen_kvpacked_func(
            qkv[:, :, 0].flatten(0, 1), qkv[:, :, 1:].flatten(0, 1), lengths, lengths, 9, 9,
            causal=causal,
        ),
        "3": flash_attn_interface.flash_attn_qkvpacked_func(qkv, None, causal),
        "3 by heads": flash_attn_interface.flash_attn_qkvpacked_func(
            qkv.flatten(2, 3), causal=causal, num_heads_q=4
        ),
    }  # fmt: skip
    for name, out in found.items():
        assert torch.equal(out.view(expected.shape), expected), name


def test_fourth_positional_argument_is_that_of_each_spelling():
    q, k, v = rows(1, 4, 2), rows(1, 6, 2), rows(1, 6, 2)
    expected = flash_attn.flash_attn_func(q, k, v, softmax_scale=0.5)
    assert torch.equal(flash_attn_interface.flash_attn_func(q, k, v, 0.5), expected)
    torch.manual_seed(0)
    dropped = flash_attn.flash_attn_func(q, k, v, 0.5)
    torch.manual_seed(0)
    assert torch.equal(dropped, pyflash.attention(q, k, v, dropout_p=0.5))


ORDERS = {
    ("2", "flash_attn_func"): "q k v dropout_p softmax_scale causal window_size softcap",
    ("2", "flash_attn_varlen_func"): "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k",
    ("2", "flash_attn_with_kvcache"): "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens",
    ("3", "flash_attn_func"): "q k v softmax_scale causal qv q_descale k_descale v_descale",
    ("3", "flash_attn_with_kvcache"): "q k_cache v_cache k v qv rotary_cos rotary_sin cache_seq",
    ("vllm", "flash_attn_varlen_func"): "q k v max_seqlen_q cu_seqlens_q max_seqlen_k cu_seqlens",
}


@pytest.mark.parametrize(("spelling", "name"), ORDERS)
def test_signatures(spelling, name):
    parameters = inspect.signature(getattr(SPELLINGS[spelling], name)).parameters
    assert " ".join(parameters).startswith(ORDERS[spelling, name])


def test_gradients_pass():
    q, k, v = (rows(1, 9, 2).requires_grad_() for _ in range(3))
    flash_attn.flash_attn_func(q, k, v, causal=True, deterministic=True).sum().backward()
    for x in (q, k, v):
        assert x.grad.isfinite().all()
    assert v.grad.abs().sum() > 0


def test_what_is_returned():
    q, k, v = rows(1, 4, 2), rows(1, 6, 2), rows(1, 6, 2)
    out, lse, probabilities = flash_attn.flash_attn_func(q, k, v, return_attn_probs=True)
    assert (lse.shape, probabilities.numel()) == ((1, 2, 4), 0)
    pair = flash_attn_interface.flash_attn_func(q, k, v, return_attn_probs=True)
    assert torch.equal(pair[0], out)
    assert torch.equal(pair[1], lse)
    into = torch.empty_like(q)
    assert vllm_flash_attn.flash_attn_varlen_func(
        q[0], k[0], v[0], 4, int32(0, 4), 6, int32(0, 6), out=into[0]
    ).data_ptr() == into.data_ptr()  # fmt: skip
    assert torch.equal(into, out)
    with pytest.raises(ValueError, match=r"out is \(4, 1, 16\)"):
        flash_attn.flash_attn_func(q, k, v, out=rows(4, 1))


def test_sinks_slopes_and_chunks():
    q, k, v = rows(1, 4, 2), rows(1, 30, 2), rows(1, 30, 2)
    for ours, theirs in (
        ({"sinks": torch.tensor([0.5, 2.0])}, {"s_aux": torch.tensor([0.5, 2.0])}),
        ({"alibi_slopes": torch.rand(2)}, None),
        ({"attention_chunk": 8, "causal": True}, None),
    ):
        expected = expect(q, k, v, **ours)
        expected.check(flash_attn_interface.flash_attn_func(q, k, v, **(theirs or ours)))


def test_combine():
    q, k, v = rows(2, 4, 2), rows(2, 30, 2), rows(2, 30, 2)
    parts = [slice(0, 9), slice(9, 10), slice(10, 30)]
    states = [
        flash_attn_interface.flash_attn_func(q, k[:, p], v[:, p], return_attn_probs=True)
        for p in parts
    ]
    outs = torch.stack([out.float() for out, _ in states])
    lses = torch.stack([lse.transpose(1, 2) for _, lse in states])
    out, lse = flash_attn_interface.flash_attn_combine(outs, lses, out_dtype=torch.float16)
    expect(q, k, v).check(out, lse.transpose(1, 2))


@pytest.mark.parametrize("name", MISSING)
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(
    "function", ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]
)
def test_what_is_missing_raises_by_name(name, spelling, function):
    if not (call := getattr(SPELLINGS[spelling], function, None)):
        assert spelling == "vllm"
        return
    q = rows(4, 2)
    arguments = {"q": q, "k": q, "v": q}
    if function == "flash_attn_varlen_func":
        arguments |= {"cu_seqlens_q": int32(0, 4), "cu_seqlens_k": int32(0, 4)}
        arguments |= {"max_seqlen_q": 4, "max_seqlen_k": 4}
    if function == "flash_attn_with_kvcache":
        arguments = {"q": q[None], "k_cache": q[None], "v_cache": q[None]}
    asked = torch.ones(1) if MISSING[name][0] is None else MISSING[name][0] + 1
    with pytest.raises(ValueError, match=f"^pyflash: {name} of {function} is .* pyflash has no "):
        call(**arguments, **{name: asked})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (((), {}), "got no q: expected q, k, v"),
        (((1,) * 15, {}), "got 15 positional arguments: expected at most 11"),
        (((1, 2, 3), {"v": 1}), "got v twice"),
        (((1, 2, 3), {"causality": 1}), "got an unexpected keyword argument causality"),
    ],
)
def test_wrong_calls_are_refused(arguments, said):
    with pytest.raises(TypeError, match=f"^pyflash: flash_attn_func {said}"):
        flash_attn.flash_attn_func(*arguments[0], **arguments[1])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cache_seqlens": None}, "cache_seqlens is None and k is given"),
        ({"v": None}, "only one of k and v is given"),
        ({"cache_batch_idx": int32(0, 1, 2)}, "cache_batch_idx and block_table are given"),
        ({"page_table": int32(0).view(1, 1)}, "block_table and page_table are given"),
        ({"scheduler_metadata": int32(1)}, "scheduler_metadata is another library's"),
    ],
)
def test_wrong_caches_are_refused(changed, said):
    cache = Cache(16, 2)
    arguments = {"k": rows(BATCH, 1, 2), "v": rows(BATCH, 1, 2), "cache_seqlens": int32(*BEFORE)}
    with pytest.raises(ValueError, match=f"^pyflash: {said}"):
        flash_attn.flash_attn_with_kvcache(
            rows(BATCH, 1, 2), cache.k, cache.v, **{**arguments, **cache.places(), **changed}
        )


@pytest.mark.parametrize("page_size", [1, 16])
def test_pitfall_9_a_page_of_minus_one_is_no_page(page_size):
    """It is neither the last page nor another's, for the new keys and for those of padding."""
    cache = Cache(page_size, 2)
    cache.table[1] = -1
    before = cache.storage.clone()
    k, v = rows(BATCH, 1, 2), rows(BATCH, 1, 2)
    with pytest.raises(ValueError, match="sequence 1 has 0 keys and no room for 1"):
        flash_attn.flash_attn_with_kvcache(
            rows(BATCH, 1, 2), cache.k, cache.v, k, v, cache_seqlens=int32(*BEFORE),
            **cache.places(),
        )  # fmt: skip
    assert torch.equal(cache.storage.isnan(), before.isnan())


def test_pitfall_9_new_keys_longer_than_their_lengths():
    """Rows of packed k past cu_seqlens_k_new are nobody's and are not written."""
    cache = Cache(16, 2)
    n_nan = int(cache.storage.isnan().sum())
    k, v = rows(6, 2), rows(6, 2)
    cu_seqlens_new = int32(0, 1, 3, 4)
    q = rows(4, 2)
    out = flash_attn_interface.flash_attn_with_kvcache(
        q, cache.k, cache.v, k, v, cache_seqlens=int32(*BEFORE), page_table=cache.table,
        cu_seqlens_q=cu_seqlens_new, cu_seqlens_k_new=cu_seqlens_new, max_seqlen_q=2, causal=True,
    )  # fmt: skip
    assert int(cache.storage.isnan().sum()) == n_nan - 2 * 4 * 2 * D_HEAD
    for b, old in enumerate(cache.keys):
        part = slice(int(cu_seqlens_new[b]), int(cu_seqlens_new[b + 1]))
        key, value = torch.cat([old, torch.stack([k, v])[:, part]], 1)
        expected = expect(q[None, part], key[None], value[None], causal=True)
        expected.check(out[None, part])


@pytest.mark.parametrize("page_size", [None, 16])
@pytest.mark.parametrize("lengths", [(CAPACITY, 0, 1), (3, CAPACITY - 1, 3), (0, 0, CAPACITY + 9)])
def test_pitfall_10_append_without_room_writes_nothing(page_size, lengths):
    cache = Cache(page_size, 2)
    before = cache.storage.clone().nan_to_num(7)
    k, v = rows(BATCH, 2, 2), rows(BATCH, 2, 2)
    with pytest.raises(ValueError, match=r"keys and no room for \d+ in \d pages of"):
        flash_attn.flash_attn_with_kvcache(
            rows(BATCH, 1, 2), cache.k, cache.v, k, v, cache_seqlens=int32(*lengths),
            **cache.places(),
        )  # fmt: skip
    assert torch.equal(cache.storage.nan_to_num(7), before)


@pytest.mark.parametrize("page_size", [None, 16])
@pytest.mark.parametrize("n_new", [1, 4])
def test_pitfall_11_lengths_are_those_before_append(page_size, n_new):
    """Two steps, the second on what the first wrote, with as many queries as new keys."""
    cache = Cache(page_size, 2)
    lengths, keys = int32(*BEFORE), cache.keys
    for _ in range(2):
        q, k, v = (rows(BATCH, n_new, 2) for _ in range(3))
        given = lengths.clone()
        out = flash_attn.flash_attn_with_kvcache(
            q, cache.k, cache.v, k, v, cache_seqlens=lengths, causal=True, **cache.places()
        )
        assert torch.equal(lengths, given), "the caller's own tensor stays"
        keys = [torch.cat([old, torch.stack([k[b], v[b]])], 1) for b, old in enumerate(keys)]
        for b, (key, value) in enumerate(keys):
            expected = expect(q[b : b + 1], key[None], value[None], causal=True)
            expected.check(out[b : b + 1])
        lengths = lengths + n_new


@pytest.mark.parametrize("planned_for", [1, 8, CAPACITY])
@pytest.mark.parametrize("num_splits", [0, 1, 7])
def test_pitfall_12_a_plan_serves_other_lengths(planned_for, num_splits):
    cache = Cache(16, 2)
    plan = flash_attn.get_scheduler_metadata(
        BATCH, 1, planned_for, 2, 2, D_HEAD, torch.full((BATCH,), planned_for).int(),
        num_splits=num_splits,
    )  # fmt: skip
    assert (plan.dtype, plan.numel()) == (torch.int32, 0)
    q, options = rows(BATCH, 1, 2), {"cache_seqlens": int32(*BEFORE), "num_splits": num_splits}
    out = flash_attn.flash_attn_with_kvcache(
        q, cache.k, cache.v, scheduler_metadata=plan, **options, **cache.places()
    )
    for b, (key, value) in enumerate(cache.keys):
        expect(q[b : b + 1], key[None], value[None]).check(out[b : b + 1])


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("max_seqlen_k", [37, 38, CAPACITY, 1000])
def test_pitfall_13_a_bound_of_lengths_changes_no_bit(paged, max_seqlen_k):
    cache = Cache(16, 2)
    q, cu_q = rows(BATCH, 2), int32(0, 1, 2, 3)
    cu_k = int32(0, *itertools.accumulate(BEFORE))
    k, v = torch.cat(cache.keys, 1)
    options = {"block_table": cache.table, "seqused_k": int32(*BEFORE)} if paged else {}
    if paged:
        k, v, cu_k = cache.k, cache.v, None
    found = [
        vllm_flash_attn.flash_attn_varlen_func(q, k, v, bound_q, cu_q, bound_k, cu_k, **options)
        for bound_q, bound_k in ((1, 37), (5, max_seqlen_k))
    ]
    assert torch.equal(*found)
