"""Gradients of the SM80 family where several CTAs divide the query heads of a group and add dK and
dV up in memory."""

from typing import NamedTuple

import pytest
import torch
from support.gpu_kernels import sm80_backward_configs, with_workspace

from pyflash.op.backward import kernels

pytestmark = pytest.mark.gpu

KIB, MIB = 1 << 10, 1 << 20


class Sizes(NamedTuple):
    batch: int
    seqlen_q: int
    seqlen_k: int
    heads: int
    heads_kv: int
    lengths: tuple[int, ...] = ()  # of packed sequences


SIZES = {
    "groups_of_8": Sizes(4, 1000, 1000, 16, 2),
    "one_head_of_keys": Sizes(1, 700, 1300, 12, 1),
    "pairs": Sizes(2, 300, 300, 8, 4),
    "many_tiles": Sizes(40, 400, 400, 24, 6),
    "packed": Sizes(1, 0, 0, 16, 2, (700, 3, 1500, 0, 900, 1000)),
}
OPTIONS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_left": 150, "window_right": 0},
    "softcap": {"causal": True, "softcap": 20.0},
}


def make(sizes: Sizes, d_head: int, options):
    """What a backward takes, and its packing."""
    torch.manual_seed(sum(sizes[:5]))
    rows_q, rows_k = (sizes.batch, sizes.seqlen_q), (sizes.batch, sizes.seqlen_k)
    packing, forward = (), torch.ops.pyflash.fwd
    if sizes.lengths:
        rows_q = rows_k = (sum(sizes.lengths),)
        starts = torch.tensor((0, *sizes.lengths), device="cuda").cumsum(0).to(torch.int32)
        packing = (starts, starts, max(sizes.lengths), max(sizes.lengths))
        forward = torch.ops.pyflash.fwd_varlen

    def tensor(rows, heads):
        return torch.randn(*rows, heads, d_head, device="cuda", dtype=torch.bfloat16)

    q, k, v = (
        tensor(rows, heads)
        for rows, heads in (
            (rows_q, sizes.heads),
            (rows_k, sizes.heads_kv),
            (rows_k, sizes.heads_kv),
        )
    )
    out, lse = forward(q, k, v, *packing, **options)
    return (torch.randn_like(q), out, lse, q, k, v), packing


@pytest.mark.parametrize("d_head", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", SIZES)
def test_as_summed_in_registers(name, options, d_head):
    """Deterministic kernels go through all heads of a group in a CTA. The others run several times,
    since CTAs that add in another order may find a fault that one order hides."""
    for config in sm80_backward_configs(d_head):
        inputs, packing = make(SIZES[name], d_head, OPTIONS[options])
        call = {"packing": packing, "config": config, **OPTIONS[options]}
        torch.use_deterministic_algorithms(True)
        try:
            expected = kernels.bwd(*inputs, **call)
        finally:
            torch.use_deterministic_algorithms(False)
        torch.full((64 * MIB,), torch.nan, device="cuda")  # what the workspace holds before
        for _ in range(5):
            for one, other in zip(kernels.bwd(*inputs, **call), expected, strict=True):
                assert (one.float() - other.float()).norm() <= 5e-3 * other.float().norm(), config


@pytest.mark.parametrize("deterministic", [False, True])
def test_bytes_of_the_workspace(deterministic):
    sizes, d_head = SIZES["groups_of_8"], 128
    config = sm80_backward_configs(d_head)[0]
    inputs, _ = make(sizes, d_head, {"causal": True})
    torch.use_deterministic_algorithms(deterministic)
    try:
        _, workspace = with_workspace(lambda: kernels.bwd(*inputs, config=config, causal=True))
    finally:
        torch.use_deterministic_algorithms(False)
    padded = 1024
    of_queries = sizes.batch * sizes.heads * padded * (8 + 4 * d_head)
    of_keys = 0 if deterministic else sizes.batch * sizes.heads_kv * padded * 8 * d_head
    assert of_queries + of_keys <= workspace + 4 * KIB
    assert workspace <= of_queries + of_keys + 2 * MIB
