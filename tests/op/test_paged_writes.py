"""What writes pages, where rows go, and the merge of attention over parts of the keys."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from support.refusals import int32

import pyflash
from pyflash.op.autograd import TORCH_API
from pyflash.op.reference import expect

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
MARK = -7.0


def rows_of(n: int, dtype: torch.dtype = torch.float16) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 2, 8).to(dtype), torch.randn(n, 2, 8).to(dtype)


def caches_of(
    layout: str, num_pages: int, page_size: int, dtype: torch.dtype = torch.float16
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both caches and the storage that they are views of, all MARK."""
    shapes = {
        "of one tensor": (num_pages, 2, page_size, 2, 8),
        "columns of one tensor": (num_pages, page_size, 2, 16),
        "heads first": (2, num_pages, 2, page_size, 8),
    }
    storage = torch.full(shapes[layout], MARK, dtype=dtype)
    if layout == "columns of one tensor":
        return *storage.split(8, -1), storage
    if layout == "heads first":
        return *storage.transpose(2, 3), storage
    return *storage.unbind(1), storage


@pytest.mark.parametrize("layout", ["of one tensor", "columns of one tensor", "heads first"])
@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("slots_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kept", ["all", "none", "some", "first skipped", "fewer slots"])
def test_append_writes_the_rows_of_slots_alone(layout, page_size, slots_dtype, dtype, kept):
    n, num_pages = 9, 12
    k, v = rows_of(n, dtype)
    slots = torch.randperm(num_pages * page_size)[:n].to(slots_dtype)
    if kept == "none":
        slots[:] = -1
    elif kept == "some":
        slots[1::3] = -5
    elif kept == "first skipped":
        slots[:3] = -1
    elif kept == "fewer slots":
        slots = slots[:4]
    k_cache, v_cache, storage = caches_of(layout, num_pages, page_size, dtype)
    assert pyflash.append_kv(k, v, k_cache, v_cache, slots) is None
    written = 0
    for new, cache in ((k, k_cache), (v, v_cache)):
        expected = torch.full(cache.shape, MARK, dtype=dtype)
        for i, slot in enumerate(slots.tolist()):
            if slot >= 0:
                expected[slot // page_size, slot % page_size] = new[i]
                written += new[i].numel()
        assert torch.equal(cache, expected)
    assert (storage != MARK).sum() <= written


def not_aligned(x):
    """The same elements, one behind a multiple of 16 bytes."""
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


def between_others(x):
    """Heads are no multiple of 16 bytes apart."""
    return torch.cat([x, x[..., :4]], -1)[..., : x.shape[-1]]


LAYOUTS_OF_ROWS = {
    "dense": lambda x: x,
    "heads first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "not aligned": not_aligned,
    "between others": between_others,
    "columns first": lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "one for all heads": lambda x: x[:, :1].expand(x.shape),
    "narrow": lambda x: x[..., :4],
}


@pytest.mark.parametrize("layout", LAYOUTS_OF_ROWS)
def test_append_of_rows_that_lie_in_other_ways(layout):
    """Some are copied 16 bytes at a time, others by torch's ops."""
    k, v = map(LAYOUTS_OF_ROWS[layout], rows_of(5))
    k_cache, v_cache = torch.full((2, 3, 4, 2, k.shape[2]), MARK).half()
    slots = torch.tensor([7, -1, 0, 11])
    copied = {"dense", "heads first", "one for all heads"}
    copies = (x.clone() for x in (k_cache, v_cache))
    assert torch.ops.pyflash.append_rows(k, v, *copies, slots) == (layout in copied)
    pyflash.append_kv(k, v, k_cache, v_cache, slots)
    for new, cache in ((k, k_cache), (v, v_cache)):
        expected = torch.full(cache.shape, MARK).half()
        for i, slot in enumerate(slots.tolist()):
            if slot >= 0:
                expected[slot // 4, slot % 4] = new[i]
        assert torch.equal(cache, expected)


def test_append_of_rows_of_the_cache_itself():
    """They are read before any is written."""
    cache = torch.randn(2, 3, 4, 2, 8).half()
    before = cache.clone()
    slots = torch.tensor([1, 2, 3, 0])
    pyflash.append_kv(cache[0, 0], cache[1, 0], *cache, slots)
    assert torch.equal(cache[:, 0], before[:, 0, [3, 0, 1, 2]])
    assert torch.equal(cache[:, 1:], before[:, 1:])


@pytest.mark.parametrize("num_pages", [0, 3])
@pytest.mark.parametrize("n", [0, 2])
def test_append_of_nothing(num_pages, n):
    k_cache, v_cache, storage = caches_of("of one tensor", num_pages, 4)
    pyflash.append_kv(*rows_of(n), k_cache, v_cache, torch.full((n,), -1))
    assert (storage == MARK).all()


def test_append_past_the_last_page_is_refused_and_writes_nothing():
    k_cache, v_cache, storage = caches_of("of one tensor", 3, 4)
    with pytest.raises(ValueError, match="slots has 12: expected numbers below 12, 3 pages of 4"):
        pyflash.append_kv(*rows_of(2), k_cache, v_cache, torch.tensor([0, 12]))
    assert (storage == MARK).all()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"k": torch.zeros(2, 2)}, r"k has shape \(2, 2\): expected \(n, heads, d_head\)"),
        ({"v": torch.zeros(1, 2, 8).half()}, r"v has shape \(1, 2, 8\): expected \(2, 2, 8\) as k"),
        ({"k_cache": torch.zeros(3, 4, 1, 8).half()}, r"k_cache has shape .*: expected \(num_pa"),
        ({"v_cache": torch.zeros(3, 5, 2, 8).half()}, "v_cache has 3 pages of 5 rows: expected 3"),
        ({"v_cache": torch.zeros(3, 4, 2, 8)}, "v_cache is float32: expected float16 as k"),
        ({"slots": torch.zeros(2)}, "slots is float32: expected int32 or int64"),
        ({"slots": torch.zeros(3).long()}, r"slots has shape \(3,\): expected \(n,\), at most the"),
        ({"slots": torch.zeros(1, device="meta").long()}, "slots is on meta: expected cpu, whe"),
    ],
)  # fmt: skip
def test_wrong_appends_are_refused(changed, said):
    k, v = rows_of(2)
    k_cache, v_cache, _ = caches_of("of one tensor", 3, 4)
    slots = torch.tensor([0, 1])
    given = {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "slots": slots, **changed}
    with pytest.raises(ValueError, match=f"^pyflash: {said}"):
        pyflash.append_kv(**given)


@pytest.mark.parametrize("layout", ["of one tensor", "columns of one tensor", "heads first"])
def test_opcheck_of_append(layout):
    k_cache, v_cache, _ = caches_of(layout, 3, 4)
    inputs = (*rows_of(3), k_cache.clone(), v_cache.clone(), torch.tensor([5, -1, 2]))
    torch.library.opcheck(torch.ops.pyflash.append_kv.default, inputs)


def test_append_has_no_gradients():
    k, v = rows_of(2)
    k_cache, v_cache, _ = caches_of("of one tensor", 3, 4)
    with pytest.raises(RuntimeError, match="attention over pages and append_kv have no gradients"):
        pyflash.append_kv(k.requires_grad_(), v, k_cache, v_cache, torch.tensor([0, 1]))


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_a_step_appends_its_keys_and_attends_them(page_size):
    """Two steps of sequences of their own lengths, beside attention over all of their keys."""
    torch.manual_seed(0)
    lengths, width = [(5, 2), (0, 3), (17, 1)], 24
    numbers = torch.randperm(3 * width).view(3, width).int()
    k_cache, v_cache = torch.full((2, 3 * width, page_size, 2, 64), math.nan).half()
    keys = [torch.randn(sum(n), 2, 2, 64).half() for n in lengths]
    for step in range(2):
        new = [n[step] for n in lengths]
        cu_seqlens = int32(0, *torch.tensor(new).cumsum(0).tolist())
        seqlens = int32(*(sum(n[: step + 1]) for n in lengths))
        parts = [x[int(n) - m : int(n)] for x, n, m in zip(keys, seqlens, new, strict=True)]
        k, v = torch.cat(parts).unbind(1)
        slots = pyflash.slots_of(numbers, seqlens, cu_seqlens, page_size, len(k) + 3)
        assert slots[len(k) :].tolist() == [-1] * 3
        pyflash.append_kv(k, v, k_cache, v_cache, slots[: len(k)])
    q = torch.randn(len(k), 4, 64).half()
    packed = {"cu_seqlens_q": cu_seqlens, "max_seqlen_q": max(new)}
    out = pyflash.attention_paged(q, k_cache, v_cache, numbers, seqlens, causal=True, **packed)
    for b, kv in enumerate(keys):
        rows = slice(int(cu_seqlens[b]), int(cu_seqlens[b + 1]))
        expect(q[None, rows], kv[None, :, 0], kv[None, :, 1], causal=True).check(out[None, rows])


def test_slots_are_those_of_the_definition():
    table = int32(9, 4, -1, 7, 2, 3).view(2, 3)
    slots = pyflash.slots_of(table, int32(7, 2), int32(0, 4, 5), page_size=3, total_q=7)
    # Keys 3 to 6 of sequence 0, whose key 6 has no page, key 1 of sequence 1, and no sequence.
    assert slots.tolist() == [4 * 3, 4 * 3 + 1, 4 * 3 + 2, -1, 7 * 3 + 1, -1, -1]
    # More queries than keys, and more keys than the table has room for.
    assert pyflash.slots_of(table, int32(1, 11), int32(0, 2, 5), 3, 5).tolist() == [
        -1, 27, 3 * 3 + 2, -1, -1]  # fmt: skip
    empty = torch.zeros(0, 3, dtype=torch.int32)
    assert pyflash.slots_of(empty, int32(), int32(0), 3, 2).tolist() == [-1, -1]


def random_slots(seed, device="cpu"):
    """Arguments of `slots_of`, of any dtypes and strides; lengths and pages may be wrong."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(low, high, *shape):
        return torch.randint(low, high, shape, generator=generator)

    batch, max_pages, page_size = (int(drawn(low, 9, 1)) for low in (0, 0, 1))
    starts = torch.cat([torch.zeros(1), drawn(0, 6, batch).cumsum(0)])
    total_q = int(starts[-1]) + int(drawn(0, 3, 1))
    table = drawn(-2, 40, max_pages, batch).t() if seed % 2 else drawn(-2, 40, batch, max_pages)
    lengths = drawn(-3, 50, 2 * batch)[::2]
    dtypes = [torch.int64 if seed >> i & 1 else torch.int32 for i in range(3)]
    tensors = (x.to(dtype) for x, dtype in zip((table, lengths, starts), dtypes, strict=True))
    return (*(x.to(device) for x in tensors), page_size, total_q)


@pytest.mark.parametrize("seed", range(64))
def test_slots_are_those_of_torchs_ops(seed, monkeypatch):
    arguments = random_slots(seed)
    found = pyflash.slots_of(*arguments)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.equal(found, pyflash.slots_of(*arguments))
    assert found.dtype == torch.int64


def test_slots_beyond_32_bits():
    table, page_size = int32(2**27).view(1, 1), 256
    assert pyflash.slots_of(table, int32(3), int32(0, 1), page_size, 1).tolist() == [2**35 + 2]


@pytest.mark.parametrize("n_parts", [1, 2, 5])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_merged_parts_are_attention_over_all_keys(n_parts, packed, dtype):
    q, k, v = (torch.randn(1, n, 2, 64).to(dtype) for n in (9, 50, 50))
    bounds = torch.linspace(0, 50, n_parts + 1).long().tolist()
    states = []
    for begin, end in itertools.pairwise(bounds):
        part = pyflash.attention(q, k[:, begin:end], v[:, begin:end], return_lse=True)
        states.append(tuple(x[0] for x in part) if packed else part)
    states.append(tuple(map(torch.clone, states[0])))  # nothing attended
    states[-1][0].fill_(math.nan)
    states[-1][1].fill_(-math.inf)
    out, lse = pyflash.merge_states(states)
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    expected = expect(q, k, v)
    expected.check(out[None] if packed else out, lse[None] if packed else lse)


def test_merge_takes_two_states_and_strides_of_any_kind():
    a, b = torch.randn(2, 6, 3, 8).unbind(0)
    lse_a, lse_b = torch.randn(2, 3, 6).unbind(0)
    expected = pyflash.merge_states([(a, lse_a), (b, lse_b)])
    strided = lse_b.t().contiguous().t()
    into = torch.empty(6, 3, 16)[..., ::2]
    out, lse = pyflash.merge_states(a, lse_a, b.transpose(0, 1).contiguous().transpose(0, 1),
                                    strided, out=into)  # fmt: skip
    assert out is into
    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])
    weights = torch.softmax(torch.stack([lse_a, lse_b]), 0).transpose(1, 2)[..., None]
    torch.testing.assert_close(out, weights[0] * a + weights[1] * b)


def heads_first(x):
    return x.transpose(-2, -3).contiguous().transpose(-2, -3)


# Rows of outs, and whether they are read 16 bytes at a time.
LAYOUTS_OF_STATES = {
    "dense": (lambda x: x, True),
    "heads first": (heads_first, True),
    "one for all heads": (lambda x: x[..., :1, :].expand(x.shape), True),
    "not aligned": (not_aligned, False),
    "between others": (between_others, False),
    "columns first": (lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2), False),
}


@pytest.mark.parametrize("layout", LAYOUTS_OF_STATES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7, 3, 16), (2, 5, 3, 24), (0, 3, 8)])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 9])
def test_states_are_merged_as_by_torchs_ops(n, shape, dtype, layout, monkeypatch):
    """Parts without keys among them, which may hold anything; some rows have no other."""
    lay_out, has_vectors = LAYOUTS_OF_STATES[layout]
    of_lse = (*shape[:-3], shape[-2], shape[-3])
    outs = [lay_out(torch.randn(shape).to(dtype)) for _ in range(n)]
    lses = [10 * torch.randn(of_lse) for _ in range(n)]
    for i, (out, lse) in enumerate(zip(outs, lses, strict=True)):
        lse[..., i % 3 :: 3] = -torch.inf
        lse[..., -1:] = -torch.inf
        if layout != "one for all heads":
            out[..., i % 3 :: 3, :, :] = torch.nan
            out[..., -1:, :, :] = torch.nan
    lses = [x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in lses[:1]] + lses[1:]
    into = torch.empty(shape, dtype=dtype), torch.empty(of_lse)
    is_by_op = 0 in shape or (has_vectors and dtype != torch.float32 and n <= 8)
    assert torch.ops.pyflash.merge_states(outs, lses, *into) == is_by_op
    merged = pyflash.merge_states(list(zip(outs, lses, strict=True)))
    if is_by_op and TORCH_API == "private":
        assert all(map(torch.equal, merged, into))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    expected = pyflash.merge_states(list(zip(outs, lses, strict=True)))
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(merged[0], expected[0], atol=unit / 8, rtol=unit)
    torch.testing.assert_close(merged[1], expected[1], atol=1e-5, rtol=1e-6)


def test_states_are_merged_into_rows_of_any_strides():
    outs, lses = torch.randn(3, 4, 2, 16).half(), torch.randn(3, 2, 4)
    into, lse = torch.full((4, 2, 48), MARK).half(), torch.full((4, 6), MARK)
    assert torch.ops.pyflash.merge_states(list(outs), list(lses), into[..., 16:32], lse.t()[2:4])
    expected = pyflash.merge_states(list(zip(outs, lses, strict=True)))
    assert torch.equal(into[..., 16:32], expected[0])
    assert torch.equal(lse.t()[2:4], expected[1])
    assert (into != MARK).sum() == expected[0].numel()
    assert (lse != MARK).sum() == expected[1].numel()


def test_states_are_merged_into_one_of_them():
    outs, lses = list(torch.randn(2, 4, 2, 16).half()), list(torch.randn(2, 2, 4))
    assert not torch.ops.pyflash.merge_states(outs, lses, outs[1], torch.empty(2, 4))
    pairs = list(zip(outs, lses, strict=True))
    expected, _ = pyflash.merge_states(pairs)
    merged, _ = pyflash.merge_states(pairs, out=outs[1])
    assert merged is outs[1]
    torch.testing.assert_close(merged, expected, atol=1e-3, rtol=1e-3)


def test_merged_states_have_gradients_of_every_kind():
    outs, lses = torch.randn(2, 4, 2, 8).half(), torch.randn(2, 2, 4)

    def merged(lse):
        return pyflash.merge_states(outs[0], lse, outs[1], lses[1])[0].float().sum()

    step = torch.randn(2, 4)
    by_hand = lses[0].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(merged(by_hand), by_hand)
    _, forward = torch.func.jvp(merged, (lses[0],), (step,))
    torch.testing.assert_close(torch.func.grad(merged)(lses[0]), gradient)
    torch.testing.assert_close(forward, (gradient * step).sum(), atol=1e-2, rtol=1e-2)
    both = torch.stack([lses[0], lses[1]])
    torch.testing.assert_close(
        torch.func.vmap(merged)(both), torch.stack([merged(x) for x in both]), atol=1e-2, rtol=1e-2
    )


def test_merged_empty_states_are_empty():
    zeros, lse = torch.zeros(6, 3, 8), torch.full((3, 6), -math.inf)
    out, merged = pyflash.merge_states(zeros, lse, zeros, lse)
    assert torch.equal(out, zeros)
    assert torch.equal(merged, lse)


@pytest.mark.parametrize("magnitude", [1e-30, 1.0, 1e4, 1e30])
def test_merged_lses_of_any_magnitude(magnitude):
    out = torch.ones(6, 3, 8)
    lse = torch.full((3, 6), magnitude)
    for of_both in (lse, -lse):
        merged, _ = pyflash.merge_states(out, of_both, 3 * out, of_both)
        assert torch.equal(merged, 2 * out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([],), "merge_states got 0 tensors: expected out_a, lse_a, out_b and lse_b, or a list"),
        ((torch.ones(2, 3, 8), torch.ones(3, 2)), "merge_states got 2 tensors"),
        (([(torch.ones(2, 3, 8), torch.ones(2, 3))],), r"lse 0 has shape \(2, 3\): expected \(3"),
        (([(torch.ones(2, 3), torch.ones(3, 2))],), r"out 0 has shape \(2, 3\): expected that of"),
        (([(torch.ones(2, 3, 8), torch.ones(3, 2).long())],), "lse 0 is int64: expected floats"),
    ],
)  # fmt: skip
def test_wrong_states_are_refused(arguments, said):
    with pytest.raises(ValueError, match=f"^pyflash: {said}"):
        pyflash.merge_states(*arguments)


def _append_to(x: torch.Tensor) -> None:
    k, v = rows_of(2)
    pyflash.append_kv(k, v, x.view(2, 4, 2, 8), torch.zeros(2, 4, 2, 8).half(), int32(0, 5))


def _append_to_bytes(x: torch.Tensor) -> None:
    k, v = rows_of(2)
    scale = torch.ones(())
    cache = x.view(torch.float8_e4m3fn).view(4, 4, 2, 8)
    other = torch.zeros_like(cache)
    pyflash.append_kv(k, v, cache, other, int32(0, 5), k_scale=scale, v_scale=scale)


def _merge_into(x: torch.Tensor) -> None:
    state = torch.randn(1, 8, 2, 8).half(), torch.randn(1, 2, 8)
    pyflash.merge_states(*state, *state, out=x.view(1, 8, 2, 8))


def _attend_into(x: torch.Tensor) -> None:
    q, cache = torch.randn(8, 1, 2, 8).half(), torch.randn(2, 4, 2, 8).half()
    pyflash.attention_paged(
        q, cache, cache, int32(*[0] * 8).view(8, 1), int32(*[3] * 8), out=x.view(q.shape)
    )


@pytest.mark.parametrize("write", [_append_to, _append_to_bytes, _merge_into, _attend_into])
def test_what_is_written_is_known_to_be_written(write):
    """A gradient that needs what was there is refused, as behind torch's own operations in place;
    a tensor of inference_mode has no versions."""
    x, factor = torch.randn(128).half(), torch.ones((), dtype=torch.half, requires_grad=True)
    product = x * factor
    write(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    with torch.inference_mode():
        write(torch.randn(128).half())
