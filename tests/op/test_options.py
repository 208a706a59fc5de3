"""The options of attention: one description, which agrees with the op's schema and with help()."""

import inspect
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pyflash
from pyflash.op.options import (
    DEFAULTS,
    OPTIONS,
    TENSORS,
    AttentionOptions,
    backward_options,
    softmax_scale_of,
    windows_asked,
    windows_of,
)
from pyflash.op.selection import class_of

ROOT = Path(__file__).resolve().parents[2]
OPS = torch.ops.pyflash


def keyword_arguments(op):
    return {a.name: a.default_value for a in op.default._schema.arguments if a.kwarg_only}


@pytest.mark.parametrize("op", [OPS.fwd, OPS.fwd_varlen], ids=["fwd", "fwd_varlen"])
def test_the_ops_take_the_options_in_order_with_their_defaults(op):
    assert list(keyword_arguments(op).items()) == list(DEFAULTS.items())


@pytest.mark.parametrize("op", [OPS.bwd, OPS.bwd_varlen], ids=["bwd", "bwd_varlen"])
def test_the_backward_takes_all_but_config_num_splits_and_sinks(op):
    expected = [
        "softmax_scale", "causal", "window_left", "window_right", "attention_chunk", "softcap",
        "deterministic", "dropout_p",
    ]  # fmt: skip
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
        if argument.name in ("q", "k", "v", "config", *TENSORS):
            continue
        kind = AttentionOptions.__annotations__[argument.name].__origin__
        name = str(argument.type).removeprefix("Optional[").removesuffix("]")
        assert kinds[name] in getattr(kind, "__args__", (kind,)), argument.name


def test_tensors_are_those_of_the_schema():
    arguments = OPS.fwd.default._schema.arguments
    tensors = [a.name for a in arguments if a.kwarg_only and str(a.type) == "Optional[Tensor]"]
    assert tensors == list(TENSORS)


@pytest.mark.parametrize("name", [name for name in TENSORS if OPTIONS[name].gradient])
def test_the_op_of_a_tensors_gradient_is_there(name):
    (result,) = getattr(OPS, OPTIONS[name].gradient).default._schema.returns
    assert str(result.type) == "Tensor"


def test_what_is_in_no_backward_has_gradients_all_the_same():
    """Its effect is in out and lse, or there is none."""
    outside = [option for option in OPTIONS.values() if not option.in_backward]
    assert all(option.gradients_on == ("cpu", "cuda") for option in outside)


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


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", list(itertools.product((1, 2, 6, 7), repeat=2)), ids=str)
def test_windows_are_dropped_where_cpp_drops_them(lengths, causal):
    """Packed sequences: of one padded query C++ makes fewer keys of a left window."""
    sizes = {"batch": 2, "heads_q": 2, "heads_kv": 1, "d_head": 64, "dtype": "FP16"}
    extents = dict(zip(("seqlen_q", "seqlen_k"), lengths, strict=True))
    for left, right in itertools.product((-1, 0, 1, 4, 5, 6, 7), repeat=2):
        options = {"window_left": left, "window_right": right, "causal": causal}
        if causal and right > 0:
            continue
        problem = pyflash.Problem(**sizes, **extents, packed=True, options=options)
        needed = pyflash.Features.parse(class_of(problem).features)
        kept = (needed.left_window, needed.right_window)
        asked = windows_asked(options)
        expected = tuple(n if is_kept else -1 for n, is_kept in zip(asked, kept, strict=True))
        assert windows_of(options, *lengths) == expected, options
