"""FlexAttention's documented examples and attention-gym's functions on a GPU, ten to a kernel,
beside their formulas in float64."""

from __future__ import annotations

import pytest
import torch
from support.flex_examples import EXAMPLES, expected, groups, inputs, of_group

import pyflash

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("names", groups(), ids=lambda names: names[0])
def test_they_are_their_formulas(names):
    given = inputs()
    rows_first = [x.transpose(1, 2).contiguous().cuda() for x in given]
    variant, values = of_group(names)
    values = {n: x.cuda() if isinstance(x, torch.Tensor) else x for n, x in values.items()}
    for which, name in enumerate(names):
        out, lse = pyflash.attention(
            *rows_first,
            variant=variant, tensors=values | {"which": which}, return_lse=True, compile=True,
        )  # fmt: skip
        of_pairs, of_rows = expected(EXAMPLES[name], *given)
        torch.testing.assert_close(
            lse.cpu().double(), of_rows, rtol=1e-4, atol=1e-3, msg=name.__add__
        )
        torch.testing.assert_close(
            out.transpose(1, 2).cpu().double(), of_pairs, rtol=4e-3, atol=4e-3, msg=name.__add__
        )
