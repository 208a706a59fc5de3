"""The named sets, the order of preference, and spaces that users write."""

import itertools

import pytest
from support.strategies import LADDER_BEST

from pyflash import DType, Space, from_environment, named_set
from pyflash.codegen.build import that_run_on
from pyflash.config import FAMILIES
from pyflash.config.arch import ARCHS
from pyflash.config.sets import SET_NAMES, UNRANKED, rank
from pyflash.config.sm80_forward.rules import SUPPORTED
from pyflash.config.sm80_forward.sets import DEFAULTS, HEAD_DIMS, PROG

COUNTS = {
    "tune": 80,
    "prog": 7,
    "prog_all": 56,
    "64,64": 32,
    "64,32": 16,
    "128,32": 16,
    "128,64": 16,
    "all": 55,
    "sm90": 24,
    "head_dims": 30,
    "invariant": 26,
    "backward": 12,
    "backward_sm80": 18,
    "dropout": 42,
}


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_counts(name, count):
    assert len(named_set(name)) == len(set(named_set(name))) == count


def test_every_name_is_counted():
    assert set(SET_NAMES) == set(COUNTS)


@pytest.mark.parametrize("dtype", DType)
def test_tune_has_forty_of_each_dtype(dtype):
    tune = [config for config in named_set("tune") if config.dtype == dtype]
    assert len(tune) == 40
    assert all(config.should_autotune_config() for config in tune)
    assert {config.d_head for config in tune} == {128}


def test_block_size_sets_partition_tune():
    parts = [config for name in COUNTS if "," in name for config in named_set(name)]
    assert sorted(parts) == sorted(named_set("tune"))
    assert {(config.B_r, config.B_c) for config in named_set("128,32")} == {(128, 32)}


def test_prog_is_the_ladder_in_order():
    assert [str(config).removeprefix("(FP16, 128, 64, 64, 4): ") for config in PROG] == [
        "async+load_0_0_0_tiles",
        "async+swizzled+load_0_0_0_tiles",
        "async+eager+swizzled+load_0_0_0_tiles",
        "async+eager+swizzled+load_2_2_2_tiles",
        "async+eager+swizzled+load_2_2_2_tiles+buffer",
        "async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
        "async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    ]
    assert named_set("prog") == PROG


def test_prog_all_is_the_ladder_at_eight_tiles():
    tiles = {(config.B_r, config.B_c, config.n_warps) for config in named_set("prog_all")}
    large = {(128, B_c, n_warps) for B_c in (128, 64, 32) for n_warps in (4, 8)}
    assert tiles == large | {(64, 64, 4), (64, 32, 4)}


@pytest.mark.parametrize("name", sorted(set(SET_NAMES) - {"prog_all", "backward_sm80", "dropout"}))
@pytest.mark.parametrize("arch", ARCHS, ids=str)
def test_sets_are_legal(name, arch):
    """Wherever the GPU has the family's instructions, which a family may limit to one."""
    there = [c for c in named_set(name) if c.family.runs_on in ((), (arch.sm,))]
    assert [config for config in there if config.violations(arch)] == []


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("tag", [family.tag for family in FAMILIES])
def test_dropout_is_built_for_every_d_head(tag, dtype):
    """In each family, under any mask."""
    configs = [c for c in named_set("dropout") if (c.tag, c.dtype) == (tag, dtype)]
    for d_head, mask in itertools.product(range(8, 257, 8), ("", "+right_window", "+left_window")):
        assert any(
            features.covers(features.parse(f"dropout{mask}{_narrower(features, config, d_head)}"))
            for config in configs
            if config.d_head >= d_head
            for features in config.family.built_features(config)
        ), (d_head, mask)


def _narrower(features, config, d_head):
    """What a config needs for fewer columns than it has."""
    asks = d_head < config.d_head and "predicated_head_dim" in features.names()
    return "+predicated_head_dim" if asks else ""


def test_what_of_a_set_runs_on_a_gpu():
    everything = named_set("all")
    assert that_run_on(everything, [80, 90]) == that_run_on(everything, ["sm_90"]) == everything
    assert that_run_on(everything, [80, 120]) == [c for c in everything if c.tag == ""]
    assert that_run_on(named_set("sm90"), [80]) == []


@pytest.mark.parametrize("arch", ARCHS, ids=str)
def test_prog_all_is_legal_but_for_too_large_accumulators(arch):
    refused = [config for config in named_set("prog_all") if config.violations(arch)]
    assert len(refused) == 7
    assert {(config.B_r, config.B_c, config.n_warps) for config in refused} == {(128, 128, 4)}
    assert {v.rule for config in refused for v in config.violations(arch)} == {"accumulators"}


def test_default_is_prog_and_the_best_of_each_dtype_head_and_block_size():
    assert set(named_set("all")) == {
        *DEFAULTS,
        *PROG,
        *named_set("sm90"),
        *(config for config in named_set("backward") if config.d_head in (64, 128)),
    }
    covered = {(c.dtype, c.d_head, c.B_r, c.B_c) for c in DEFAULTS}
    assert covered >= {
        (t, d, r, c) for t in DType for d in (64, 128) for r in (64, 128) for c in (32, 64)
    }
    assert all(config == config.canonical() for config in DEFAULTS)


def test_head_dims_adds_the_head_dimensions_that_the_default_lacks():
    built = {c.d_head for c in DEFAULTS}
    assert {c.d_head for c in HEAD_DIMS} == set(SUPPORTED["d_head"]) - built
    for d_head in {c.d_head for c in HEAD_DIMS}:
        blocks = {(c.dtype, c.B_r) for c in HEAD_DIMS if c.d_head == d_head}
        assert blocks == {(dtype, B_r) for dtype in DType for B_r in (64, 128)}
    assert all(config == config.canonical() for config in HEAD_DIMS)


def test_rank_prefers_the_earlier_default():
    ranked = [*DEFAULTS, *HEAD_DIMS]
    assert [rank(config) for config in ranked] == list(range(len(ranked)))
    assert rank(PROG[0]) == UNRANKED > len(ranked)
    one_stage = LADDER_BEST.replace(K_mma_load_K_tiles=16)
    assert rank(one_stage) == rank(one_stage.canonical())


def test_unknown_set_lists_the_names():
    with pytest.raises(ValueError, match="'tuned'") as error:
        named_set("tuned")
    assert all(repr(name) in str(error.value) for name in SET_NAMES)


def test_environment(monkeypatch):
    monkeypatch.delenv("PYFLASH_KERNELS", raising=False)
    monkeypatch.delenv("KERNELS", raising=False)
    assert from_environment() == named_set("all")
    monkeypatch.setenv("KERNELS", "64,64")
    assert from_environment() == named_set("64,64")
    monkeypatch.setenv("PYFLASH_KERNELS", "prog")
    assert from_environment() == named_set("prog")
    several = named_set("prog")[:2]
    monkeypatch.setenv("PYFLASH_KERNELS", ";".join(map(str, several)))
    assert from_environment() == several
    monkeypatch.setenv("PYFLASH_KERNELS", "(FP16, 128")
    with pytest.raises(ValueError, match="FP16, 128"):
        from_environment()
    monkeypatch.setenv("PYFLASH_KERNELS", "everything")
    with pytest.raises(
        ValueError, match="PYFLASH_KERNELS is 'everything': expected one of all, prog"
    ):
        from_environment()


SPACE = Space(**LADDER_BEST.to_dict() | {"B_r": [128, 64], "B_c": (64, 32), "n_warps": {4, 8}})


def test_space_is_the_product_in_ascending_order():
    configs = list(SPACE)
    assert len(SPACE) == len(configs) == 8
    assert configs == sorted(configs)
    assert LADDER_BEST in configs


def test_a_field_left_out_takes_every_supported_value():
    values = LADDER_BEST.to_dict()
    del values["dtype"], values["n_warps"], values["V_mma_load_K_tiles"], values["swizzled"]
    assert len(Space(**values)) == 2 * 2 * 4 * 2


def test_repeated_values_count_once():
    assert len(Space(**LADDER_BEST.to_dict() | {"B_c": [64, 64]})) == 1


def test_filter_and_legal_do_not_change_the_space():
    assert [config.B_c for config in SPACE.filter(lambda c: c.B_c == 32)] == [32] * 4
    legal = list(SPACE.legal("sm_90"))
    assert legal == [config for config in SPACE if not config.violations("sm_90")]
    assert (len(legal), len(SPACE)) == (6, 8)
    assert len(SPACE.filter(lambda c: c.B_r == 64).legal(90)) == 2


def test_predicates_run_once_for_each_config():
    seen = []
    space = SPACE.filter(lambda config: not seen.append(config))
    assert seen == []
    assert list(space) == list(space) == sorted(seen)
    assert (len(space), len(seen)) == (8, 8)


def test_legal_looks_at_supported_values_only():
    wide = Space(**LADDER_BEST.to_dict() | {"B_r": [64, 96, 128, 192], "d_head": [128, 160]})
    seen = []
    assert list(wide.legal(90).filter(lambda config: not seen.append(config))) == seen
    assert {(config.B_r, config.d_head) for config in seen} == {(64, 128), (128, 128)}
    assert len(wide.explain(90)) == 6


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_legal_makes_no_config_that_breaks_rules(family, monkeypatch):
    values = {"dtype": "FP16", "d_head": [64, 128]}
    space = Space(family=family, **values)
    expected = [config for config in space if config.is_legal(90)]
    made = []
    check = family.config_type.__post_init__
    monkeypatch.setattr(
        family.config_type, "__post_init__", lambda config: made.append(config) or check(config)
    )
    assert list(space.legal(90)) == expected == made
    assert len(expected) < len(space) / 2


def test_an_error_in_a_rule_is_no_field_that_is_missing(monkeypatch):
    def broken(config, arch):
        yield config.no_such_field

    rules = FAMILIES[0].rules
    monkeypatch.setattr(rules, "rules", [*rules.rules, broken])
    with pytest.raises(AttributeError, match="no_such_field"):
        len(SPACE.legal(90))


def test_the_size_of_a_whole_space_is_known_without_its_configs():
    assert len(Space()) == 2 * 6 * 2 * 3 * 2 * 2**3 * 4**3 * 2**2


def test_repr_tells_what_was_chosen_and_how_many_configs():
    assert repr(Space()) == f"<Space of sm80_forward: {len(Space())} configs>"
    chosen = Space(dtype="FP16", d_head=64, B_c=[64, 32], swizzled=True)
    n = len(chosen)
    text = "dtype=FP16; d_head=64; B_c=32, 64; swizzled=True"
    assert repr(chosen) == f"<Space of sm80_forward: {text}; {n} configs>"
    assert repr(chosen.legal(90)).endswith(f"; {n} configs before: legal on sm_90>")
    filtered = chosen.legal(90).filter(bool).legal(80).filter(bool)
    assert repr(filtered).endswith(
        f"; {n} configs before: legal on sm_90, legal on sm_80, 2 filters>"
    )


def test_explain_tells_every_refusal():
    refusals = SPACE.explain("sm_90")
    assert [refusal.config for refusal in refusals] == [
        config for config in SPACE if config.violations("sm_90")
    ]
    assert {(config.B_r, config.n_warps) for config, _ in refusals} == {(64, 8)}
    assert {v.rule for _, violations in refusals for v in violations} == {"rows_per_warp"}
    assert SPACE.legal("sm_90").explain("sm_90") == []


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        ({"stages": 2}, TypeError, "stages"),
        ({"B_r": [64, "big"]}, TypeError, "B_r must be int, not 'big'"),
        ({"dtype": "FP8"}, TypeError, "dtype must be DType, not 'FP8'"),
        ({"n_warps": 0}, ValueError, "n_warps = 0"),
    ],
)
def test_space_refuses_what_no_config_can_hold(values, error, says):
    with pytest.raises(error, match=says):
        Space(**values)
