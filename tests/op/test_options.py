"""The options of attention: one description, which agrees with the op's schema and with help()."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pyflash
from pyflash.op.options import (
    DEFAULTS,
    OPTIONS,
    AttentionOptions,
    backward_options,
    softmax_scale_of,
    windows_of,
)

ROOT = Path(__file__).resolve().parents[2]
OPS = torch.ops.pyflash


def keyword_arguments(op):
    return {a.name: a.default_value for a in op.default._schema.arguments if a.kwarg_only}


@pytest.mark.parametrize("op", [OPS.fwd, OPS.fwd_varlen], ids=["fwd", "fwd_varlen"])
def test_the_ops_take_the_options_in_order_with_their_defaults(op):
    assert list(keyword_arguments(op).items()) == list(DEFAULTS.items())


@pytest.mark.parametrize("op", [OPS.bwd, OPS.bwd_varlen], ids=["bwd", "bwd_varlen"])
def test_the_backward_takes_all_but_config_num_splits_and_sinks(op):
    expected = ["softmax_scale", "causal", "window_left", "window_right", "softcap"]
    assert list(keyword_arguments(op)) == expected
    assert list(backward_options(DEFAULTS)) == expected


@pytest.mark.parametrize("function", [pyflash.attention, pyflash.attention_varlen])
def test_help_shows_every_option(function):
    parameters = inspect.signature(function).parameters
    assert {name: parameters[name].default for name in OPTIONS} == DEFAULTS
    assert "options" not in parameters
    assert parameters["return_lse"].default is False
    assert "{options}" not in function.__doc__
    for name in OPTIONS:
        assert f"    - {name}: " in function.__doc__
    assert max(map(len, function.__doc__.splitlines())) <= 100


def test_types_are_those_of_the_schema():
    kinds = {"float": float, "bool": bool, "int": int, "str": str}
    for argument in OPS.fwd.default._schema.arguments:
        if argument.name in ("q", "k", "v", "config", "sinks"):
            continue
        kind = AttentionOptions.__annotations__[argument.name].__origin__
        name = str(argument.type).removeprefix("Optional[").removesuffix("]")
        assert kinds[name] in getattr(kind, "__args__", (kind,)), argument.name


def test_describing_options_needs_no_torch():
    code = "import sys, pyflash.op.options; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_effective_scale_and_windows():
    assert softmax_scale_of({}, 64) == 1 / 8
    assert softmax_scale_of({"softmax_scale": 0.3}, 64) == 0.3
    assert windows_of({}, 5, 7) == (-1, -1)
    assert windows_of({"causal": True}, 5, 7) == (-1, 0)
    assert windows_of({"causal": True}, 1, 7) == (-1, -1)  # one query attends every key
    assert windows_of({"window_left": 5, "window_right": 3}, 5, 7) == (5, 3)
    assert windows_of({"window_left": 6, "window_right": 4}, 5, 7) == (-1, -1)
