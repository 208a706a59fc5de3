"""The fake implementations beside the ops: the same shapes, strides, dtypes, devices, refusals."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.refusals import int32
from torch._subclasses.fake_tensor import FakeTensorMode

OPS = torch.ops.pyflash
LAYOUTS = ("contiguous", "transposed", "of one tensor", "every other head")


def laid_out(layout: str, *shape: int) -> torch.Tensor:
    """(..., rows, heads, d_head), with other strides than those of a contiguous tensor."""
    *batch, rows, heads, d_head = shape
    if layout == "transposed":
        return torch.randn(*batch, heads, rows, d_head).half().transpose(-3, -2)
    if layout == "of one tensor":
        return torch.randn(*batch, rows, 3, heads, d_head).half().select(-3, 1)
    if layout == "every other head":
        return torch.randn(*batch, rows, 2 * heads, d_head).half()[..., ::2, :]
    return torch.randn(*shape).half()


def faked(op, *inputs):
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in inputs]
    with mode:
        return op(*fakes)


def on_meta(op, *inputs):
    return op(*(x.to("meta") if isinstance(x, torch.Tensor) else x for x in inputs))


def properties(x: torch.Tensor) -> tuple[object, ...]:
    return x.shape, x.stride(), x.storage_offset(), x.dtype, x.layout, x.is_contiguous()


def check(op, *inputs) -> None:
    real = op(*inputs)
    for fake, device in ((faked(op, *inputs), "cpu"), (on_meta(op, *inputs), "meta")):
        assert [x.device.type for x in fake] == [device] * 2
        assert list(map(properties, fake)) == list(map(properties, real)), inputs[0].shape


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_padded(layout, dtype):
    for batch, seqlen_q, seqlen_k, group, heads_kv in itertools.product(
        (0, 1, 3), (0, 1, 5), (0, 1, 7), (1, 4), (1, 2)
    ):
        q = laid_out(layout, batch, seqlen_q, group * heads_kv, 64).to(dtype)
        k, v = (laid_out(layout, batch, seqlen_k, heads_kv, 64).to(dtype) for _ in range(2))
        check(OPS.fwd, q, k, v)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_packed(layout, dtype):
    lengths = ((), (0,), (1,), (5,), (2, 0, 5))
    for of_q, of_k, group, heads_kv in itertools.product(lengths, lengths, (1, 4), (1, 2)):
        if len(of_q) != len(of_k):
            continue
        q = laid_out(layout, sum(of_q), group * heads_kv, 64).to(dtype)
        k, v = (laid_out(layout, sum(of_k), heads_kv, 64).to(dtype) for _ in range(2))
        starts = [int32(0, *itertools.accumulate(n)) for n in (of_q, of_k)]
        longest = [max(n, default=0) for n in (of_q, of_k)]
        check(OPS.fwd_varlen, q, k, v, *starts, *longest)
