"""Configs, dtypes, architectures, features and devices are values or text, everywhere."""

from __future__ import annotations

import pytest
import torch

import pyflash
from pyflash import Arch, DType, Features, Problem
from pyflash.codegen import build as building
from pyflash.config import parse
from pyflash.op import library

CONFIG = "(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles"


def problem(**changes):
    extents = dict.fromkeys(("batch", "heads_q", "heads_kv", "seqlen_q", "seqlen_k"), 2)
    return Problem(**extents | {"d_head": 64, "dtype": DType.FP16, "device": "cpu"} | changes)


@pytest.mark.parametrize("dtype", ["BF16", DType.BF16, 15])
def test_the_dtype_of_a_problem(dtype):
    assert problem(dtype=dtype).dtype is DType.BF16
    assert pyflash.select(problem(dtype=dtype)).config.dtype == DType.BF16


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"dtype": "FP8"}, ValueError, r"unknown dtype 'FP8': expected one of FP16 \(5\), BF16"),
        ({"dtype": torch.float16}, TypeError, "dtype is dtype: expected one of FP16"),
        ({"device": "mps"}, ValueError, "device is mps: expected a CUDA device or cpu"),
        ({"device": "warp9"}, ValueError, "device is 'warp9': expected a CUDA device or cpu"),
        ({"device": 3}, TypeError, "device is int: expected a device or its name"),
        ({"batch": 2.0}, TypeError, "batch is float: expected an int"),
        ({"options": [1]}, TypeError, "options is list: expected a dictionary"),
    ],
)
def test_what_is_neither(changes, error, sentence):
    with pytest.raises(error, match=sentence):
        pyflash.select(problem(**changes))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:99", torch.device("cuda")])
def test_a_gpu_that_is_not_there_is_a_runtime_error(device):
    with pytest.raises(RuntimeError, match="torch finds no CUDA GPU: expected device 'cpu'"):
        pyflash.select(problem(device=device))


@pytest.mark.parametrize("configs", [CONFIG, parse(CONFIG), [CONFIG], (parse(CONFIG),)])
@pytest.mark.parametrize("archs", ["sm_80", 80, Arch.of(80), ["80"], None])
@pytest.mark.parametrize("features", ["softcap", Features(softcap=True), ["softcap"]])
def test_what_build_takes(configs, archs, features, monkeypatch):
    asked = []
    monkeypatch.setattr(building, "build_on_demand", lambda *values: asked.append(values))
    monkeypatch.setattr(library, "load", lambda _: 1)
    assert pyflash.build(configs, archs, features) == 1
    expected = None if archs is None else [Arch.of(80)]
    ((asked_configs, asked_archs, asked_features),) = asked
    assert (asked_configs, asked_archs) == ([parse(CONFIG)], expected)
    assert [Features.of(f) for f in asked_features] == [Features(softcap=True)]


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        (("fast",), ValueError, "'fast' is no config: expected the form of Flash"),
        ((5,), TypeError, "'int' object is not iterable|config is int"),
        ((CONFIG, "sm_81"), ValueError, "unknown architecture 'sm_81': the known ones are sm_80"),
        ((CONFIG, 8.0), TypeError, "archs is float: expected architectures, such as 'sm_90'"),
        ((CONFIG, None, "speed"), ValueError, "unknown feature 'speed' in 'speed'"),
        ((CONFIG.replace("64, 4", "48, 4"), 90), ValueError, "is legal on none of sm_90: "),
    ],
)
def test_what_build_refuses_before_it_compiles(arguments, error, sentence):
    with pytest.raises(error, match=sentence):
        pyflash.build(*arguments)
