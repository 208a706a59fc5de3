"""The SM90 backward on the emulated machine: gradients beside fp64, and nothing found."""

import json

import pytest
import torch
from support.emulated_backward import CONFIGS, Shape, make_call, wrong
from support.emulated_packed import Packed
from support.emulated_random import draw

import pyflash
from pyflash.config import DType
from pyflash.emulator import ORDERS, Report

# CTAs whose parts of dK and dV have room where Q and dO were.
MAX_CLUSTER = {
    "wide": 4,
    "narrow": 4,
    "narrow_in_order": 4,
    "in_turn": 2,
    "narrow_overlap": 4,
    "column_parts": 2,
    "narrower_slabs": 4,
    "narrower_slabs_by_red": 4,
    "shared_keys": 4,
    "shared_keys_by_red": 4,
}
SHAPES = {
    "whole_blocks": Shape(1, 1, 1, 128, 128),
    "ragged": Shape(1, 2, 1, 200, 150),
    "causal": Shape(2, 2, 1, 197, 300, options={"causal": True}),
    "rows_without_keys": Shape(1, 2, 2, 300, 170, options={"causal": True}),
    "window": Shape(1, 1, 1, 290, 310, 8, {"window_left": 70, "window_right": 5}),
    "one_query": Shape(2, 4, 2, 1, 200, 8, {"softmax_scale": 0.3}),
    "one_key": Shape(1, 3, 1, 70, 1),
    "far_below": Shape(1, 1, 1, 141, 173, below=128),
    "left_window": Shape(1, 2, 2, 150, 260, 16, {"window_left": 60}),
    "chunks": Shape(1, 2, 1, 300, 300, options={"attention_chunk": 70}),
    "chunks_and_causal": Shape(1, 1, 1, 150, 300, options={"attention_chunk": 64, "causal": True}),
    "softcap": Shape(1, 2, 1, 200, 150, 8, {"softcap": 0.5}),
    "softcap_and_causal": Shape(1, 1, 1, 197, 300, options={"softcap": 2.0, "causal": True}),
    "high_softcap": Shape(1, 1, 1, 130, 140, options={"softcap": 50.0, "softmax_scale": 1.0}),
    "softcap_of_small_scores": Shape(1, 2, 1, 200, 150, 8, {"softcap": 30.0}),
    "softcap_of_some_small_scores": Shape(
        1, 1, 1, 197, 300, options={"softcap": 12.0, "causal": True}
    ),
    "slopes": Shape(1, 2, 1, 197, 300, options={"alibi_slopes": torch.tensor([0.1, 0.5])}),
    "slopes_of_batches": Shape(
        2, 2, 2, 150, 130, options={"alibi_slopes": torch.rand(2, 2), "causal": True}
    ),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("config", CONFIGS)
def test_gradients(config: str, name: str) -> None:
    """Several CTAs of keys add to the sums of dQ; memory holds NaN before."""
    key, shape = CONFIGS[config], SHAPES[name]
    order = ORDERS[(list(SHAPES).index(name) + list(CONFIGS).index(config)) % len(ORDERS)]
    call = make_call(key, shape)
    *gradients, report = pyflash.emulate_backward(
        *call.inputs, key, grad_lse=call.grad_lse, order=order, **shape.options
    )
    report.check()
    assert report.completed
    assert wrong(key, shape, call, tuple(gradients)) == {}


# Heads of q, for one head of k and v; CTAs that run at a time; CTAs of the cluster of a tile, where
# the config has room for four.
CLUSTERS = [
    (2, 1, 1),
    (2, 132, 2),
    (6, 132, 2),
    (6, 1, 2),
    (4, 7, 2),
    (4, 132, 4),
    (8, 1, 2),
    (12, 132, 4),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_query_heads_of_a_group_divided_among_a_cluster(config: str) -> None:
    """Where tiles are few, or, under a mask, where each CTA would go through more than four."""
    key = CONFIGS[config]
    for at, (heads, resident, cluster) in enumerate(CLUSTERS):
        options = {"causal": True} if heads != 4 else {"window_right": 200}
        shape = Shape(1, heads, 1, 110, 140, options=options)
        call = make_call(key, shape)
        *gradients, report = pyflash.emulate_backward(
            *call.inputs, key, order=ORDERS[at % len(ORDERS)], grad_lse=call.grad_lse,
            resident_ctas=resident * key.column_parts, deterministic=at % 2 == 1, **options,
        )  # fmt: skip
        report.check()
        assert wrong(key, shape, call, tuple(gradients)) == {}, (heads, resident)
        n_tiles = -(-shape.seqlen_k // key.B_c) * key.column_parts
        assert report.n_ctas == n_tiles * min(cluster, MAX_CLUSTER[config]), (heads, resident)


# Batches, heads of q and of k and v, and options. With one CTA at a time two heads have sums of dQ
# at a time, and the others wait for these.
RECYCLING = {
    "full": Shape(1, 5, 5, 150, 140),
    "batches": Shape(3, 2, 2, 70, 200),
    "causal": Shape(2, 3, 3, 260, 270, options={"causal": True}),
    "groups": Shape(3, 6, 2, 110, 140, 8, {"causal": True}),
    "clusters": Shape(1, 30, 5, 110, 140, options={"causal": True}),
    "window": Shape(1, 7, 7, 260, 280, 8, {"window_left": 40, "window_right": 0}),
    "rows_without_keys": Shape(1, 5, 5, 300, 130, options={"causal": True}),
    "keys_without_rows": Shape(1, 5, 5, 70, 290, options={"window_left": 10}),
    "softcap": Shape(3, 3, 3, 70, 90, options={"softcap": 2.0}),
    "slopes": Shape(5, 1, 1, 70, 90, options={"alibi_slopes": torch.tensor([0.3])}),
    "one_block": Shape(9, 1, 1, 1, 1),
}


@pytest.mark.parametrize("name", RECYCLING)
@pytest.mark.parametrize("config", CONFIGS)
def test_sums_that_one_head_has_after_another(config: str, name: str) -> None:
    key, shape = CONFIGS[config], RECYCLING[name]
    order = ORDERS[(list(RECYCLING).index(name) + list(CONFIGS).index(config)) % len(ORDERS)]
    call = make_call(key, shape)
    *gradients, report = pyflash.emulate_backward(
        *call.inputs, key, grad_lse=call.grad_lse, order=order, resident_ctas=1, **shape.options
    )
    report.check()
    assert wrong(key, shape, call, tuple(gradients)) == {}


def test_strided_inputs_and_no_gradient_of_lse() -> None:
    key, shape = CONFIGS["narrow"], SHAPES["ragged"]
    call = make_call(key, shape)
    grad_out, out, lse, *qkv = call.inputs
    transposed = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (grad_out, out, *qkv)]
    same = [
        pyflash.emulate_backward(*inputs, key)[:3]
        for inputs in (
            (grad_out, out, lse, *qkv),
            (*transposed[:2], lse, *transposed[2:]),
        )
    ]
    for a, b in zip(*same, strict=True):
        torch.testing.assert_close(a, b)


def test_a_report_is_that_of_the_configs_own_kernel() -> None:
    """Each key block of a query block has five GEMMs."""
    key = CONFIGS["wide"]
    call = make_call(key, SHAPES["whole_blocks"])
    *_, report = pyflash.emulate_backward(*call.inputs, key)
    assert report.n_ctas == 1
    assert (report.n_threads, report.smem_bytes) == (key.n_threads, key.smem_bytes)
    assert report.counts.wgmma_flops_ss + report.counts.wgmma_flops_rs == 5 * 2 * 128 * 128 * 128
    assert {"dP", "dV", "dK", "dQ_s2g"} <= {event.site for event in report.timeline}
    assert Report.from_json(report.to_json()) == report
    assert json.loads(report.to_json())["config"] == str(key)


WRONG_CALLS = {
    "both": ({"softcap": 30.0, "alibi_slopes": torch.ones(2)}, "alibi_slopes came with softcap"),
    "slopes": ({"alibi_slopes": torch.ones(3)}, "alibi_slopes has shape"),
    "order": ({"order": "upwards"}, "unknown order 'upwards'"),
    "grad_lse": ({"grad_lse": torch.ones(1, 2, 3)}, r"grad_lse has shape \(1, 2, 3\): expected"),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_wrong_call_is_refused_in_words(name: str) -> None:
    options, says = WRONG_CALLS[name]
    key = CONFIGS["narrow"]
    call = make_call(key, SHAPES["ragged"])
    with pytest.raises(ValueError, match=says):
        pyflash.emulate_backward(*call.inputs, key, **options)


def test_results_of_another_call_are_refused_in_words() -> None:
    key = CONFIGS["narrow"]
    grad_out, out, lse, q, k, v = make_call(key, SHAPES["ragged"]).inputs
    for inputs, says in (
        ((grad_out[:, 1:], out, lse), "grad_out has shape .* expected .* as q"),
        ((grad_out.float(), out, lse), "grad_out is float32: expected bfloat16 as q"),
        ((grad_out, out, lse.double()), "lse is float64: expected float32"),
        ((grad_out, out, lse[..., 1:]), "lse has shape .* of q"),
    ):
        with pytest.raises(ValueError, match=says):
            pyflash.emulate_backward(*inputs, q, k, v, key)


def test_configs_of_another_op_are_refused_in_words() -> None:
    key = CONFIGS["narrow"]
    *_, q, k, v = inputs = make_call(key, SHAPES["ragged"]).inputs
    with pytest.raises(ValueError, match="is of op backward: expected one of forward"):
        pyflash.emulate(q, k, v, key)
    forward = "(BF16, 64, 64, 64, 4): async+load_0_0_0_tiles"
    with pytest.raises(ValueError, match="is of op forward: expected one of backward"):
        pyflash.emulate_backward(*inputs, forward)
    with pytest.raises(ValueError, match="is for FP16, q is BF16"):
        pyflash.emulate_backward(*inputs, key.replace(dtype=DType.FP16))


@pytest.mark.parametrize("name", [name for name in SHAPES if "one" not in name])
def test_deterministic_gradients(name: str) -> None:
    """Blocks of keys add in one order, and each gives its turn on: no CTA waits for a later one."""
    config = list(CONFIGS)[list(SHAPES).index(name) % len(CONFIGS)]
    key, shape = CONFIGS[config], SHAPES[name]
    call = make_call(key, shape)
    found = []
    for order in ORDERS:
        *gradients, report = pyflash.emulate_backward(
            *call.inputs, key, grad_lse=call.grad_lse, order=order, deterministic=True,
            **shape.options,
        )  # fmt: skip
        report.check()
        assert wrong(key, shape, call, tuple(gradients)) == {}
        found.append(gradients)
    for gradients in found[1:]:
        for a, b in zip(gradients, found[0], strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("seed", range(24))
def test_random_problems(seed: int) -> None:
    key = list(CONFIGS.values())[seed % len(CONFIGS)]
    drawn = draw(seed)
    call = drawn.make_call(key)
    packed = isinstance(drawn.problem, Packed)
    emulate = pyflash.emulate_backward_varlen if packed else pyflash.emulate_backward
    *gradients, report = emulate(*call.inputs, key, grad_lse=call.grad_lse, **drawn.options)
    report.check()
    assert report.completed
    assert drawn.wrong(key, call, tuple(gradients)) == {}
