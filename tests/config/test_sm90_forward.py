"""The SM90 forward family: text, rules, resources, what is built and preferred."""

import json
from itertools import product

import pytest

from pyflash import DType, FlashForwardSm90Config, Space, named_set
from pyflash.config import family_of, parse, rank
from pyflash.config.arch import ARCHS, Arch
from pyflash.config.features import first_covering
from pyflash.config.sets import UNRANKED
from pyflash.config.sm90 import Budgets, budgets
from pyflash.config.sm90_forward.resources import register_demand, variant_refusal
from pyflash.config.sm90_forward.rules import RULES, SUPPORTED
from pyflash.config.sm90_forward.sets import SHORT, for_variants
from pyflash.config.variant_needs import NO_NEEDS, VariantNeeds

TEXT = "(BF16, 128, 128, 128, 2): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold"
BEST = FlashForwardSm90Config.parse(TEXT)
WIDE = FlashForwardSm90Config.parse(
    "(BF16, 64, 192, 128, 3): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold"
)
SM90 = Arch.of(90)


def test_text_of_a_config():
    assert str(BEST) == TEXT
    bare = "(FP16, 64, 64, 64, 1): sm90+stages_3"
    for text in (TEXT, bare, f"{TEXT}+pack_gqa", f"{TEXT}+pack_gqa+three_ctas+rows_decide"):
        assert str(parse(text)) == text
        config = parse(text)
        assert parse(config.to_cpp_struct()) == config
        assert FlashForwardSm90Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert family_of(bare).name == "sm90_forward"
    symbol = (
        "void pyflash::flash_forward_sm90_kernel<FlashForwardSm90Config{(DType)15, 128, 128, 128, "
        "2, 2, (bool)1, (bool)1, (bool)1, (bool)1, (bool)0}, ForwardFeatures{...}>(...)"
    )
    assert parse(symbol) == BEST
    with pytest.raises(ValueError, match="stages_N is missing"):
        parse("(BF16, 128, 128, 128, 2): sm90+overlap")


SMALL = {"d_head": 64, "B_r": 64, "n_consumers": 1, "pingpong": False}
BROKEN = [
    ("rows_per_warpgroup", {"n_consumers": 1, "pingpong": False, "B_c": 64}, "not B_r = 128"),
    ("mma_columns", {"B_c": 120}, "B_c = 120 is N of the WGMMA of Q K^T, at most 256"),
    ("slabs", {"d_head": 80}, "TMA boxes of 32 columns"),
    ("pingpong_needs_two", {"B_r": 64, "n_consumers": 1}, "use n_consumers = 2, 3 or 4"),
    ("smem", {"stages": 4}, "312320 bytes of shared memory, more than the 232448 that sm_90"),
    (
        "fragments",
        {"B_r": 192, "n_consumers": 3, "B_c": 112, "d_head": 192, "stages": 1},
        "S (56), P (28) and O (96) take 180 registers of a consumer thread, which has 160",
    ),
    ("three_have_room", {"three_ctas": True}, "and there are 2: use n_consumers = 1"),
    (
        "three_have_room",
        {**SMALL, "B_c": 112, "three_ctas": True},
        "leave a consumer thread 136 registers, and S, P and O with what is beside them take about",
    ),
    (
        "three_have_room",
        {**SMALL, "B_c": 96, "stages": 4, "three_ctas": True},
        "three CTAs of 115712 bytes of shared memory are more than sm_90 gives an SM",
    ),
    (
        "threshold_for_rows",
        {"rescale_threshold": False, "rows_decide": True},
        "set rescale_threshold = True, or rows_decide = False",
    ),
    ("supported_values", {"d_head": 160, "B_c": 64}, "d_head = 160 is not supported: use 64, 96"),
]


@pytest.mark.parametrize(("rule", "changes", "says"), BROKEN)
def test_each_rule_alone(rule, changes, says):
    violations = BEST.replace(**changes).violations(90)
    assert [violation.rule for violation in violations] == [rule]
    assert says in violations[0].sentence


@pytest.mark.parametrize("B_c", range(8, 321, 8))
def test_columns_of_an_mma(B_c):
    """N of a WGMMA is at most 256, K of one a multiple of 16."""
    broken = {v.rule for v in BEST.replace(B_c=B_c, stages=1).violations(90)}
    assert ("mma_columns" not in broken) == (B_c in range(16, 257, 16))


@pytest.mark.parametrize("d_head", range(8, 321, 8))
def test_columns_of_slabs(d_head):
    broken = {v.rule for v in BEST.replace(d_head=d_head, B_c=16, stages=1).violations(90)}
    assert ("slabs" not in broken) == (d_head in range(32, 257, 32))


def test_every_rule_is_broken_above():
    names = {rule.__name__ for rule in RULES.rules} - {"architecture"}
    assert {*names, "supported_values"} == {rule for rule, _, _ in BROKEN}


@pytest.mark.parametrize("arch", ARCHS, ids=str)
def test_it_runs_on_sm_90_alone(arch):
    if arch.sm == 90:
        assert BEST.violations(arch) == []
        assert BEST.family.nvcc_arch(arch) == "90a"
    else:
        assert BEST.violations(arch)[0].rule == "architecture"
    assert (arch.sm in BEST.family.runs_on) == BEST.is_legal(arch)


def test_three_ctas_have_a_third_of_the_registers():
    two = parse("(BF16, 64, 64, 64, 1): sm90+stages_2+overlap+persistent+rescale_threshold")
    three = two.replace(three_ctas=True)
    assert three.is_legal(90)
    for config, ctas, entry, consumer in ((two, 2, 128, 232), (three, 3, 80, 136)):
        resources = config.resources(90)
        assert resources.num_ctas_per_sm == ctas
        assert (resources.registers, resources.register_limit) == (entry, consumer)


def test_shared_memory_is_the_tiles_a_slab_and_the_barriers():
    slab, wide_slab, narrow_slab = 128 * 64 * 2, 192 * 64 * 2, 128 * 32 * 2
    assert BEST.smem_bytes == (128 + 2 * 2 * 128) * 128 * 2 + slab + 1024
    assert WIDE.smem_bytes == (192 + 2 * 2 * 128) * 64 * 2 + wide_slab + 1024
    assert BEST.replace(d_head=96).smem_bytes == (128 + 2 * 2 * 128) * 96 * 2 + narrow_slab + 1024
    one_tile = BEST.replace(persistent=False)  # O goes out in place of Q
    assert one_tile.smem_bytes == (128 + 2 * 2 * 128) * 128 * 2 + 1024


def test_registers_are_moved_to_the_consumers():
    assert budgets(1, SM90, 3) == Budgets(entry=80, producer=24, consumer=136)
    assert budgets(1, SM90, 2) == Budgets(entry=128, producer=24, consumer=232)
    assert budgets(2, SM90) == Budgets(entry=168, producer=24, consumer=240)
    assert budgets(3, SM90) == Budgets(entry=128, producer=32, consumer=160)
    assert budgets(4, SM90) == Budgets(entry=96, producer=32, consumer=112)
    for n, ctas_per_sm in ((1, 3), (1, 2), (2, 1), (3, 1), (4, 1)):
        b = budgets(n, SM90, ctas_per_sm)
        assert b.producer + n * b.consumer <= b.entry * (1 + n)
        assert b.producer % 8 == b.consumer % 8 == 0


def test_consumers_hold_the_next_S_beside_this_P_and_O():
    demand = register_demand(BEST)
    assert (demand.S, demand.P, demand.O) == (64 * 128 / 128, 64 * 128 / 128 / 2, 64 * 128 / 128)
    r = BEST.resources(90)
    assert (r.registers, r.register_limit, r.num_ctas_per_sm) == (168, 240, 1)
    assert not r.spill_predicted
    tight = BEST.replace(B_c=208, stages=1)
    assert tight.resources(90).spill_predicted
    assert tight.is_legal(90)
    assert [v.rule for v in tight.warnings(90)] == ["spill"]


def test_defaults_are_legal_canonical_and_preferred():
    defaults = named_set("sm90")
    assert {(c.dtype, c.d_head) for c in defaults} == {(t, d) for t in DType for d in (64, 128)}
    sm80 = [config for config in named_set("all") if config.tag == ""]
    for config in defaults:
        assert config.is_legal(90)
        assert not config.warnings(90)
        assert config.canonical() == config
        if config in SHORT:  # which tables choose
            assert rank(config) == UNRANKED
        else:
            assert rank(config) < min(map(rank, sm80))
        assert config.n_consumers in SUPPORTED["n_consumers"]


def test_three_consumers_leave_some_features_to_others():
    with_all = BEST.family.built_features(BEST)
    for config in (WIDE, WIDE.replace(d_head=128, B_c=80)):
        built = config.family.built_features(config)
        for features in ("plain", "left_window", "sinks", "right_window+predicated_head_dim"):
            assert first_covering(features, built), features
        for features in ("left_window+predicated_head_dim", "sinks+predicated_head_dim"):
            assert not first_covering(features, built), features
            assert first_covering(features, with_all), features
        assert bool(first_covering("softcap", built)) == (config.d_head == 64)
    assert first_covering("softcap", with_all)


def test_short_blocks_of_wide_tiles_are_for_windows():
    configs = BEST.family.sets["sm90"]()
    (config, _) = (config for config in configs if config.B_c == 64 and config.B_r == 192)
    built = config.family.built_features(config)
    assert all(features.left_window for features in built)
    for features in ("right_window+left_window+sinks", "left_window+softcap"):
        assert first_covering(features, built), features


ALL_NEEDS = VariantNeeds(positions=True, bits=True, pairs=True)


def test_room_for_variants():
    """By registers: four consumers have none for what is kept of positions, bits or pairs."""
    four, three, short = (parse(text) for text in (
        "(FP16, 64, 256, 64, 4): sm90+stages_4+overlap+persistent+rescale_threshold",
        "(FP16, 64, 192, 128, 3): sm90+stages_2+overlap+persistent+rescale_threshold",
        "(FP16, 64, 192, 96, 3): sm90+stages_3+overlap+persistent+rescale_threshold",
    ))  # fmt: skip
    assert variant_refusal(four, NO_NEEDS) is None
    for needs, words in (
        (VariantNeeds(positions=True), "with scores by position,"),
        (VariantNeeds(bits=True), "with a mask as bits,"),
        (VariantNeeds(pairs=True), "with tensors of an element for each pair,"),
    ):
        refusal = variant_refusal(four, needs)
        assert words in refusal
        assert "120 registers of a consumer thread, which has 112" in refusal
    assert "168 registers of a consumer thread, which has 160" in variant_refusal(three, NO_NEEDS)
    assert variant_refusal(short, ALL_NEEDS) is None
    assert variant_refusal(BEST, ALL_NEEDS) is None
    packed = variant_refusal(four.replace(pack_gqa=True), NO_NEEDS)  # two heads of a thread's rows
    assert "120 registers of a consumer thread, which has 112" in packed


@pytest.mark.parametrize("few", [*product([False, True], repeat=2)])
@pytest.mark.parametrize(
    "needs", [NO_NEEDS, VariantNeeds(bits=True), ALL_NEEDS], ids=["none", "bits", "all"]
)
def test_each_d_head_has_a_config_for_any_variant(needs, few):
    configs = for_variants(needs, *few)
    assert {(c.d_head, c.dtype) for c in configs} == set(product(SUPPORTED["d_head"], DType))
    for config in configs:
        assert config.is_legal(SM90)
        assert config == config.canonical()
        assert config.family.takes_variant(config, needs)


def test_a_space():
    space = Space(family="sm90_forward", dtype="BF16", d_head=128, stages=2, pack_gqa=False)
    legal = list(space.legal(90))
    assert BEST in legal
    assert len(legal) < len(list(space))
    assert all(config.B_r == 64 * config.n_consumers for config in legal)
