"""Attention on the CPU: shapes, layouts, scales, and what a config decides of the numerics.

Masks, groups of heads and head dimensions are in test_masks.py, packed sequences in test_varlen.py.
"""

import os
import time

import pytest
import torch
from support.problems import (
    EMPTY,
    SHAPES,
    Shape,
    make_inputs,
    new_memory_is_nan,
    problem_of,
)

from pyflash import DType, FlashForwardKernelConfig, attention
from pyflash.op.reference import check, expect
from pyflash.op.selection import TORCH_DTYPES

DTYPES = [torch.float16, torch.bfloat16]

# What a config decides on the CPU: dtype, d_head, B_r, B_c and the softmax.
CONFIGS = [
    FlashForwardKernelConfig.parse(text)
    for text in (
        "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
        "(FP16, 128, 128, 32, 4): async+eager+swizzled+load_2_2_2_tiles+buffer",
        "(FP16, 64, 64, 128, 4): load_0_0_0_tiles",
        "(FP16, 64, 128, 64, 8): async+load_0_0_0_tiles+opt_softmax",
        "(BF16, 128, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
        "(BF16, 128, 128, 64, 4): async+swizzled+load_0_0_0_tiles",
        "(BF16, 64, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer",
    )
]
BASE = CONFIGS[0]
# Rows are no multiples of the blocks, keys of several.
RAGGED = Shape("ragged", 2, 131, 197, 2)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_cpu_is_within_tolerance(config, shape):
    """Pitfall 12: lengths that are no multiple of the tile.
    Pitfall 13: strides ignored. Views of every kind."""
    inputs, expected = problem_of(shape, config)
    with new_memory_is_nan():
        out, lse = attention(*inputs, config=config, return_lse=True)
    expected.check(out, lse)
    assert out.is_contiguous()
    assert out.dtype == inputs[0].dtype


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("d_head", [64, 128])
@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize("softmax_scale", [1e-3, 0.125, 3.0])
def test_softmax_scale(dtype, d_head, optimized, softmax_scale):
    q, k, v = make_inputs(RAGGED, dtype, d_head)
    name = DType.FP16 if dtype == torch.float16 else DType.BF16
    config = BASE.replace(dtype=name, d_head=d_head, optimized_softmax=optimized)
    out, lse = attention(q, k, v, softmax_scale=softmax_scale, config=config, return_lse=True)
    check(out, q, k, v, lse=lse, softmax_scale=softmax_scale)


def test_default_scale_is_one_over_the_root_of_d_head():
    """Pitfall 15: head dimensions that are not built. Padding keeps the scale of the true one."""
    q, k, v = make_inputs(RAGGED, torch.float16, 64)
    assert torch.equal(attention(q, k, v), attention(q, k, v, softmax_scale=1 / 8))


@pytest.mark.parametrize("config", ["", BASE], ids=["any", "named"])
@pytest.mark.parametrize("shape", EMPTY, ids=str)
def test_empty_extents_give_empty_outputs(shape, config):
    """Pitfall 11: empty inputs."""
    out, lse = attention(*make_inputs(shape, torch.float16, 128), config=config, return_lse=True)
    assert out.shape == (shape.batch, shape.seqlen_q, shape.heads, 128)
    assert lse.shape == (shape.batch, shape.heads, shape.seqlen_q)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_keys_give_zeros_and_minus_infinity(dtype):
    """Pitfall 11: empty inputs. S_k = 0 leaves every row with nothing to attend."""
    q, k, v = make_inputs(Shape("no_keys", 2, 70, 0, 2), dtype, 64)
    out, lse = attention(q, k, v, return_lse=True)
    assert torch.equal(out, torch.zeros_like(q))
    assert torch.equal(lse, torch.full((2, 2, 70), -torch.inf))


def test_more_heads_than_65535():
    """Pitfall 8: grids of more than 65535."""
    inputs = make_inputs(Shape("many_heads", 32769, 1, 2, 2), torch.float16, 64)
    expect(*inputs).check(*attention(*inputs, return_lse=True))


@pytest.mark.parametrize("n_threads", [1, 3])
def test_same_bits_every_time_and_with_any_number_of_threads(n_threads):
    """Pitfall 19: other bits from run to run."""
    inputs = make_inputs(RAGGED, torch.bfloat16, 64)
    first = attention(*inputs, return_lse=True)
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        runs = [attention(*inputs, return_lse=True) for _ in range(10)]
    finally:
        torch.set_num_threads(before)
    for out, lse in runs:
        assert torch.equal(out, first[0])
        assert torch.equal(lse, first[1])


def test_a_worker_of_several_computes_in_one_thread():
    variable = os.environ.get("OMP_NUM_THREADS")
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert variable is not None
    assert variable is None or torch.get_num_threads() == int(variable)


def test_4096_rows_take_seconds():
    inputs = make_inputs(Shape("long", 1, 4096, 4096, 1), torch.float16, 128)
    start = time.process_time()  # of all threads: what else the machine does counts not
    attention(*inputs, config=BASE)
    seconds = time.process_time() - start
    assert seconds < 10


@pytest.mark.parametrize("softmax", ["", "+opt_softmax"])
def test_blocks_larger_than_the_problem(softmax):
    """Tiles are no larger than the problem."""
    inputs = make_inputs(Shape("", 1, 30, 31, 2), torch.float16, 64)
    results = [
        attention(*inputs, config=f"(FP16, 64, {B_r}, {B_c}, 4): load_0_0_0_tiles{softmax}")
        for B_r, B_c in ((64, 32), (128, 32), (64, 128), (128, 64))
    ]
    assert all(torch.equal(result, results[0]) for result in results)


ILLEGAL = [
    "(FP16, 64, 2147483647, 2147483647, 4): load_0_0_0_tiles",
    "(FP16, 64, 7, 3, 4): load_0_0_0_tiles",
    "(FP16, 64, 64, 64, 4): load_1000000000_7_9_tiles",
    "(FP16, 64, 64, 64, 4): eager+load_0_0_0_tiles",
]


@pytest.mark.parametrize("config", ILLEGAL)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_configs_that_no_machine_could_run_are_refused(config, device):
    q = torch.randn(1, 46400, 1, 8).half().to(device)
    for named in (config, FlashForwardKernelConfig.parse(config)):
        with pytest.raises(ValueError, match=r"^pyflash: config '.*' is legal nowhere: "):
            attention(q, q, q, config=named)


@pytest.mark.parametrize("config", ILLEGAL[:2])
def test_the_op_itself_bounds_its_blocks_on_the_cpu(config):
    q = torch.randn(1, 46400, 1, 8).half()
    with pytest.raises(RuntimeError, match=r"has B_r = .*: expected a multiple of 16 up to 256"):
        torch.ops.pyflash.fwd(q, q, q, config=config)


# The schema.


def test_schemas():
    options = (
        "*, float? softmax_scale=None, bool causal=False, int window_left=-1, int window_right=-1, "
        'int attention_chunk=0, float softcap=0., str config="", int num_splits=0, '
        "Tensor? sinks=None, Tensor? alibi_slopes=None, bool deterministic=False, "
        "float dropout_p=0., Tensor? dropout_state=None"
    )
    packing = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k"
    assert str(torch.ops.pyflash.fwd.default._schema) == (
        f"pyflash::fwd(Tensor q, Tensor k, Tensor v, {options}) -> (Tensor out, Tensor lse)"
    )
    assert str(torch.ops.pyflash.fwd_varlen.default._schema) == (
        f"pyflash::fwd_varlen(Tensor q, Tensor k, Tensor v, {packing}, {options}) "
        "-> (Tensor out, Tensor lse)"
    )


# The config decides the numerics.


def blockwise(q, k, v, config, blocks_backwards=True):
    """What a kernel of this config computes, operation by operation, one head, (rows, d_head)."""
    log2e = torch.tensor(1.44269504088896340736, dtype=torch.float32)
    scale = torch.tensor(config.d_head**-0.5, dtype=torch.float32)
    row_max = torch.full((len(q), 1), -torch.inf)
    row_sum = torch.zeros(len(q), 1)
    out = torch.zeros(len(q), config.d_head)
    blocks = list(zip(k.split(config.B_c), v.split(config.B_c), strict=True))
    for k_block, v_block in reversed(blocks) if blocks_backwards else blocks:
        scores = q.float() @ k_block.float().T
        if not config.optimized_softmax:
            scores *= scale
        new_max = torch.maximum(row_max, scores.amax(1, keepdim=True))
        if config.optimized_softmax:
            p = torch.exp2(scores * (scale * log2e) - new_max * (scale * log2e))
            correction = torch.exp2((row_max - new_max) * (scale * log2e))
        else:
            p = torch.exp(scores - new_max)
            correction = torch.exp(row_max - new_max)
        row_sum = row_sum * correction + p.sum(1, keepdim=True)
        out = out * correction + p.to(q.dtype).float() @ v_block.float()
        row_max = new_max
    return (out / row_sum).to(q.dtype)


def part_that_differs(a, b):
    return (a != b).float().mean().item()


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_cpu_goes_through_the_blocks_as_a_kernel_does(config):
    """Rounding P relative to the maximum so far leaves the order of the blocks in the last bits."""
    inputs = make_inputs(
        Shape("one_head", 1, 70, 400, 1), TORCH_DTYPES[config.dtype], config.d_head
    )
    out = attention(*inputs, config=config)[0, :, 0]
    heads = [x[0, :, 0] for x in inputs]
    assert part_that_differs(out, blockwise(*heads, config)) < 0.01
    assert part_that_differs(out, blockwise(*heads, config, blocks_backwards=False)) > 0.05


def test_what_a_config_says_of_copies_and_registers_changes_no_bit():
    inputs = make_inputs(RAGGED, torch.float16, 128)
    out = attention(*inputs, config=BASE)
    copies = BASE.replace(async_copy=False, eager_load_blocks=False, swizzled=False)
    registers = BASE.replace(Q_mma_load_K_tiles=2, V_mma_load_K_tiles=0)
    assert torch.equal(out, attention(*inputs, config=copies))
    assert torch.equal(out, attention(*inputs, config=registers))
    assert not torch.equal(out, attention(*inputs, config=BASE.replace(B_c=32)))
    assert not torch.equal(out, attention(*inputs, config=BASE.replace(optimized_softmax=False)))
