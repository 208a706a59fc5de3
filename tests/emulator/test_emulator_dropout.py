"""Dropout on the emulated machine: values and gradients beside float64 with the mask of the
definition, of one config of each family, which has every feature."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

import torch
from support.emulated_backward import LIMITS, Shape, make_call, wrong
from support.emulated_packed import Packed, make_packed_call, wrong_packed

import pyflash
from pyflash.config import parse
from pyflash.emulator import ORDERS
from pyflash.op.reference import expect, expect_varlen

STATE = torch.tensor([2**40 + 17, 2**32 - 70])

FORWARD = {
    "sm80": "(FP16, 64, 128, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
    "+rescale_threshold",
    "sm90": "(FP16, 64, 128, 80, 2): sm90+stages_2+overlap+pingpong+rescale_threshold",
    "sm90, persistent": "(FP16, 64, 128, 80, 2): sm90+stages_2+overlap+pingpong+persistent"
    "+rescale_threshold",
}
# CTAs that run at a time, where they are persistent: each has several tiles.
RESIDENT_CTAS = 2
BACKWARD = {
    "sm80": "(BF16, 128, 64, 64, 4): sm80_bwd+stages_1",
    "sm90": "(BF16, 64, 128, 128, 2): sm90_bwd+stages_2",
}

OTHER_HEADS = (
    "(BF16, 96, 64, 128, 2): sm90_bwd+stages_4+overlap",
    "(BF16, 192, 64, 64, 2): sm90_bwd+stages_2",
    "(BF16, 256, 64, 128, 2): sm90_bwd+stages_2+dQ_by_red",
)


def dropping(p: float = 0.2, **options: Any) -> dict[str, Any]:
    return {"dropout_p": p, "dropout_state": STATE, **options}


# heads_kv of four heads, seqlen_q, seqlen_k, columns less than the config's, options
PADDED: dict[str, tuple[int, int, int, int, dict[str, Any]]] = {
    "ragged": (4, 150, 171, 0, {}),
    "causal": (2, 130, 130, 0, {"causal": True}),
    "one query": (1, 1, 200, 0, {"p": 0.5}),
    "window": (4, 150, 140, 8, {"window_left": 30, "window_right": 9}),
    "softcap and sinks": (2, 90, 97, 0, {"softcap": 1.5, "sinks": torch.tensor([0, 1, -2, 3.0])}),
    "slopes": (4, 70, 90, 0, {"alibi_slopes": torch.tensor([0.1, 0.5, 0.2, 0.9]), "p": 0.7}),
    "chunks": (4, 100, 110, 24, {"attention_chunk": 48}),
}
SPLIT = ("ragged", "softcap and sinks")


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("family", FORWARD)
def test_values(family: str, name: str) -> None:
    config = parse(FORWARD[family])
    heads_kv, seqlen_q, seqlen_k, narrower_by, options = PADDED[name]
    torch.manual_seed(0)
    d_head = config.d_head - narrower_by
    q = torch.randn(2, seqlen_q, 4, d_head).half()
    k, v = (torch.randn(2, seqlen_k, heads_kv, d_head).half() for _ in range(2))
    expected = expect(q, k, v, **dropping(**options))
    for num_splits in (1, 3) if name in SPLIT else (1,):
        out, lse, report = pyflash.emulate(
            q, k, v, config, num_splits=num_splits, resident_ctas=RESIDENT_CTAS,
            **dropping(**options),
        )  # fmt: skip
        report.check()
        expected.check(out, lse)


@pytest.mark.parametrize("family", FORWARD)
def test_packed_values(family: str) -> None:
    """Tiles come from a list."""
    config = parse(FORWARD[family])
    torch.manual_seed(0)
    lengths = torch.tensor([0, 150, 20, 0, 61, 3])
    starts = lengths.cumsum(0).int()
    q = torch.randn(int(starts[-1]), 4, 64).half()
    k, v = (torch.randn(int(starts[-1]), 2, 64).half() for _ in range(2))
    options = dropping(causal=True)
    out, lse, report = pyflash.emulate_varlen(
        q, k, v, starts, starts, 150, 150, config, resident_ctas=RESIDENT_CTAS, **options
    )
    report.check()
    expect_varlen(q, k, v, starts, starts, **options).check(out, lse)


SHAPES = {
    "ragged": Shape(2, 2, 2, 141, 173, options=dropping()),
    "causal": Shape(1, 2, 1, 150, 130, 8, options=dropping(0.5, causal=True)),
    "window": Shape(1, 2, 1, 130, 140, options=dropping(window_left=30, window_right=9)),
    "softcap": Shape(1, 2, 2, 70, 90, options=dropping(0.8, softcap=1.5)),
    "slopes": Shape(1, 2, 2, 97, 64, options=dropping(alibi_slopes=torch.tensor([0.1, 0.5]))),
}


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("family", BACKWARD)
def test_gradients(family: str, name: str, deterministic: bool) -> None:
    config, shape = parse(BACKWARD[family]), SHAPES[name]
    call = make_call(config, shape)
    *gradients, report = pyflash.emulate_backward(
        *call.inputs, config, grad_lse=call.grad_lse, deterministic=deterministic,
        order=ORDERS[list(SHAPES).index(name) % len(ORDERS)],
        # A CTA for both heads of a group, or a cluster of two.
        resident_ctas=132 if deterministic else 1, **shape.options,
    )  # fmt: skip
    report.check()
    assert wrong(config, shape, call, tuple(gradients)) == {}


@pytest.mark.parametrize("resident_ctas", [1, 132], ids=["one_cta", "cluster"])
@pytest.mark.parametrize("deterministic", [False, True], ids=["any_order", "deterministic"])
@pytest.mark.parametrize("name", ["causal", "window"])
@pytest.mark.parametrize("text", OTHER_HEADS)
def test_gradients_of_other_heads(
    text: str, name: str, deterministic: bool, resident_ctas: int
) -> None:
    """Two heads share keys: one CTA has both, or a cluster divides them."""
    config, shape = parse(text), SHAPES[name]
    call = make_call(config, shape)
    *gradients, report = pyflash.emulate_backward(
        *call.inputs, config, grad_lse=call.grad_lse, deterministic=deterministic,
        resident_ctas=resident_ctas, **shape.options,
    )  # fmt: skip
    report.check()
    assert wrong(config, shape, call, tuple(gradients)) == {}


# Sums in one order, or under windows that are short beside the sequence.
SLICED = {
    "in_order": (Shape(2, 4, 2, 141, 173, options=dropping(causal=True)), True),
    "short_windows": (
        Shape(2, 3, 3, 300, 300, options=dropping(window_left=9, window_right=6)), False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SLICED)
@pytest.mark.parametrize("family", BACKWARD)
def test_gradients_of_slices_of_heads(family: str, name: str) -> None:
    config, (shape, deterministic) = parse(BACKWARD[family]), SLICED[name]
    call = make_call(config, shape)
    *gradients, report = pyflash.emulate_backward(
        *call.inputs, config, grad_lse=call.grad_lse, deterministic=deterministic,
        resident_ctas=1, **shape.options,
    )  # fmt: skip
    report.check()
    assert wrong(config, shape, call, tuple(gradients)) == {}


@pytest.mark.parametrize("resident_ctas", [1, 132], ids=["slices", "all_heads"])
@pytest.mark.parametrize("family", BACKWARD)
def test_packed_gradients(family: str, resident_ctas: int) -> None:
    config = parse(BACKWARD[family])
    packed = Packed(4, 2, (70, 0, 1, 133), (50, 3, 40, 133), options=dropping(causal=True))
    call = make_packed_call(config, packed)
    *gradients, report = pyflash.emulate_backward_varlen(
        *call.inputs, config, grad_lse=call.grad_lse, resident_ctas=resident_ctas, **packed.options
    )
    report.check()
    assert wrong_packed(call, tuple(gradients), LIMITS[config.dtype]) == {}
