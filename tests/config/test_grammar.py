"""Python and the op library read short forms by one grammar: each text is a config to both, and the
same one, or to neither."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import example, given, settings
from support.strategies import configs

import pyflash
from pyflash import FlashForwardKernelConfig, FlashForwardSm90Config
from pyflash.config import parse_short_form

SM80 = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax+stages_2"
SM90 = str(next(iter(pyflash.named_set("sm90"))))
PIECES = [
    *" \t\n\r\v\f\0+,:(){}|_-09",
    "\u00a0", "\u2003", "é", "٣", "++", "||", " ", "FP16", "BF16", "FP32", "async", "eager",
    "swizzled", "buffer", "opt_softmax", "sm90", "stages_", "stages_1", "load_0_0_0_tiles", "load_",
    "_tiles", "2147483647", "2147483648", "5000000000", "9" * 30, "007", "-1", "+1", "1e3", "0x10",
    "FlashForwardKernelConfig{}", "struct ",
]  # fmt: skip


@st.composite
def texts(draw) -> str:
    """A short form with a few pieces of it replaced."""
    text = draw(st.sampled_from([SM80, SM90]) | configs.map(str))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 4)))
        text = text[:start] + draw(st.sampled_from(PIECES)) + text[end:]
    return text


def checked(read, refusal) -> str | None:
    """None where it refuses, in one line."""
    try:
        return read()
    except refusal as error:
        sentence = str(error)
    assert len(sentence) < 640  # the forms of three families
    assert "\n" not in sentence
    return None


def read_by_python(text: str) -> str | None:
    return checked(lambda: str(parse_short_form(text)), ValueError)


def read_by_the_op_library(text: str) -> str | None:
    return checked(lambda: torch.ops.pyflash.parse_config(text), RuntimeError)


@settings(max_examples=1500, deadline=None)
@given(texts() | st.text(max_size=40))
@example(SM80)
@example(SM90)
@example(SM80.replace("async+", "async +\t"))
@example("(FP16, 128, 64, 64, 4): load_-0_0_0_tiles")
def test_both_accept_the_same_texts(text):
    assert read_by_python(text) == read_by_the_op_library(text)


ACCEPTED = [
    SM80, SM90, f"  {SM80}\n", SM80.replace("+", " +\t"), SM80.replace(" ", ""),
    SM80.replace("(", "( ").replace(":", " :\r\n"), SM80.replace("128", "0128"),
    "(FP16, 128, 2147483647, 64, 4): load_0_0_0_tiles",
]  # fmt: skip
REFUSED = [
    "", "fast", f"| {SM80} | 3 |", FlashForwardKernelConfig.parse(SM80).to_cpp_struct(),
    SM80.replace(" ", "\u00a0"), SM80.replace("64", "5000000000"), SM80.replace("128", "-128"),
    SM80.replace("128", "٣"), SM80.replace("async", "as ync"), SM80 + "+", "+" + SM80,
    SM80.replace("async+", "async+async+"), SM80.replace("load_0", "load_-0"), SM80 + "\0",
    f"{SM80} {SM80}", SM90.replace("sm90+", "sm90 "), SM80.replace("): ", "): sm90+"),
]  # fmt: skip


@pytest.mark.parametrize("text", ACCEPTED)
def test_accepts(text):
    kind = FlashForwardSm90Config if "sm90" in text else FlashForwardKernelConfig
    assert read_by_python(text) == read_by_the_op_library(text) == str(kind.parse(text))


@pytest.mark.parametrize("text", REFUSED)
def test_refuses(text):
    assert read_by_python(text) is None
    assert read_by_the_op_library(text) is None
