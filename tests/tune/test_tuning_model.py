"""What orders candidates before anything is measured, and what is learnt from those that were."""

import dataclasses
import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.toy_family import TOY, TOY_FAMILY

from pyflash import FlashForwardKernelConfig, Space, named_set
from pyflash.config import FAMILIES, FORWARD, Arch, Features, family, parse
from pyflash.config.features import BUILT
from pyflash.op.options import windows_of
from pyflash.op.reference import attended
from pyflash.op.selection import features_in_config, features_needed, tiles_of
from pyflash.tuner import spaces, surrogate
from pyflash.tuner.model import flops, gpu_of, predict, scores, split_counts
from pyflash.tuner.problems import parse_problem

FORWARD_CONFIGS = [config for config in named_set("all") if config.family.op is FORWARD]
GPU = gpu_of(torch.device("cpu"))
LADDER_BEST = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"


@given(
    st.integers(1, 40), st.integers(1, 40), st.booleans(), st.integers(-1, 45), st.integers(-1, 45)
)
def test_scores_are_what_the_masks_leave(seqlen_q, seqlen_k, causal, left, right):
    words = ["causal"] if causal else [f"window_right={right}"]
    problem = parse_problem(
        ",".join(["fp16,heads=1,d_head=64", f"seqlen_q={seqlen_q},seqlen_k={seqlen_k}", *words])
        + f",window_left={left}"
    )
    windows = windows_of(problem.options, seqlen_q, seqlen_k)
    expected = attended(torch.arange(seqlen_q), seqlen_q, seqlen_k, *windows).sum().item()
    assert scores(problem) == expected
    assert flops(problem) == 4 * 64 * expected


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        ("seqlen=100", "plain"),
        ("seqlen=100,causal", "right_window"),
        ("seqlen_q=1,seqlen_k=100,causal", "plain"),
        ("seqlen=100,causal,window_left=9", "right_window+left_window"),
        ("seqlen=100,causal,window_left=99", "right_window"),
        ("seqlen_q=1,seqlen_k=100,window_left=9", "plain"),  # fewer keys
        ("seqlen_q=1,seqlen_k=100,window_left=9,packed", "left_window"),
        ("seqlen=100,softcap=3,sinks", "softcap+sinks"),
    ],
)
def test_the_features_that_a_problem_needs(words, needed):
    problem = parse_problem(f"fp16,heads=4,d_head=64,{words}")
    config = parse("(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles")
    assert str(features_needed(problem, config)) == needed
    narrower = features_needed(problem, config.replace(d_head=128))
    assert narrower.predicated_head_dim


def test_the_model_knows_what_is_known():
    long = parse_problem("fp16,batch=4,heads=16,seqlen=4096,d_head=128")
    best = FlashForwardKernelConfig.parse(LADDER_BEST)
    seconds = predict(best, long, GPU)
    assert predict(best.replace(swizzled=False), long, GPU) > 2 * seconds
    hopper = parse(
        "(FP16, 128, 128, 128, 2): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold"
    )
    assert predict(hopper, long, GPU) < seconds
    # A grid of half the size on a GPU that it fills takes half as long; no grid takes no time.
    half = parse_problem("fp16,batch=2,heads=16,seqlen=4096,d_head=128")
    assert predict(best, half, GPU) == pytest.approx(seconds / 2, rel=0.1)
    causal = parse_problem("fp16,batch=4,heads=16,seqlen=4096,d_head=128,causal")
    assert predict(best, causal, GPU) == pytest.approx(seconds / 2, rel=0.15)
    # No model beats memory: decoding reads every key and value once.
    decoding = parse_problem("fp16,batch=64,heads=8,seqlen_q=1,seqlen_k=8192,d_head=128")
    n_bytes = 2 * 2 * 64 * 8 * 8192 * 128
    assert predict(best, decoding, GPU) > n_bytes / GPU.bytes_per_second
    # A larger tile loads keys and values less often.
    one, two = (
        parse(f"(BF16, 128, {tile}): sm90+stages_2+overlap+persistent+rescale_threshold")
        for tile in ("64, 128, 1", "128, 128, 2")
    )
    assert predict(one, long, GPU) > 1.1 * predict(two, long, GPU)
    for config in FORWARD_CONFIGS:
        assert math.isfinite(predict(config, parse_problem("fp16,heads=1,seqlen=1,d_head=64"), GPU))


def test_the_surrogate_learns_effects_and_pairs_of_them():
    space = Space(dtype="FP16", d_head=128, async_copy=True, eager_load_blocks=True, swizzled=True)
    configs = [c for c in space.legal("sm_90") if c == c.canonical()]

    def truth(config):
        factor = 1.2 if config.n_warps == 8 else 1.0
        return factor * (0.8 if config.B_r == config.B_c == 64 else 1.0)

    seen = random.Random(1).sample(configs, len(configs) // 4)
    model = surrogate.fit(seen, [truth(config) for config in seen])
    for config in configs:
        assert model.predict(config, 1e-3) == pytest.approx(1e-3 * truth(config), rel=0.05)
    assert surrogate.fit([], []).predict(configs[0], 1e-3) == 1e-3


def test_splits_are_tried_where_one_pass_leaves_multiprocessors_idle():
    config = parse("(BF16, 128, 64, 64, 4): async+load_0_0_0_tiles")
    slots = GPU.n_sms * config.num_ctas_per_sm(GPU.arch)

    def counts(text, config=config):
        return split_counts(config, parse_problem(text), GPU)

    few = counts("bf16,batch=4,heads=16,heads_kv=4,seqlen_q=1,seqlen_k=16384,d_head=128")
    filling = slots // 16  # a tile for each sequence and head of k and v
    assert few[0] == 1
    assert filling in few
    assert filling < few[-1] <= 2 * filling
    assert few == sorted(set(few))
    assert counts("bf16,batch=4,heads=16,seqlen=4096,d_head=128") == []
    short = counts("bf16,batch=1,heads=8,seqlen_q=1,seqlen_k=512,d_head=128")
    assert max(short) == 4  # of two blocks at least
    assert counts("bf16,batch=1,heads=8,seqlen_q=1,seqlen_k=64,d_head=128") == []
    # Four queries of the eight heads that share keys are a tile of a config that packs them.
    packing = parse("(BF16, 128, 64, 64, 1): sm90+stages_3+overlap+pack_gqa")
    text = "bf16,batch=8,heads=64,heads_kv=8,seqlen_q=4,seqlen_k=16384,d_head=128"
    assert max(counts(text, packing)) == 2 * (2 * 132 // 64)
    assert counts(text) == [] or max(counts(text)) < max(counts(text, packing))


def test_a_family_without_kernels_is_refused():
    problem = parse_problem("bf16,heads=8,heads_kv=2,seqlen=64,d_head=128")
    for uses_it in (predict, split_counts):
        with pytest.raises(ValueError, match=r"toy.* is not a short form"):
            uses_it(TOY, problem, GPU)


def test_splits_fill_the_gpu_by_the_tiles_of_the_kernel():
    """C++ counts them: a config that packs heads has a tile for each head of K and V."""
    config = parse("(BF16, 128, 64, 64, 1): sm90+stages_3+overlap+pack_gqa")
    for packed in ("", ",packed"):
        text = "bf16,heads=64,heads_kv=8,seqlen_q=1,seqlen_k=16384,d_head=128" + packed
        problem = parse_problem(text)
        assert tiles_of(problem, config, GPU.arch.sm, GPU.n_sms) == 8
        slots = GPU.n_sms * config.num_ctas_per_sm(GPU.arch)
        assert slots // 8 in split_counts(config, problem, GPU)


@pytest.mark.parametrize("features", sorted(map(str, BUILT)))
def test_the_features_of_a_class_in_a_config(features):
    class_features = dataclasses.replace(Features.parse(features), predicated_head_dim=False)
    for config in FORWARD_CONFIGS:
        for d_head in range(8, config.d_head + 8, 8):
            needed = features_in_config(str(class_features), d_head, config)
            expected = dataclasses.replace(
                class_features, predicated_head_dim=d_head < config.d_head
            )
            assert needed == expected
    with pytest.raises(ValueError, match="'triangular' are no features"):
        features_in_config("triangular", 64, next(iter(named_set("all"))))


def test_what_is_settled_is_the_familys(monkeypatch):
    problem = parse_problem("bf16,heads=8,heads_kv=2,seqlen=64,d_head=128")
    for module in (spaces, family):
        monkeypatch.setattr(module, "FAMILIES", (*FAMILIES, TOY_FAMILY))
    toys = spaces.default_space([problem], Arch.of(90))[-1]
    assert toys.family is TOY_FAMILY
    assert {config.K_tiles for config in toys} == {2}
    assert {config.B_c for config in toys} == {32, 64}
