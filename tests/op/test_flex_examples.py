"""FlexAttention's documented examples and attention-gym's functions beside their formulas in
float64, a pair at a time."""

from __future__ import annotations

import pytest
import torch
from support.flex_examples import BATCH, EXAMPLES, EXTENTS, HEADS, LENGTH, expected, inputs
from torch.nn.attention.flex_attention import create_block_mask

import pyflash
from pyflash.variant import trace
from pyflash.variant.tracing import TraceError


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_its_formula(name):
    """By the lists of a block mask, too, which PyTorch makes of the same function."""
    example, given = EXAMPLES[name], inputs()
    mask = example.mask_mod and create_block_mask(
        example.mask_mod, BATCH, HEADS, LENGTH, LENGTH, "cpu", BLOCK_SIZE=32
    )
    out, lse = pyflash.flex_attention(
        *given, score_mod=example.score_mod, block_mask=mask, return_lse=True
    )
    of_pairs, of_rows = expected(example, *given)
    torch.testing.assert_close(lse.double(), of_rows, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out.double(), of_pairs, rtol=4e-3, atol=2e-3)


def test_no_formula_is_another_ones():
    """So that one that is not looked at cannot pass for it."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(EXTENTS, generator=generator, dtype=torch.float64)
    made = {}
    for name, example in EXAMPLES.items():
        if name == "causal_score":  # the same written as a score
            continue
        changed, shown = example.of_pairs(scores)
        for other, values in made.items():
            assert not torch.equal(changed.masked_fill(~shown, 0), values), (name, other)
        made[name] = changed.masked_fill(~shown, 0)


def test_a_product_of_vectors_is_refused_in_words():
    """As the score of latent attention's positions, which is that of a longer head."""
    of_queries, of_keys = torch.randn(2, BATCH, HEADS, LENGTH, 4)

    def rope(s, b, h, q, k):
        return s + torch.dot(of_queries[b, h, q], of_keys[b, h, k])

    with pytest.raises(TraceError, match="dot has no form here"):
        trace(rope, None)
