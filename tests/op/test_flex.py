"""`pyflash.flex_attention` on the CPU beside PyTorch's own in float32."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

import pyflash
from pyflash.op.flex_call import listed
from pyflash.variant import trace
from pyflash.variant.walk import postorder

SLOPES = torch.tensor([0.5, 0.25, 0.125, 1.0])
DOCUMENTS = torch.arange(200) // 37
TABLE = torch.randn(200, 260, generator=torch.Generator().manual_seed(0))


def causal(b, h, q, k):
    return q >= k


def documents(b, h, q, k):
    return DOCUMENTS[q] == DOCUMENTS[k.clamp(max=199)]


def of_heads(b, h, q, k):
    return (k % (h + 2) == 0) | (q == k) | (b == 1)


def alibi(s, b, h, q, k):
    return s + SLOPES[h] * (k - q)


def capped(s, b, h, q, k):
    return 5.0 * torch.tanh(s / 5.0)


def biased(s, b, h, q, k):
    return s + TABLE[q, k]


def hides(s, b, h, q, k):
    return torch.where(q < 150, s, -float("inf"))


def inputs(heads_kv: int = 4, seqlen_q: int = 200, seqlen_k: int = 260) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    sizes = ((4, seqlen_q), (heads_kv, seqlen_k), (heads_kv, seqlen_k))
    return [torch.randn(2, *size, 32, generator=generator).half() for size in sizes]


def check(found: tuple[Tensor, Tensor], given: list[Tensor], **options: object) -> None:
    wide = [x.detach().float() for x in given]
    out, lse = torch_flex.flex_attention(*wide, return_lse=True, **options)
    torch.testing.assert_close(found[0].float(), out, rtol=4e-3, atol=4e-3)
    torch.testing.assert_close(found[1], lse, rtol=1e-3, atol=1e-3)


MASKS = [None, causal, documents, of_heads]
SCORES = [None, alibi, capped, biased, hides]


@pytest.mark.parametrize("heads_kv", [4, 2])
@pytest.mark.parametrize(
    ("mask", "score"),
    list(product(MASKS, SCORES)),
    ids=lambda function: getattr(function, "__name__", "none"),
)
def test_it_is_torchs(mask, score, heads_kv):
    given = inputs(heads_kv)
    options = {"score_mod": score, "enable_gqa": heads_kv != 4}
    if mask is not None:
        options["block_mask"] = create_block_mask(mask, 2, 4, 200, 260, "cpu")
    check(pyflash.flex_attention(*given, return_lse=True, **options), given, **options)


@pytest.mark.parametrize("block", [128, 64, (64, 128)])
@pytest.mark.parametrize("extents", [(None, None), (2, None), (None, 4)])
def test_block_masks_of_any_blocks_and_extents(block, extents):
    given = inputs()
    mask = create_block_mask(causal, *extents, 200, 260, "cpu", BLOCK_SIZE=block)
    check(pyflash.flex_attention(*given, block_mask=mask, return_lse=True), given, block_mask=mask)


@pytest.mark.parametrize("extents", [(None, None), (2, None), (None, 4), (2, 4)])
def test_lists_that_batches_or_heads_share_do_not_read_them(extents):
    """So that kernels make lists, and bits of masks, for all of them at once."""
    mask = create_block_mask(lambda b, h, q, k: q >= k, *extents, 200, 260, "cpu")
    lists = [getattr(mask, name) for name in ("kv_num_blocks", "full_kv_num_blocks")]
    tables = [torch.ones(*x.shape[:2], 2, 3, dtype=torch.bool) for x in lists]
    made = listed(trace(None, mask.mask_mod), (*tables, (128, 128)))
    nodes = [node for node in postorder(made.variant.mask) if node.op == "index"]
    read = {node.data for node in nodes} & {"b", "h"}
    assert read == {name for name, extent in zip("bh", extents, strict=True) if extent}


def test_the_lists_of_a_block_mask_count_where_its_function_is_trivial():
    """Row 0 of blocks lists block 1 alone, row 1 blocks 2 and 0, as full and as partial."""
    counts = torch.tensor([[[1, 2]]], dtype=torch.int32)
    indices = torch.tensor([[[[1, 0, 2], [2, 0, 1]]]], dtype=torch.int32)
    given = inputs(seqlen_q=256, seqlen_k=384)
    shown = torch.zeros(256, 384, dtype=torch.bool)
    shown[:128, 128:256] = True
    shown[128:, :128] = shown[128:, 256:] = True
    q, k, v = (x.float() for x in given)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=shown)
    for mask in (
        BlockMask.from_kv_blocks(counts, indices, seq_lengths=(256, 384)),
        BlockMask.from_kv_blocks(
            counts * 0, indices, counts, indices, mask_mod=causal, seq_lengths=(256, 384)
        ),
    ):
        out = pyflash.flex_attention(*given, block_mask=mask)
        torch.testing.assert_close(out.float(), expected, rtol=4e-3, atol=4e-3)


def test_a_mask_that_is_kept_is_made_again_where_it_changed():
    """Its lists are changed in place, and replaced; another function of scores, other lengths."""
    given = inputs(4)
    mask = create_block_mask(causal, None, None, 200, 260, "cpu", BLOCK_SIZE=64)
    without = [pyflash.flex_attention(*given, block_mask=mask) for _ in range(2)]
    assert torch.equal(*without)
    scored = pyflash.flex_attention(*given, score_mod=alibi, block_mask=mask)
    assert not torch.equal(scored, without[0])
    assert torch.equal(pyflash.flex_attention(*given, block_mask=mask), without[0])
    with pytest.raises(ValueError, match="for 200 rows of query"):
        pyflash.flex_attention(*(x[:, :, :128] for x in given), block_mask=mask)
    counts = mask.kv_num_blocks
    mask.kv_num_blocks = torch.zeros_like(counts)  # what is cut
    fewer = pyflash.flex_attention(*given, block_mask=mask)
    assert not torch.equal(fewer, without[0])
    mask.full_kv_num_blocks.zero_()
    nothing = pyflash.flex_attention(*given, block_mask=mask)
    assert (nothing == 0).all()


def test_the_output_lies_as_the_query():
    given = inputs()
    assert pyflash.flex_attention(*given).stride() == given[0].stride()
    rows_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given]
    out = pyflash.flex_attention(*rows_first, score_mod=alibi)
    assert out.stride() == rows_first[0].stride()


def test_scale_and_aux():
    given = inputs()
    aux = torch_flex.AuxRequest(lse=True)
    out, found = pyflash.flex_attention(*given, scale=0.3, score_mod=capped, return_aux=aux)
    check((out, found.lse), given, scale=0.3, score_mod=capped)
    assert found.max_scores is None
    with pytest.raises(ValueError, match="max_scores"):
        pyflash.flex_attention(*given, return_aux=torch_flex.AuxRequest(max_scores=True))


def test_gradients_are_torchs():
    slopes = SLOPES.clone().requires_grad_()

    def score(s, b, h, q, k):
        return s + slopes[h] * (k - q)

    given = [x.requires_grad_() for x in inputs()]
    mask = create_block_mask(causal, None, None, 200, 260, "cpu")
    out = pyflash.flex_attention(*given, score_mod=score, block_mask=mask)
    grad_out = torch.randn(out.shape).half()
    found = torch.autograd.grad(out, [*given, slopes], grad_out)
    wide = [x.detach().float().requires_grad_() for x in given]
    q, k, v = wide
    i, j = torch.arange(200)[:, None], torch.arange(260)
    scores = q @ k.transpose(-1, -2) / math.sqrt(32) + slopes.view(4, 1, 1) * (j - i)
    expected = torch.softmax(scores.masked_fill(j > i, -math.inf), -1) @ v
    for one, other in zip(
        found, torch.autograd.grad(expected, [*wide, slopes], grad_out.float()), strict=True
    ):
        torch.testing.assert_close(one.float(), other, rtol=4e-3, atol=4e-3)


WRONG = [
    ({"kernel_options": {"BLOCK_M": 64}}, "kernel_options has 'BLOCK_M': expected config"),
    ({"block_mask": create_block_mask(causal, None, None, 128, 260, "cpu")}, "for 128 rows of que"),
    ({"block_mask": create_block_mask(causal, None, None, 200, 512, "cpu")}, "for 512 rows of key"),
    ({"block_mask": create_block_mask(causal, 3, None, 200, 260, "cpu")}, "has 3 batches"),
]


@pytest.mark.parametrize(("options", "words"), WRONG, ids=range(len(WRONG)))
def test_what_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        pyflash.flex_attention(*inputs(), **options)


def test_inputs_that_are_refused():
    q, k, v = inputs()
    with pytest.raises(ValueError, match="enable_gqa=True"):
        pyflash.flex_attention(q, k[:, :2], v[:, :2])
    with pytest.raises(ValueError, match="expected 4 dimensions"):
        pyflash.flex_attention(q[0], k, v)
    with pytest.raises(ValueError, match="float32: expected float16"):
        pyflash.flex_attention(q.float(), k.float(), v.float())
    with pytest.raises((TypeError, ValueError), match="where"):
        pyflash.flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s if i > j else -s)
