"""Gradients where heads have their fp32 sums of dQ in the same memory, one after another."""

from typing import NamedTuple

import pytest
import torch
from support.gpu_kernels import (
    dropout_is_built,
    forbid_borrowed,
    skip_without_kernels_for,
    with_workspace,
)

from pyflash import attention, attention_varlen

pytestmark = pytest.mark.gpu

KIB, MIB = 1 << 10, 1 << 20


class Sizes(NamedTuple):
    """More heads than have room at a time; packed sequences have sums of each head all the same."""

    batch: int
    seqlen: int
    heads: int
    heads_kv: int
    d_head: int
    lengths: tuple[int, ...] = ()  # of packed sequences, of which the batch is one


SIZES = {
    "short": Sizes(40, 200, 24, 24, 64),
    "one_block": Sizes(300, 60, 16, 16, 64),
    "d_64": Sizes(24, 1000, 16, 16, 64),
    "d_128": Sizes(8, 1000, 16, 16, 128),
    "long": Sizes(1, 8200, 16, 16, 128),
    "groups_of_4": Sizes(40, 512, 16, 4, 128),
    "groups_of_8": Sizes(70, 300, 24, 3, 128),
    "packed": Sizes(1, 0, 48, 48, 64, (700, 3, 1500, 0, 900, 1000)),
    "packed_groups": Sizes(1, 0, 48, 24, 128, (700, 3, 1500, 0, 900, 1000)),
    "d_256": Sizes(8, 600, 16, 16, 256),
}
MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_left": 700, "window_right": 0},
    "short_window": {"window_left": 100, "window_right": 0},  # long sequences are in slices
    "softcap": {"softcap": 20.0},
    "dropout": {"causal": True, "dropout_p": 0.2},
    "dropout_short_window": {"window_left": 100, "window_right": 0, "dropout_p": 0.2},
}


def make(sizes: Sizes):
    torch.manual_seed(sum(sizes[:5]))
    rows = (sum(sizes.lengths),) if sizes.lengths else (sizes.batch, sizes.seqlen)

    def tensor(heads):
        return torch.randn(
            *rows, heads, sizes.d_head, device="cuda", dtype=torch.bfloat16, requires_grad=True
        )

    q, k, v = tensor(sizes.heads), tensor(sizes.heads_kv), tensor(sizes.heads_kv)
    return (q, k, v), torch.randn_like(q)


def forward(sizes: Sizes, qkv, **options):
    if "dropout_p" in options:
        options["dropout_state"] = torch.tensor([5, 7], device="cuda")
    if not sizes.lengths:
        return attention(*qkv, **options)
    starts = torch.tensor((0, *sizes.lengths), device="cuda", dtype=torch.int32).cumsum(0)
    starts, longest = starts.to(torch.int32), max(sizes.lengths)
    return attention_varlen(*qkv, starts, starts, longest, longest, **options)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", SIZES)
def test_as_with_sums_of_each_head(monkeypatch, name, mask):
    """Deterministic kernels have memory for the sums of each head. Several calls, since a CTA that
    does not wait for another is rarely too early."""
    sizes, options = SIZES[name], MASKS[mask]
    skip_without_kernels_for(sizes.d_head)
    if "dropout_p" in options and not dropout_is_built():
        pytest.skip("the kernels with dropout are not built: pyflash build --set dropout")
    forbid_borrowed(monkeypatch)
    qkv, grad_out = make(sizes)
    expected = torch.autograd.grad(
        forward(sizes, qkv, deterministic=True, **options), qkv, grad_out
    )
    out = forward(sizes, qkv, **options)
    torch.full((256 * MIB,), torch.nan, device="cuda")  # what the workspace holds before
    for _ in range(10):
        found = torch.autograd.grad(out, qkv, grad_out, retain_graph=True)
        for one, other in zip(found, expected, strict=True):
            assert (one.float() - other.float()).norm() <= 5e-3 * other.float().norm()
            torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("name", "mask", "mib"),
    [
        ("d_64", "full", 32),
        ("d_128", "causal", 32),
        ("long", "full", 32),
        ("long", "window", 64),
        ("long", "short_window", 64),
    ],
)
def test_bytes_of_the_workspace(monkeypatch, name, mask, mib):
    sizes = SIZES[name]
    skip_without_kernels_for(sizes.d_head)
    forbid_borrowed(monkeypatch)
    qkv, grad_out = make(sizes)
    out = forward(sizes, qkv, **MASKS[mask])
    _, workspace = with_workspace(
        lambda: torch.autograd.grad(out, qkv, grad_out, retain_graph=True)
    )
    padded = -(-sizes.seqlen // 128) * 128
    numbers = 2 * 4 * sizes.batch * sizes.heads * padded
    assert workspace <= (mib + 1) * MIB + numbers + 64 * KIB
