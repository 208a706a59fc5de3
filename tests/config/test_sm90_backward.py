"""The SM90 backward family: text, rules, resources, what is built."""

import json

import pytest

from pyflash import DType, Space, named_set
from pyflash.config import BACKWARD, FlashBackwardSm90Config, family_of, parse, rank
from pyflash.config.arch import ARCHS, Arch
from pyflash.config.backward import DROPOUT
from pyflash.config.sm90 import budgets
from pyflash.config.sm90_backward.resources import register_demand
from pyflash.config.sm90_backward.rules import RULES

TEXT = "(BF16, 128, 64, 128, 2): sm90_bwd+stages_3+overlap"
WIDE = FlashBackwardSm90Config.parse(TEXT)
NARROW = FlashBackwardSm90Config.parse("(BF16, 64, 128, 128, 2): sm90_bwd+stages_2+early_dP")


def test_text_of_a_config():
    for config, text in ((WIDE, TEXT), (NARROW, str(NARROW))):
        assert str(parse(text)) == text
        assert parse(config.to_cpp_struct()) == config
        assert FlashBackwardSm90Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config
        assert family_of(text).name == "sm90_backward"
    symbol = (
        "void pyflash::flash_backward_sm90_kernel<FlashBackwardSm90Config{(DType)15, 128, 64, 128, "
        "2, 3, (bool)1, (bool)0, (bool)0}, BackwardFeatures{...}>(...)"
    )
    assert parse(symbol) == WIDE
    with pytest.raises(ValueError, match="stages_N is missing"):
        parse("(BF16, 128, 64, 128, 2): sm90_bwd+overlap")


BROKEN = [
    ("keys_per_warpgroup", {"B_c": 64}, "not B_c = 64: make B_c 64 * n_consumers"),
    ("slabs", {"d_head": 80}, "d_head = 80 is divided into slabs of 32"),
    ("slabs", {"B_r": 96}, "B_r = 96 is divided into slabs of 64"),
    ("dQ_per_warpgroup", {"d_head": 64}, "a CTA has B_r * 64 = 4096: make B_r 128"),
    ("keys_per_warpgroup", {"d_head": 192, "B_c": 192}, "or 64, which all of them have"),
    ("dQ_per_warpgroup", {"d_head": 256, "B_c": 64}, "256 = 16384: make B_r 64 and B_c 128"),
    ("dQ_per_warpgroup", {"d_head": 256, "B_r": 128}, "128 = 16384: make B_r 64 and B_c 128"),
    ("dQ_per_warpgroup", {"d_head": 96, "B_r": 128}, "64 x 48 elements of a block's dQ"),
    ("dQ_per_warpgroup", {"d_head": 192}, "96 = 6144: make B_r 64 and B_c 64"),
    ("dQ_per_warpgroup", {"d_head": 192, "B_c": 64, "B_r": 128}, "make B_r 64 and B_c 64"),
    ("early_dP_is_an_order", {"early_dP": True}, "two orders of one loop's steps"),
    ("early_dP_is_an_order", {"overlap": False, "early_dP": True}, "up to d_head = 64, not at 128"),
    ("columns_in_parts", {"d_head": 256}, "use dQ_by_red = True and overlap = False"),
    ("overlap_needs_stages", {"stages": 1}, "use stages = 2 or more, or overlap = False"),
    ("smem", {"stages": 4}, "266240 bytes of shared memory, more than the 232448 that sm_90"),
    (
        "fragments",
        {"B_r": 128},
        "take 288 registers of a consumer thread, which has 240 with n_consumers = 2",
    ),
    ("supported_values", {"d_head": 64, "B_c": 64, "n_consumers": 1}, "n_consumers = 1 is"),
]


@pytest.mark.parametrize(("rule", "changes", "says"), BROKEN)
def test_each_rule_is_told_with_its_numbers(rule, changes, says):
    violations = WIDE.replace(**changes).violations(90)
    assert any(v.rule == rule and says in v.sentence for v in violations), violations


def test_every_rule_is_broken_above():
    names = {rule.__name__ for rule in RULES.rules} - {"architecture"}
    assert {*names, "supported_values"} == {rule for rule, _, _ in BROKEN}


@pytest.mark.parametrize("arch", ARCHS, ids=str)
def test_it_runs_on_sm_90_alone(arch):
    if arch.sm == 90:
        assert WIDE.violations(arch) == []
        assert WIDE.family.nvcc_arch(arch) == "90a"
    else:
        assert WIDE.violations(arch)[0].rule == "architecture"
    assert (arch.sm in WIDE.family.runs_on) == WIDE.is_legal(arch)


def test_shared_memory_is_the_tiles_the_numbers_and_the_barriers():
    K_and_V, Q_and_dO, dS, dQ = (
        2 * 128 * 128 * 2,
        3 * 2 * 64 * 128 * 2,
        2 * 128 * 64 * 2,
        64 * 128 * 4,
    )
    numbers, zeros = 3 * 2 * 64 * 4, 1024
    barriers_and_count = 200 + 32
    total = K_and_V + Q_and_dO + dS + dQ + numbers + zeros + barriers_and_count
    assert WIDE.smem_bytes == -(-total // 1024) * 1024
    assert NARROW.smem_bytes == (32 + 2 * 32 + 64 + 32 + 2 + 1 + 1) * 1024
    assert WIDE.replace(d_head=96).smem_bytes == (48 + 3 * 24 + 32 + 24 + 1.5 + 1 + 0.5) * 1024


def test_consumers_hold_dK_and_dV_and_two_blocks_of_scores():
    demand = register_demand(WIDE)
    assert (demand.dK, demand.dV, demand.S, demand.dP, demand.dQ, demand.P) == (
        64, 64, 32, 32, 32, 16,
    )  # fmt: skip
    assert register_demand(NARROW).peak == budgets(2, Arch.of(90)).consumer == 240
    of_96, of_192 = (register_demand(WIDE.replace(d_head=d)) for d in (96, 192))
    assert (of_96.dK, of_96.dV, of_96.dQ) == (48, 48, 24)
    assert (of_192.dK, of_192.dV, of_192.dQ) == (48, 48, 48)
    r = WIDE.resources(90)
    assert (r.registers, r.register_limit, r.num_ctas_per_sm) == (168, 240, 1)


def test_what_is_built_is_legal_canonical_and_preferred():
    defaults = named_set("backward")
    d_heads = (64, 96, 128, 192, 256)
    assert {(c.dtype, c.d_head) for c in defaults} == {(t, d) for t in DType for d in d_heads}
    built = {d: {c for c in defaults if c.d_head in d} for d in ((64, 128), (96, 192))}
    assert {*defaults} & {*named_set("all")} == built[64, 128]
    assert {*defaults} & {*named_set("head_dims")} == built[96, 192]
    for config in defaults:
        assert config.is_legal(90)
        assert not config.warnings(90)
        assert config.canonical() == config
        of_set = DROPOUT if config in named_set("dropout") else ()
        built = {*config.family.built_features(config)}
        if config.d_head > 64:
            assert built == {*BACKWARD.built, *of_set}
        else:  # a config for each way to add dQ
            by_tma = {f for f in BACKWARD.built if f.deterministic or f.softcap}
            assert built == ({*BACKWARD.built} - by_tma if config.dQ_by_red else by_tma)
    assert sorted(defaults, key=rank) == defaults


def test_a_space_has_what_rules_leave():
    legal = list(Space(family="sm90_backward", dtype="BF16").legal(90))
    assert {WIDE, NARROW} < set(legal)
    assert {(c.d_head, c.B_r, c.B_c, c.n_consumers) for c in legal} == {
        (64, 128, 128, 2), (96, 64, 128, 2), (128, 64, 128, 2), (192, 64, 64, 2), (256, 64, 128, 2),
    }  # fmt: skip
    assert not any(config.warnings(90) for config in legal)
