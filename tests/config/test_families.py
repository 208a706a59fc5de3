"""A second family: all its forms follow from the description of its fields."""

import copy
import json
import pickle
import re
from dataclasses import dataclass

import pytest
from support.strategies import LADDER_BEST
from support.toy_family import TOY, TOY_FAMILY, ToyKernelConfig

from pyflash import DType, FlashForwardKernelConfig, Space
from pyflash.config import FAMILIES, KernelConfig, family, parse, rank, sets
from pyflash.config.arch import ARCHS, Arch, Targets
from pyflash.config.fields import describe, flag, number, tile

RICH = TOY.replace(stages=3, multicast=True)


@pytest.fixture
def two_families(monkeypatch):
    both = (*FAMILIES, TOY_FAMILY)
    monkeypatch.setattr(family, "FAMILIES", both)
    monkeypatch.setattr(sets, "FAMILIES", both)
    names = dict.fromkeys(name for family in both for name in family.sets)
    monkeypatch.setattr(sets, "SET_NAMES", tuple(names))
    return both


# Text


def test_short_form():
    assert str(TOY) == "(BF16, 128, 64, 32): toy+swizzled+load_0_2_tiles"
    assert str(RICH) == "(BF16, 128, 64, 32): toy+swizzled+load_0_2_tiles+stages_3+multicast"
    for config in (TOY, RICH, TOY.replace(swizzled=False)):
        assert ToyKernelConfig.parse(str(config)) == config
    assert ToyKernelConfig.parse(f"{TOY}+stages_1") == TOY
    assert describe(ToyKernelConfig).form == (
        "(dtype, d_head, B_r, B_c): toy[+swizzled]+load_Q_K_tiles[+stages_N][+multicast]"
    )


def test_cpp_literal():
    assert TOY.to_cpp_struct() == (
        "ToyKernelConfig{.dtype = DType::BF16, .d_head = 128, .B_r = 64, .B_c = 32, "
        ".swizzled = true, .Q_tiles = 0, .K_tiles = 2}"
    )
    assert RICH.to_cpp_struct() == (f"{TOY.to_cpp_struct()[:-1]}, .stages = 3, .multicast = true}}")
    assert ToyKernelConfig.parse(TOY.to_cpp_struct()) == TOY
    assert ToyKernelConfig.parse(RICH.to_cpp_struct()) == RICH
    multicast = TOY.replace(multicast=True)
    assert ToyKernelConfig.parse(multicast.to_cpp_struct()) == multicast


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("(DType)15, 128, 64, 32, true, 0, 2, 3, true", RICH),
        ("(DType)15, 128, 64, 32, true, 0, 2, 3", RICH.replace(multicast=False)),
        ("(DType)15, 128, 64, 32, true, 0, 2", TOY),
    ],
)
def test_symbols_may_lack_what_has_defaults(values, expected):
    symbol = f"void toy_forward_kernel<ToyKernelConfig{{{values}}}>(ForwardParams)"
    assert ToyKernelConfig.parse(symbol) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("(BF16, 128, 64, 32): swizzled+load_0_2_tiles", "toy is missing"),
        ("(BF16, 128, 64, 32): swizzled+toy+load_0_2_tiles", "toy is missing"),
        ("(BF16, 128, 64, 32): toy+load_0_2_tiles+stages_0", "stages = 0: expected at least 1"),
        ("(BF16, 128, 64, 32): toy+load_0_2_tiles+stages_two", "unknown word 'stages_two'"),
        ("(BF16, 128, 64, 32): toy+stages_2+load_0_2_tiles", "load_Q_K_tiles is missing"),
        (
            "(BF16, 128, 64, 32): toy+load_0_2_tiles+multicast+stages_2",
            "'stages_N' is repeated or out of order",
        ),
        ("ToyKernelConfig{15, 128, 64, 32, 1, 0}", "has 6 values, expected 7 to 9"),
        ("ToyKernelConfig{.dtype = DType::BF16, .d_head = 128}", ".B_r is missing"),
        (TOY.to_cpp_struct()[:-1] + ", .stages = 2, .stages = 2}", "'.stages = 2' is unknown"),
        (str(LADDER_BEST), "has 5 values, expected 4"),
        (LADDER_BEST.to_cpp_struct(), "FlashForwardKernelConfig is not ToyKernelConfig"),
    ],
)
def test_errors_name_the_offending_text(text, says):
    with pytest.raises(ValueError, match=says):
        ToyKernelConfig.parse(text)


def test_configs_of_another_family_are_refused_in_words():
    with pytest.raises(ValueError, match="ToyKernelConfig is not FlashForwardKernelConfig"):
        FlashForwardKernelConfig.parse(TOY.to_cpp_struct())
    text = "(BF16, 128, 64, 32, 4): toy+load_0_2_2_tiles"
    with pytest.raises(ValueError, match=r"'toy' .* the words of FlashForwardKernelConfig are"):
        FlashForwardKernelConfig.parse(text)
    with pytest.raises(ValueError, match="family 'toy' is not that of FlashForwardKernelConfig"):
        FlashForwardKernelConfig.from_dict(LADDER_BEST.to_dict() | {"family": "toy"})


def test_json_and_pickle():
    record = json.loads(json.dumps(RICH.to_dict()))
    assert record["family"] == "toy"
    assert ToyKernelConfig.from_dict(record) == RICH == pickle.loads(pickle.dumps(RICH))
    del record["stages"], record["multicast"]
    assert ToyKernelConfig.from_dict(record) == TOY
    del record["K_tiles"]
    with pytest.raises(TypeError, match="K_tiles"):
        ToyKernelConfig.from_dict(record)


def test_a_description_that_could_not_be_read_back_is_refused():
    with pytest.raises(TypeError, match="must be False"):
        flag("fast", default=True)

    @dataclass(frozen=True, slots=True)
    class TooFewPlaceholders(ToyKernelConfig):
        extra: int = number("extra", default=0)

    with pytest.raises(TypeError, match="'extra' does not fit extra"):
        describe(TooFewPlaceholders)


# What is asked of every family


ESSENTIAL = ("dtype", "d_head", "B_r", "B_c")
PAIRS = [(a, b) for a in FAMILIES for b in FAMILIES]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_config_needs_its_tile_alone(family):
    config = family.ranked[0]
    values = {name: getattr(config, name) for name in ESSENTIAL}
    made = family.config_type(**values)
    assert {name: getattr(made, name) for name in ESSENTIAL} == values
    assert list(family.config_type.product(**values)) == [made]
    for name in ESSENTIAL:
        with pytest.raises(TypeError, match=f"missing .*{name}"):
            family.config_type(**{n: v for n, v in values.items() if n != name})
    # Texts say all, as before: what one leaves out is no guess.
    assert family.config_type.parse(str(made)) == made
    fields = describe(family.config_type).fields
    for name in (name for name, field in fields.items() if field.required):
        record = {n: v for n, v in made.to_dict().items() if n != name}
        with pytest.raises(TypeError, match=f"missing fields .'{name}'"):
            family.config_type.from_dict(record)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_field_with_another_name_is_refused_with_the_nearest(family):
    config = family.ranked[0]
    for name in config.field_types():
        wrong = name[:-1] + name[-1] * 2
        sentence = rf"has no field '{wrong}' \(did you mean '{name}'\?\)"
        for make in (config.replace, family.config_type.product, family.config_type):
            with pytest.raises(TypeError, match=sentence):
                make(**{wrong: 1})
        with pytest.raises(TypeError, match=sentence):
            Space(family=family, **{wrong: 1})


@pytest.mark.parametrize(("family", "other"), PAIRS, ids=str)
def test_a_field_or_word_of_another_family_is_told_as_such(family, other):
    config, own = family.ranked[0], describe(family.config_type)
    theirs = describe(other.config_type)
    for name in theirs.fields.keys() - own.fields.keys():
        with pytest.raises(TypeError) as refused:
            config.replace(**{name: 1})
        found = re.search(
            r"did you mean|which is one of (\S+ and )*" + theirs.struct, str(refused.value)
        )
        assert found
    known = {word.form for word in own.words}
    for word in theirs.words:
        if word.form in known or not word.is_flag:
            continue
        with pytest.raises(ValueError, match=f"'{word.form}' is a word of ") as refused:
            parse(f"{config}+{word.form}")
        assert theirs.form in str(refused.value)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_what_is_no_config_is_told_the_nearest_form_and_every_family(family):
    for text in ("", "fast", "FP16, 128", "(FP16, 128", "x" * 10_000):
        with pytest.raises(ValueError, match="is no config") as refused:
            parse(text)
        assert family.struct in str(refused.value)
        assert len(str(refused.value)) < 500
    own = str(family.ranked[0]).replace(":", ";")
    with pytest.raises(ValueError, match="is no config") as refused:
        parse(own)
    assert describe(family.config_type).form in str(refused.value)


def test_text_finds_its_family(two_families):
    for config in (LADDER_BEST, TOY, RICH):
        for text in (str(config), f"| {config} | 1.5 |", config.to_cpp_struct()):
            assert family.parse(text) == config
            assert family.family_of(text) is config.family
        assert family.from_dict(json.loads(json.dumps(config.to_dict()))) == config
        assert family.find_family(config.family.name) is family.find_family(config.tag)
    with pytest.raises(ValueError, match=r"known ones are sm80_forward, .*, toy_forward"):
        family.find_family("sm70_forward")


@pytest.mark.parametrize("read", [family.parse, family.parse_short_form])
def test_the_word_of_no_family_is_unknown(two_families, read):
    says = r"unknown word 'sm70' .* start with sm80_bwd or .* or toy"
    with pytest.raises(ValueError, match=says):
        read("(BF16, 128, 64, 32): sm70+load_0_2_tiles")


def test_configs_of_different_families_are_ordered_by_family(two_families):
    configs = [TOY, LADDER_BEST, RICH, LADDER_BEST.replace(B_r=128)]
    assert sorted(configs) == [LADDER_BEST, LADDER_BEST.replace(B_r=128), TOY, RICH]
    assert TOY != LADDER_BEST
    assert [f.tag for f in two_families] == sorted(f.tag for f in two_families)


def test_sets_and_ranks_are_those_of_all_families(two_families):
    prog = sets.named_set("prog")
    assert [type(c) for c in prog] == [FlashForwardKernelConfig] * 7 + [ToyKernelConfig]
    assert sets.named_set("toys") == [TOY, TOY.replace(stages=2)]
    assert rank(TOY) == -10
    assert rank(RICH) == sets.UNRANKED
    assert rank(str(LADDER_BEST)) == rank(LADDER_BEST)


def test_a_space_is_of_one_family(two_families):
    space = Space(family="toy_forward", dtype="FP16")
    assert len(space) == 2 * 1 * 2 * 2 * 1 * 2  # stages and multicast have defaults
    assert all(isinstance(config, ToyKernelConfig) for config in space)
    assert len(space.legal(90)) == len(space)
    assert len(space.legal(80)) == 0
    assert Space(**RICH.to_dict()).family is TOY_FAMILY
    assert list(Space(**RICH.to_dict())) == [RICH]
    with pytest.raises(TypeError, match="n_warps"):
        Space(family=TOY_FAMILY, n_warps=4)


def test_a_family_says_where_it_runs_and_for_which_target():
    assert TOY.violations(90) == []
    assert [v.rule for v in TOY.violations(80)] == ["architecture"]
    assert TOY.ctas_table() == [
        (arch.sm, TOY.num_ctas_per_sm(90) if arch.sm == 90 else 0) for arch in ARCHS
    ]
    assert TOY_FAMILY.nvcc_arch(90) == "90a"
    assert TOY_FAMILY.targets([Arch.of(90)]) == Targets((90,), 0, "a")
    sm80 = LADDER_BEST.family
    assert sm80.nvcc_arch("sm_90") == "90"
    assert sm80.targets([Arch.of(80), Arch.of(90)]) == Targets((80, 90), 90)


def test_a_config_type_needs_a_place_for_each_field():
    @dataclass(frozen=True, slots=True)
    class Bare(KernelConfig):
        dtype: DType = tile()
        d_head: int = 64
        n_threads = smem_bytes = 0

    with pytest.raises(TypeError, match=r"Bare\.d_head: use tile\(\), flag\(\) or number\(\)"):
        Bare(DType.FP16)


def test_there_is_one_family_of_a_generation_for_an_op():
    assert len({f.key for f in FAMILIES}) == len(FAMILIES)
    assert family._in_order(TOY_FAMILY, *reversed(FAMILIES)) == (*FAMILIES, TOY_FAMILY)
    for fact in ({"generation": FAMILIES[0].generation}, {"config_type": type(LADDER_BEST)}):
        twin = copy.copy(TOY_FAMILY)
        for name, value in fact.items():
            object.__setattr__(twin, name, value)
        with pytest.raises(ValueError, match="two families are the same"):
            family._in_order(*FAMILIES, twin)
