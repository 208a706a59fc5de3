"""The SM80 backward family: text, rules, resources, what is built."""

import json

import pytest

from pyflash import DType, Space, named_set
from pyflash.config import BACKWARD, FlashBackwardKernelConfig, family_of, parse, rank
from pyflash.config.arch import ARCHS
from pyflash.config.sm80_backward.resources import register_demand
from pyflash.config.sm80_backward.rules import RULES

TEXT = "(BF16, 128, 64, 128, 8): sm80_bwd+stages_2"
WIDE = FlashBackwardKernelConfig.parse(TEXT)


def test_text_of_a_config():
    assert str(parse(TEXT)) == TEXT
    assert parse(WIDE.to_cpp_struct()) == WIDE
    assert FlashBackwardKernelConfig.from_dict(json.loads(json.dumps(WIDE.to_dict()))) == WIDE
    assert family_of(TEXT).name == "sm80_backward"
    symbol = (
        "void pyflash::flash_backward_kernel<FlashBackwardKernelConfig{(DType)15, 128, 64, 128, 8, "
        "2, 16}, BackwardFeatures{...}>(...)"
    )
    assert parse(symbol) == WIDE


BROKEN = [
    ("keys_per_warp", {"B_c": 48}, "make B_c = 48 a divisor of warp_keys * n_warps = 128"),
    ("shared_keys", {"B_r": 32, "B_c": 32}, "the 4 warps of the same keys share the B_r = 32"),
    ("dQ_per_warp", {"d_head": 64}, "make B_r * d_head a multiple of 1024 * n_warps"),
    ("copy_tile", {"B_r": 16}, "which do not tile B_r = 16: make B_r a multiple of 32"),
    ("smem", {"d_head": 256}, "280576 bytes of shared memory, more than the 166912 that sm_80"),
    ("accumulators", {"d_head": 256}, "dV (128), S (32) and dP (32) alone take 320 registers"),
    ("register_file", {"B_r": 256, "B_c": 256, "n_warps": 16}, "512 threads of about 256"),
    (
        "supported_values",
        {"d_head": 64, "stages": 4, "B_c": 64, "n_warps": 4},
        "stages = 4 is not supported",
    ),
]


@pytest.mark.parametrize(("rule", "changes", "says"), BROKEN)
def test_each_rule_is_told_with_its_numbers(rule, changes, says):
    violations = WIDE.replace(**changes).violations(80)
    assert any(v.rule == rule and says in v.sentence for v in violations), violations


def test_every_rule_is_broken_above():
    names = {rule.__name__ for rule in RULES.rules}
    assert {*names, "supported_values"} == {rule for rule, _, _ in BROKEN}


def test_registers_are_the_tiles_of_a_warp():
    demand = register_demand(WIDE)
    assert (demand.dK, demand.dV, demand.S, demand.dP, demand.dQ) == (64, 64, 32, 32, 32)
    shared = register_demand(WIDE.replace(d_head=256, B_c=64, stages=1))
    assert (shared.dK, shared.dV, shared.S, shared.dP) == (64, 64, 16, 16)
    assert (shared.dQ, WIDE.replace(B_c=64, n_warps=4).columns_dQ) == (64, 64)


def test_columns_of_dQ_that_do_not_deal_out_leave_a_warp_of_four_idle():
    narrow = FlashBackwardKernelConfig.parse(
        "(BF16, 96, 64, 128, 8): sm80_bwd+stages_2+warp_keys_32"
    )
    assert (narrow.columns_dQ, register_demand(narrow).dQ) == (32, 32)
    wide = narrow.replace(d_head=192, B_c=64, warp_keys=16)
    assert (wide.columns_dQ, register_demand(wide).dQ) == (64, 64)
    assert narrow.is_legal(90)
    assert wide.is_legal(90)
    # Half of the warps would idle.
    assert any(v.rule == "dQ_per_warp" for v in narrow.replace(d_head=64).violations(90))


def test_a_warp_of_more_keys_has_as_many_sums():
    two_tiles = WIDE.replace(warp_keys=32)
    assert str(two_tiles) == f"{TEXT}+warp_keys_32"
    assert parse(two_tiles.to_cpp_struct()) == two_tiles
    assert two_tiles.companions == 2 * WIDE.companions
    assert register_demand(two_tiles) == register_demand(WIDE)


def test_what_is_built_is_legal_canonical_and_preferred():
    configs = named_set("backward_sm80")
    assert {(c.dtype, c.d_head) for c in configs} == {
        (t, d) for t in DType for d in (64, 96, 128, 192, 256)
    }
    assert not {*configs} & {*named_set("all"), *named_set("backward")}
    for config in configs:
        assert config.is_legal(80)
        assert config.is_legal(90)
        assert config.canonical() == config
        assert config.family.built_features(config) == BACKWARD.built
        assert rank(config) > max(map(rank, named_set("backward")))


@pytest.mark.parametrize("arch", ARCHS, ids=str)
def test_every_architecture_has_a_config_of_each_d_head(arch):
    legal = {c.d_head for c in named_set("backward_sm80") if c.is_legal(arch)}
    assert legal == {64, 96, 128, 192, 256}


def test_a_space_has_what_rules_leave():
    legal = set(Space(family="sm80_backward", dtype="BF16").legal(80))
    assert WIDE in legal
    assert all(config.smem_bytes <= 163 * 1024 for config in legal)
