"""Parsing the text that logs, profilers and people hand in."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import LADDER_BEST, configs

from pyflash import DType, FlashForwardKernelConfig

parse = FlashForwardKernelConfig.parse
SHORT = str(LADDER_BEST)


@given(configs)
def test_short_form_round_trip(config):
    assert parse(str(config)) == config


@given(configs)
def test_cpp_struct_round_trip(config):
    assert parse(config.to_cpp_struct()) == config


@given(configs, st.text("| ab.0"))
def test_first_cell_of_a_table_row(config, rest):
    assert parse(f"| {config} | {rest} |") == config
    assert parse(f"{config}|{rest}") == config


SYMBOLS = [
    # As a host compiler, nvcc's errors, cu++filt and ncu print it.
    "void flash_forward_kernel<FlashForwardKernelConfig{{{0}}}>(ForwardParams)",
    "void pyflash::flash_forward_kernel<pyflash::FlashForwardKernelConfig{{{0}}}>(pyflash::P)",
    "void pyflash::flash_forward_kernel<(pyflash::FlashForwardKernelConfig){{{0}}}>(float*, int)",
    "void pyflash::flash_forward_kernel<FlashForwardKernelConfig{{{0}}}, (pyflash::Variant)2>(int)",
    "flash_forward_kernel<pyflash::KernelTraits<FlashForwardKernelConfig {{{0}}}> >(int*) [clone]",
]
DTYPES = ["{0:d}", "(DType){0:d}", "(pyflash::DType){0:d}", "(c10::ScalarType){0:d}"]
DTYPES += ["DType::{0.name}", "pyflash::DType::{0.name}", "::pyflash::DType::{0.name}"]
INTS = ["{}", "(int){}"]
BOOLS = ["{:d}", "(bool){:d}", "{!r}"]


@given(configs, *map(st.sampled_from, (SYMBOLS, DTYPES, INTS, BOOLS, [", ", ","])))
def test_demangled_symbols(config, symbol, dtype, integer, boolean, comma):
    forms = {DType: dtype, int: integer, bool: boolean}
    fields = [getattr(config, name) for name in config.__slots__]
    values = [forms[type(value)].format(value) for value in fields]
    values = [value.lower() if value in ("True", "False") else value for value in values]
    assert parse(symbol.format(comma.join(values))) == config


@pytest.mark.parametrize(
    "values",
    [
        "5, 128, 64, 64, 4, 1, 1, 1, 0, 2, 2, 0, 1",
        "(DType)5, 128, 64, 64, 4, true, true, true, 0, 2, 2, false, true",
        "(c10::ScalarType)5, (int)128, (int)64, (int)64, (int)4, (bool)1, (bool)1, (bool)1, (int)0,"
        " (int)2, (int)2, (bool)0, (bool)1",
    ],
)
def test_the_symbols_of_known_tools(values):
    assert parse(f"flash_forward_kernel<FlashForwardKernelConfig{{{values}}}>(...)") == LADDER_BEST


@pytest.mark.parametrize(
    ("text", "offending"),
    [
        ("", "''"),
        ("kernel", "'kernel'"),
        (SHORT.replace(":", ""), "4) async"),
        (SHORT.replace("FP16", "FP8"), "'FP8'"),
        (SHORT.replace("128", "big"), "'big'"),
        (SHORT.replace("128", "-128"), "'-128'"),
        (SHORT.replace("128, ", ""), "'(FP16, 64, 64, 4)' has 4 values"),
        (SHORT.replace("128", "128, 128"), "'(FP16, 128, 128, 64, 64, 4)' has 6 values"),
        (SHORT.replace("eager", "lazy"), "'lazy'"),
        (SHORT.replace("eager", ""), "''"),
        (SHORT.replace("load_0_2_2_tiles+", ""), "load_Q_K_V_tiles is missing"),
        (SHORT.replace("0_2_2", "0_2"), "'load_0_2_tiles'"),
        (SHORT.replace("0_2_2", "Q_K_V"), "'load_Q_K_V_tiles'"),
        (SHORT.replace("async+eager", "eager+async"), "'async'"),
        (SHORT + "+opt_softmax", "'opt_softmax' is repeated"),
        (SHORT + "+load_0_2_2_tiles", "'load_Q_K_V_tiles' is repeated"),
        (SHORT.replace("128", "0"), "d_head = 0"),
    ],
)
def test_short_form_errors_name_the_offending_text(text, offending):
    with pytest.raises(ValueError, match=re.escape(offending)):
        parse(text)


STRUCT = "FlashForwardKernelConfig{(DType)5, 128, 64, 64, 4, 1, 1, 1, 0, 2, 2, 0, 1}"


@pytest.mark.parametrize(
    ("text", "offending"),
    [
        (STRUCT.replace("}", ""), "closing brace"),
        (STRUCT.replace(", 0, 1}", "}"), "has 11 values, expected 13"),
        (STRUCT.replace("1}", "1, 1, 0, 0}"), "has 16 values, expected 13 to 15"),
        (STRUCT.replace("(DType)5", "(DType)6"), "unknown dtype '6'"),
        (STRUCT.replace("(DType)5", "DType::FP8"), "unknown dtype 'FP8'"),
        (STRUCT.replace("(DType)5", "(Type)5"), "'(Type)5' is not a value of dtype"),
        (STRUCT.replace("128", "(bool)1"), "'(bool)1' is not a value of d_head"),
        (STRUCT.replace("128", "-128"), "'-128' is not a value of d_head"),
        (STRUCT.replace("1}", "2}"), "'2' is not a value of optimized_softmax"),
        (STRUCT.replace("1}", "yes}"), "'yes' is not a value of optimized_softmax"),
        (LADDER_BEST.to_cpp_struct().replace(".B_r", ".B_c"), "'.B_c = 64' stands where .B_r"),
    ],
)
def test_symbol_errors_name_the_offending_text(text, offending):
    with pytest.raises(ValueError, match=re.escape(offending)):
        parse(text)
