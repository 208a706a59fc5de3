"""What goes wrong with masks and score functions, by number: a test of each, here by its docstring
`Pitfall of variants N: ...`, or the one elsewhere that holds it."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

import pyflash
from pyflash.op.variants.reference import expect
from pyflash.variant import bind, parse, trace

TESTS = Path(__file__).parents[1]
ELSEWHERE = {
    4: "op/test_flex.py::test_the_lists_of_a_block_mask_count_where_its_function_is_trivial",
    7: "op/test_flex.py::test_what_is_refused",
    9: "op/test_flex_compile.py::test_captured_tensors_are_inputs_of_the_graph",
    13: "op/test_variants.py::test_gradients_are_those_of_the_formula",
    17: "op/test_variants.py::test_gradients_are_those_of_the_formula",
    19: "gpu/test_gpu_variants.py::test_it_is_its_formula",
    20: "variant/test_tracing.py::test_what_is_refused_is_said_with_its_line",
    23: "op/test_variants.py::test_what_is_refused",
    25: "op/test_flex_compile.py::test_it_exports",
    27: "variant/test_tracing.py::test_what_is_refused_is_said_with_its_line",
    28: "op/test_variants.py::test_it_is_its_reference",
    29: "op/test_flex.py::test_block_masks_of_any_blocks_and_extents",
    30: "variant/test_tracing.py::test_what_is_refused_is_said_with_its_line",
}


def docstrings_of(path: Path) -> dict[str, str]:
    """Docstrings by name."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return {n.name: ast.get_docstring(n) or "" for n in nodes if isinstance(n, ast.FunctionDef)}


def test_each_pitfall_has_a_test():
    words = "\n".join(docstrings_of(Path(__file__)).values())
    here = set(map(int, re.findall(r"^Pitfall of variants (\d+):", words, re.MULTILINE)))
    assert sorted(here | set(ELSEWHERE)) == list(range(1, 35))
    assert not here & set(ELSEWHERE)
    for name in ELSEWHERE.values():
        path, _, test = name.partition("::")
        assert test in docstrings_of(TESTS / path), name


def make(q_len: int, k_len: int, heads: int = 2, heads_kv: int | None = None) -> list[Tensor]:
    generator = torch.Generator().manual_seed(q_len)
    sizes = ((q_len, heads), (k_len, heads_kv or heads), (k_len, heads_kv or heads))
    return [torch.randn(1, *size, 16, generator=generator).half() for size in sizes]


def check(inputs: list[Tensor], text: str, tensors: dict | None = None, **options) -> Tensor:
    found = pyflash.attention(*inputs, variant=text, tensors=tensors, return_lse=True, **options)
    expect(*inputs, variant=text, tensors=tensors, **options).check(*found)
    return found[0]


def flex(mask: BlockMask | None, inputs: list[Tensor], **options):
    heads_first = (x.transpose(1, 2) for x in inputs)
    return pyflash.flex_attention(*heads_first, block_mask=mask, **options)


def test_tables_that_hidden_pairs_read_outside():
    """Pitfall of variants 1: the table ends with what the mask shows."""
    check(make(20, 24), "a(t: f32[1]): s + t[k] where k < 8", {"t": torch.randn(8)})
    check(make(20, 24), "a(t: f32[1]): s + t[k - 10] where k >= 20", {"t": torch.randn(14)})


def test_tables_beyond_2_to_the_31():
    """Pitfall of variants 2: the offset of row 3 does not fit 32 bits."""
    stride = 2**30
    table = torch.empty(3 * stride + 24, dtype=torch.bool).as_strided((4, 24), (stride, 1))
    small = torch.arange(96).view(4, 24) % 5 < torch.arange(1, 5)[:, None]
    table.copy_(small)
    text = "a(t: bool[2]): s where t[q % 4, k]"
    found = pyflash.attention(*make(20, 24), variant=text, tensors={"t": table})
    assert torch.equal(found, check(make(20, 24), text, {"t": small}))


def test_loads_at_loaded_indices():
    """Pitfall of variants 3: a load whose index is loaded has another value in each column."""
    values = {"t": torch.randn(7), "i": torch.randint(0, 7, (24,), dtype=torch.int32)}
    check(make(20, 24), "a(t: f32[1], i: i32[1]): s + t[i[k]]", values)


def test_full_and_partial_blocks():
    """Pitfall of variants 5: the same mask by full and by partial blocks gives the same bits."""

    def shown(b, h, i, j):
        return i // 32 >= j // 32

    inputs = make(96, 96)
    whole = create_block_mask(shown, None, None, 96, 96, "cpu", BLOCK_SIZE=32)
    assert whole.full_kv_num_blocks.sum() == 6
    partial = BlockMask.from_kv_blocks(
        whole.full_kv_num_blocks, whole.full_kv_indices, BLOCK_SIZE=32, mask_mod=shown
    )
    assert torch.equal(flex(whole, inputs), flex(partial, inputs))


def test_cropped_masks():
    """Pitfall of variants 6: a full block that ends behind the last key."""
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 256, 256, "cpu")
    out = flex(mask, make(200, 200)).transpose(1, 2)
    assert torch.equal(out, pyflash.attention(*make(200, 200), variant="a: s where k <= q"))


def test_lengths_are_of_the_call():
    """Pitfall of variants 8: a variant that names lengths runs at others."""
    for q_len, k_len in ((20, 24), (33, 40), (24, 20)):
        check(make(q_len, k_len), "a: s * f32(k_len) / 32.0 where k <= q + k_len - q_len")


def test_masks_take_memory_for_blocks_alone():
    """Pitfall of variants 10: 96k keys by 96k queries, of which a few blocks are listed."""
    length, blocks = 98304, 98304 // 128
    counts = torch.ones(1, 1, blocks, dtype=torch.int32)
    mask = BlockMask.from_kv_blocks(
        counts, torch.zeros(1, 1, blocks, 1, dtype=torch.int32), seq_lengths=(length, length)
    )
    from pyflash.op.flex import _blocks_of

    q = torch.empty(1, 4, length, 8, device="meta")
    present, full, _ = _blocks_of(mask, q, q)
    assert present.shape == full.shape == (1, 1, blocks, blocks)  # all heads share them
    assert max(x.untyped_storage().nbytes() for x in (present, full)) <= blocks * (blocks + 1)
    assert present.sum() == blocks


def test_gradients_beside_infinite_biases():
    """Pitfall of variants 11: a ragged length, and a bias that overflows where the mask hides."""
    inputs = [x.requires_grad_() for x in make(37, 37)]
    i, j = torch.arange(37)[:, None], torch.arange(37)
    bias = torch.where(j > i, 1e4, 0.1).requires_grad_()
    out = pyflash.attention(
        *inputs, variant="a(t: f32[2]): s + exp(t[q, k]) where k <= q", tensors={"t": bias}
    )
    found = torch.autograd.grad(out.float().square().sum(), [*inputs, bias])
    assert all(x.isfinite().all() for x in found)
    assert (found[3][j > i] == 0).all()


def test_lse_is_natural():
    """Pitfall of variants 12: lse is a natural logarithm, and -inf of a row without a pair."""
    q, k, v = make(20, 24)
    text = "a: s * 2.0 where (k <= q) & (q != 5)"
    _, lse = pyflash.attention(q, k, v, variant=text, return_lse=True)
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) / 4 * 2
    i, j = torch.arange(20)[:, None], torch.arange(24)
    expected = scores.masked_fill(~((j <= i) & (i != 5)), -math.inf).logsumexp(-1)
    torch.testing.assert_close(lse, expected, rtol=1e-4, atol=1e-4)


def test_gradients_of_biases_that_are_broadcast():
    """Pitfall of variants 14: strides of 0, the same bits in each run."""
    inputs, base = make(20, 24), torch.randn(1, 24).requires_grad_()

    def gradient() -> Tensor:
        values = {"t": base.expand(20, 24)}
        out = pyflash.attention(*inputs, variant="a(t: f32[2]): s + t[q, k]", tensors=values)
        return torch.autograd.grad(out.float().square().sum(), base)[0]

    found = gradient()
    assert torch.equal(found, gradient())
    q, k, v = (x.float() for x in inputs)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 4 + base
    out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
    expected = torch.autograd.grad(out.square().sum(), base)[0]
    torch.testing.assert_close(found, expected, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize(("heads", "heads_kv"), [(6, 2), (5, 1), (4, 2)])
def test_heads_that_share_keys(heads, heads_kv):
    """Pitfall of variants 15: h is the query head, in groups of 3, of 5, and masks by head."""
    text = "a(t: f32[1]): s + t[h] * (k - q) where k % (h + 2) != 0"
    check(make(20, 24, heads, heads_kv), text, {"t": torch.rand(heads)})


def test_divisors_of_packed_sequences():
    """Pitfall of variants 16: a divisor made of the length is that of each sequence."""
    starts = torch.tensor([0, 20, 31, 60], dtype=torch.int32)
    inputs = [x[0] for x in make(60, 60)]
    text = "a: s where q // (1 + k_len // 3) >= k // (1 + k_len // 3)"
    call = (*inputs, starts, starts)
    found = pyflash.attention_varlen(*call, 29, 29, variant=text, return_lse=True)
    expect(*call, variant=text).check(*found)


def test_rows_of_blocks_without_a_block():
    """Pitfall of variants 18: queries of which no block is listed have out 0 and lse -inf."""
    counts = torch.tensor([[[2, 0, 1]]], dtype=torch.int32)
    indices = torch.tensor([[[[0, 1, 2], [-1, -1, -1], [2, 0, 1]]]], dtype=torch.int32)
    mask = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=32, seq_lengths=(96, 96))
    out, lse = flex(mask, make(96, 96), return_lse=True)
    assert (out[:, :, 32:64] == 0).all()
    assert (lse[..., 32:64] == -math.inf).all()
    assert lse[..., :32].isfinite().all()
    assert lse[..., 64:].isfinite().all()


def test_caps_beside_masks():
    """Pitfall of variants 21: what a mask hides has no part, whatever the cap makes of it."""
    q, k, v = make(40, 40)
    text = "a: 2.0 * tanh(s) where k < 30"
    expected = pyflash.attention(q, k[:, :30], v[:, :30], variant=text, softcap=3.0)
    k[:, 30:], v[:, 30:] = math.nan, math.nan
    found = pyflash.attention(q, k, v, variant=text, softcap=3.0)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


def test_slopes_of_a_part_of_the_heads():
    """Pitfall of variants 22: a rank passes the slopes of its own heads."""
    q, k, v = make(20, 24, 4)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    text = "a(t: f32[1]): s + t[h] * (k - q) where k <= q"
    whole = pyflash.attention(q, k, v, variant=text, tensors={"t": slopes})
    own = [x[:, :, 2:] for x in (q, k, v)]
    part = pyflash.attention(*own, variant=text, tensors={"t": slopes[2:]})
    assert torch.equal(whole[:, :, 2:], part)


def test_what_a_kernel_is_known_by():
    """Pitfall of variants 24: dtype and rank of a parameter; strides are of the call."""
    kinds = ("f32[1]", "f16[1]", "bf16[1]")
    texts = {parse(f"a(t: {kind}): s + t[k]").portable for kind in kinds}
    assert len(texts) == 3
    table = torch.randn(24, 3)
    text = "a(t: f32[1]): s + t[k]"
    strided = pyflash.attention(*make(20, 24), variant=text, tensors={"t": table[:, 1]})
    dense = pyflash.attention(*make(20, 24), variant=text, tensors={"t": table[:, 1].contiguous()})
    assert torch.equal(strided, dense)


def test_one_query_on_many_keys():
    """Pitfall of variants 26: 70,000 keys, of which a query sees the last ones."""
    q, k, v = make(1, 70000, 1)
    text = "a(n: i32): s where (k <= q + k_len - q_len) & (k_len - n <= k)"
    found = pyflash.attention(q, k, v, variant=text, tensors={"n": 100})
    expected = pyflash.attention(q, k[:, -100:], v[:, -100:])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


def test_rows_that_begin_hidden():
    """Pitfall of variants 31: blocks of -inf before finite ones, rows of -inf, NaN behind k_len."""
    inputs = make(40, 200)
    check(inputs, "a: s where k >= 150")
    check(inputs, "a: where((k >= 150) & (q > 9), s, -inf)")
    longer = [torch.cat([x, torch.full_like(x, math.nan)], 1)[:, : x.shape[1]] for x in inputs]
    text = "a: s where k >= 150"
    found, expected = (pyflash.attention(*x, variant=text) for x in (longer, inputs))
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("text", "tensors"),
    [
        ("a: s where (q - k) // 3 % 2 == 0", {}),
        ("a: s + f32((q - k) % 5) where (q - k) // 7 >= -2", {}),
        ("a(t: bool[1]): s where t[k]", {"t": torch.arange(24) % 3 != 0}),
        ("a(i: i64[1]): s where i[q] == i[k]", {"i": 5 + 2**32 * (torch.arange(24) // 6)}),
    ],
)
def test_integers(text, tensors):
    """Pitfall of variants 32: floors of negative numbers, tables of bools, ids beyond 2^31."""
    check(make(20, 24), text, tensors)


@pytest.mark.parametrize("lengths", [(30, 12), (12, 30), (20, 0)])
@pytest.mark.parametrize("text", ["a: s where k <= q", "a: s where k <= q + k_len - q_len"])
def test_alignment(text, lengths):
    """Pitfall of variants 33: more queries than keys, no keys, from the first and from the last."""
    check(make(*lengths), text)


def test_what_variants_share():
    """Pitfall of variants 34: another parameter is the same variant, another structure is not."""

    def of_window(n: int):
        return trace(None, lambda b, h, i, j: i - j < n)

    near, far = of_window(5), of_window(900)
    assert near.variant.portable == far.variant.portable
    assert list(near.values.values()) != list(far.values.values())
    texts = ["q - k < n", "q - k <= n", "k - q < n", "abs(q - k) < n"]
    assert len({parse(f"a(n: i32): s where {text}").key for text in texts}) == 4
    value = parse("a(n: i32): s where q - k < n")
    inputs = make(20, 24)
    outs = [pyflash.attention(*inputs, variant=bind(value, n=n)) for n in (2, 9)]
    assert not torch.equal(*outs)
