"""Every rule of `violations`, alone; the warning; the filter of tuning runs."""

import pytest
from hypothesis import given
from support.strategies import LADDER_BEST, near_configs

from pyflash.config.arch import ARCHS
from pyflash.config.sm80_forward.rules import RULES

WHOLE = {"Q_mma_load_K_tiles": 0, "K_mma_load_K_tiles": 0, "V_mma_load_K_tiles": 0}

# rule, changes to LADDER_BEST that break it and no other rule on sm_80, what its sentence says
BROKEN = [
    ("rows_per_warp", {"n_warps": 8}, "B_r / n_warps = 64 / 8 rows"),
    ("multiple_of_16", {"d_head": 72, "B_c": 128, "swizzled": False}, "d_head = 72"),
    ("multiple_of_16", {"B_c": 40, "n_warps": 2}, "B_c = 40"),
    ("load_count", {"V_mma_load_K_tiles": 1}, "V_mma_load_K_tiles = 1"),
    ("load_count", {"V_mma_load_K_tiles": 6}, "V_mma_load_K_tiles = 6"),
    ("load_count", {"K_mma_load_K_tiles": 12}, "K_mma_load_K_tiles = 12"),
    (
        "load_count_limit",
        {"V_mma_load_K_tiles": 16},
        "128 columns, more than B_c = 64: use at most 8",
    ),
    ("load_count_limit", {"K_mma_load_K_tiles": 32}, "more than d_head = 128: use at most 16"),
    (
        "load_count_limit",
        {"V_mma_load_K_tiles": 8, "mma_double_buffer_loads": True},
        "64 columns, more than half of B_c = 64: use at most 4, or no double buffering",
    ),
    (
        "equal_stages",
        {"d_head": 96, "K_mma_load_K_tiles": 8},
        "= 8 tiles at a time do not divide the 12 tiles of 8 columns of d_head = 96: use at most 4",
    ),
    ("equal_stages", {"d_head": 192, "K_mma_load_K_tiles": 16}, "= 192: use at most 8"),
    (
        "load_count_limit",
        {"d_head": 96, "K_mma_load_K_tiles": 8, "mma_double_buffer_loads": True},
        "more than half of d_head = 96: use at most 4, or no double buffering",
    ),
    ("equal_Q_and_K_loads", {"Q_mma_load_K_tiles": 4}, "Q_mma_load_K_tiles = 4"),
    ("equal_Q_and_K_loads", {"Q_mma_load_K_tiles": 2, "K_mma_load_K_tiles": 0}, "= 0 differ"),
    ("eager_needs_async", {"async_copy": False}, "eager_load_blocks = True"),
    (
        "stages_need_eager",
        {"kv_stages": 2, "eager_load_blocks": False},
        "kv_stages = 2 keeps that many blocks of K and V ahead",
    ),
    (
        "threshold_needs_optimized_softmax",
        {"rescale_threshold": True, "optimized_softmax": False},
        "set optimized_softmax = True, or rescale_threshold = False",
    ),
    ("swizzle_atom", {"d_head": 80}, "8 rows x 32 columns does not tile d_head = 80"),
    (
        "copy_tile",
        {"B_r": 128, "B_c": 16, "d_head": 64, "n_warps": 8},
        "copy 32 rows x 64 columns at a time, which do not tile B_c = 16",
    ),
    (
        "smem",
        {"B_r": 128, "B_c": 128, "d_head": 256, "n_warps": 8},
        "196608 bytes of shared memory are more than the 166912 that sm_80",
    ),
    ("accumulators", {"B_r": 128, "B_c": 128}, "S (128) and O (128) alone take 256 registers"),
    ("register_file", {"B_r": 256, "B_c": 128, "n_warps": 16}, "512 threads of about"),
    ("supported_values", {"B_r": 192, "B_c": 32}, "B_r = 192 is not supported: use 64 or 128"),
    ("supported_values", {"B_c": 96}, "B_c = 96 is not supported: use 32, 64 or 128"),
    ("supported_values", {"n_warps": 2}, "n_warps = 2 is not supported: use 4 or 8"),
    (
        "supported_values",
        {"d_head": 160},
        "d_head = 160 is not supported: use 32, 64, 96, 128, 192 or 256",
    ),
]


@pytest.mark.parametrize(("rule", "changes", "says"), BROKEN)
def test_each_rule_alone(rule, changes, says):
    violations = LADDER_BEST.replace(**changes).violations("sm_80")
    assert [violation.rule for violation in violations] == [rule]
    assert says in violations[0].sentence


def test_every_rule_is_broken_above():
    names = [rule.__name__ for rule in RULES.rules]
    assert len(names) == len(set(names))
    assert {*names, "supported_values"} == {rule for rule, _, _ in BROKEN}


def test_every_broken_rule_is_told():
    config = LADDER_BEST.replace(
        n_warps=8, async_copy=False, V_mma_load_K_tiles=3, Q_mma_load_K_tiles=4
    )
    assert [violation.rule for violation in config.violations(80)] == [
        "rows_per_warp",
        "load_count",
        "equal_Q_and_K_loads",
        "eager_needs_async",
    ]
    both = LADDER_BEST.replace(K_mma_load_K_tiles=3, V_mma_load_K_tiles=3)
    assert [violation.rule for violation in both.violations(80)] == ["load_count", "load_count"]


@pytest.mark.parametrize(
    ("d_head", "B_c", "refused_on"), [(128, 128, []), (256, 64, ["sm_86", "sm_89", "sm_120"])]
)
def test_smem_limit_depends_on_the_architecture(d_head, B_c, refused_on):
    config = LADDER_BEST.replace(d_head=d_head, B_r=128, B_c=B_c, n_warps=8)
    refused = [arch.name for arch in ARCHS if "smem" in [v.rule for v in config.violations(arch)]]
    assert refused == refused_on


@pytest.mark.parametrize("arch", ARCHS, ids=str)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"B_r": 128, "n_warps": 8},
        {"d_head": 32},
        {"d_head": 64},
        {"d_head": 96, "K_mma_load_K_tiles": 4},
        {"d_head": 96, "K_mma_load_K_tiles": 4, "mma_double_buffer_loads": True},
        {"d_head": 192, "K_mma_load_K_tiles": 8, "mma_double_buffer_loads": True},
        {"d_head": 256},
        {"async_copy": False, "eager_load_blocks": False},
        {"swizzled": False, "optimized_softmax": False},
        {"K_mma_load_K_tiles": 16, "V_mma_load_K_tiles": 8},
        {"K_mma_load_K_tiles": 8, "V_mma_load_K_tiles": 4, "mma_double_buffer_loads": True},
        {**WHOLE, "mma_double_buffer_loads": True},
    ],
)
def test_legal_configs(changes, arch):
    assert LADDER_BEST.replace(**changes).violations(arch) == []


@given(near_configs)
def test_every_legal_config_fits_every_sm_at_least_once(config):
    for arch in ARCHS:
        if not config.violations(arch):
            assert config.num_ctas_per_sm(arch) >= 1


@given(near_configs)
def test_a_legal_config_has_whole_stages(config):
    """What the kernel walks: each stage as many mma steps of 16 columns as the others."""
    loads = [(config.K_mma_load_K_tiles, config.d_head), (config.V_mma_load_K_tiles, config.B_c)]
    if not config.violations(90):
        for count, columns in loads:
            n_stages, rest = divmod(columns // 16, count // 2) if count else (1, 0)
            assert rest == 0
            assert n_stages >= 2 or not (count and config.mma_double_buffer_loads)


def test_a_predicted_spill_is_a_warning_and_no_violation():
    config = LADDER_BEST.replace(B_r=128)
    assert config.violations(90) == []
    assert [warning.rule for warning in config.warnings(90)] == ["spill"]
    demand = config.resources(90).register_demand
    assert f"about {demand} registers" in config.warnings(90)[0].sentence
    assert LADDER_BEST.warnings(90) == []


STAGED = {"Q_mma_load_K_tiles": 2}


@pytest.mark.parametrize(
    ("changes", "tried"),
    [
        ({}, True),
        ({"async_copy": False}, False),
        ({"async_copy": False, "eager_load_blocks": False}, True),
        ({"Q_mma_load_K_tiles": 4, "B_r": 128}, False),
        ({"Q_mma_load_K_tiles": 2, "K_mma_load_K_tiles": 0, "B_r": 128}, False),
        # B_r = 64
        ({"n_warps": 8}, False),
        ({"B_c": 32}, False),
        ({"B_c": 32, **STAGED}, True),
        ({"B_c": 64, **STAGED}, False),
        ({"B_c": 128}, True),
        ({"B_c": 128, **STAGED}, True),
        # B_r = 128
        ({"B_r": 128}, False),
        ({"B_r": 128, **STAGED}, True),
        ({"B_r": 128, "n_warps": 8, **STAGED}, True),
    ],
)
def test_should_autotune_config(changes, tried):
    assert LADDER_BEST.replace(**changes).should_autotune_config() is tried
