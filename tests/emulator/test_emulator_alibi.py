"""ALiBi in the kernels of every family, on the emulated machine."""

import pytest
import torch
from support.problems import Packed, Shape, make_inputs, make_packed

from pyflash.emulator import emulate, emulate_varlen
from pyflash.op.reference import expect, expect_varlen

CONFIGS = {
    "sm80": "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    "sm80 scaled first": "(FP16, 64, 64, 32, 4): async+load_0_0_0_tiles",
    "sm90": "(FP16, 64, 128, 64, 2): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold",
    "sm90 packed heads": "(FP16, 64, 64, 64, 1): sm90+stages_2+overlap+persistent+pack_gqa",
}
OPTIONS = {
    "full": {},
    "causal": {"causal": True},
    "chunks_and_sinks": {"causal": True, "attention_chunk": 50, "sinks": torch.tensor([1.0, -2.0])},
    "splits": {"num_splits": 2},
}


def slopes(*size):
    return torch.rand(size, generator=torch.Generator().manual_seed(1)) * 0.5


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("shape", [(2, 70, 150), (1, 1, 130), (1, 100, 60)], ids=str)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_alibi_is_the_formula(config, shape, options):
    batch, seqlen_q, seqlen_k = shape
    inputs = make_inputs(Shape("", batch, seqlen_q, seqlen_k, 2, heads_kv=1), torch.float16, 56)
    options = options | {"alibi_slopes": slopes(batch, 2)}
    out, lse, report = emulate(*inputs, config=config, **options)
    assert not report.findings
    expect(*inputs, **{n: x for n, x in options.items() if n != "num_splits"}).check(out, lse)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_each_packed_sequence_has_its_slopes(config):
    inputs = make_packed(Packed("", (70, 0, 33), (65, 9, 90), 2, 1), torch.float16, 64)
    options = {"causal": True, "alibi_slopes": slopes(3, 2)}
    out, lse, report = emulate_varlen(*inputs, config=config, **options)
    assert not report.findings
    expect_varlen(*inputs[:5], **options).check(out, lse)
