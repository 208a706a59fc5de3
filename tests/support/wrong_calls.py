"""Random calls of the public API that are mostly wrong, each from one seed.

    PYTHONPATH=.:tests python -m support.wrong_calls [FIRST [LAST]]

runs the calls of some seeds and prints what they raise.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import pyflash
from pyflash import Arch, DType, Features, FlashForwardKernelConfig, KernelConfig, Problem, Space
from pyflash.config import SET_NAMES, as_config, find_family, from_dict, parse
from pyflash.op.options import OPTIONS
from pyflash.op.reference import attention_ref, tolerance

CONFIG = "(FP16, 32, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
REFUSALS = (ValueError, TypeError, RuntimeError)
MOST = 500  # characters of a refusal


class Call(NamedTuple):
    function: Callable[..., Any]
    arguments: dict[str, Any]
    is_right: Callable[[Any], bool]  # of what it returns


def call_of(seed: int) -> Call:
    generator = random.Random(seed)
    torch.manual_seed(seed)
    return generator.choice(_MAKERS)(generator)


def complaint_of(call: Call) -> str | None:
    """What is wrong with what the call does; None for a right result or a good refusal."""
    try:
        result = call.function(**call.arguments)
    except REFUSALS as error:
        text = str(error)
        if not text or "\n" in text or len(text) >= MOST:
            return f"{type(error).__name__} of {len(text)} characters: {text[:300]!r}"
        return None
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:300]!r}"
    return None if call.is_right(result) else "the result is wrong"


# Values


def _text(generator: random.Random) -> str:
    text = list(generator.choice([CONFIG, "sm_90", "FP16", "plain", "right_window+softcap", "all"]))
    for _ in range(generator.choice([0, 1, 1, 2, 5])):
        place = generator.randrange(len(text) + 1)
        new = generator.choice(
            ["", "+", "0", "9" * 30, " ", "\n", "\0", "é", "\u00a0", "(", "|", "x"]
        )
        text[place : place + generator.randrange(3)] = new
    return "".join(text) * generator.choice([1, 1, 1, 1, 1, 200])


_ODD: list[Callable[[random.Random], Any]] = [
    lambda g: None,
    lambda g: g.choice([True, False]),
    lambda g: g.choice([-(2**70), -(2**63), -(2**31) - 1, -2, -1, 0, 1, 2, 3, 7, 64, 128]),
    lambda g: g.choice([2**29, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**70, 10**5000]),
    lambda g: g.choice([0.0, -1.0, 1.5, 1e300, math.nan, math.inf, -math.inf, np.float32(0.5)]),
    lambda g: g.choice([np.int64(1), np.array(2.0), np.zeros(3), 1j, 10**400]),
    lambda g: g.choice([[], [1, 2], (), (1,), {}, {"B_r": 64}, set(), [0] * 10**5, range(3)]),
    lambda g: g.choice([object(), b"FP16", print, int, ..., torch.float16, torch.device("cpu")]),
    lambda g: g.choice([DType.FP16, Arch.of(90), Features(), KernelConfig, parse(CONFIG)]),
    lambda g: g.choice([torch.tensor(1.0, requires_grad=True), torch.tensor(3), torch.zeros(3)]),
    _text,
    _text,
]


def _odd(generator: random.Random) -> Any:
    return generator.choice(_ODD)(generator)


def _tensor(generator: random.Random, shape: list[int]) -> Any:
    """A tensor of about this shape; about half of them are what attention takes."""
    shape = [n if generator.random() < 0.95 else generator.choice([0, 1, 3, 9]) for n in shape]
    if generator.random() < 0.05:
        shape = shape[generator.randrange(len(shape)) :] + [2] * generator.randrange(2)
    dtypes = [torch.float16] * 24 + [torch.bfloat16, torch.float32, torch.int8, torch.complex64]
    dtype = generator.choice(dtypes)
    x = (torch.randn(shape) * 2).to(dtype)
    change = generator.random()
    if change < 0.03:
        return x.to("meta")
    if change < 0.06:
        return x.to_sparse()
    if change < 0.09:
        return x.mT if x.dim() > 1 else x
    if change < 0.12:
        return torch.stack([x, x], -1)[..., 0]
    if change < 0.15:
        return torch.cat([x.flatten(), x.flatten()[:3]])[3:].view(shape) if x.numel() > 3 else x
    if change < 0.18:
        return x[:1].expand(shape) if x.dim() and shape[0] else x
    if change < 0.21:
        return x.requires_grad_() if x.is_floating_point() else x
    return _odd(generator) if change < 0.23 else x


def _options(generator: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {}
    right: dict[str, list[Any]] = {
        "softmax_scale": [None, 0.3, 1],
        "causal": [True, False],
        "window_left": [-1, 0, 5],
        "window_right": [-1, 0, 5],
        "softcap": [0.0, 20.0],
        "config": ["", CONFIG, parse(CONFIG)],
        "num_splits": [0, 1, 3],
        "sinks": [None, torch.randn(4)],
        "attention_chunk": [0, 1, 6],
        "alibi_slopes": [None, torch.rand(4), torch.rand(2, 4)],
        "deterministic": [False, True],
        "dropout_p": [0.0, 0.3],
        "dropout_state": [None, torch.tensor([3, 4])],
    }
    assert right.keys() == OPTIONS.keys()
    for name in generator.sample(list(right), generator.choice([0, 1, 1, 2, 3])):
        options[name] = (
            generator.choice(right[name]) if generator.random() < 0.6 else _odd(generator)
        )
    if generator.random() < 0.03:
        options[generator.choice(["casual", "scale", "page_size", "x" * 5000])] = 1
    return options


# Calls


def _attention(generator: random.Random) -> Call:
    arguments = {
        "q": _tensor(generator, [2, 17, 4, 16]),
        "k": _tensor(generator, [2, 21, 2, 16]),
        "v": _tensor(generator, [2, 21, 2, 16]),
        **_options(generator),
    }
    return Call(pyflash.attention, arguments, lambda out: _is_attention(arguments, out))


def _is_attention(arguments: dict[str, Any], out: Any) -> bool:
    q = arguments["q"]
    is_drawn = arguments.get("dropout_p") and arguments.get("dropout_state") is None
    if q.device.type == "meta" or out.numel() == 0 or is_drawn:
        return out.shape == q.shape
    options = {n: v for n, v in arguments.items() if n not in ("q", "k", "v", "config")}
    options.pop("num_splits", None)
    if options.get("softmax_scale", 1) is None:
        del options["softmax_scale"]
    with torch.no_grad():
        qkv = [arguments[name] for name in "qkv"]
        ref = attention_ref(*qkv, **options)[0]
        pt16 = attention_ref(*qkv, **options, dtype=q.dtype)[0]
    return (out.float() - ref).abs().max().item() <= tolerance(ref, pt16) + 1e-3


def _varlen(generator: random.Random) -> Call:
    arguments = {
        "q": _tensor(generator, [17, 4, 16]),
        "k": _tensor(generator, [21, 2, 16]),
        "v": _tensor(generator, [21, 2, 16]),
        "cu_seqlens_q": torch.tensor([0, 5, 17], dtype=torch.int32),
        "cu_seqlens_k": torch.tensor([0, 12, 21], dtype=torch.int32),
        "max_seqlen_q": 12,
        "max_seqlen_k": 12,
        **_options(generator),
    }
    name = generator.choice([*list(arguments)[3:7], None])
    if name and name.startswith("cu"):
        values = [generator.choice([-1, 0, 3, 17, 21, 2**31 - 1]) for _ in range(3)]
        dtype = generator.choice([torch.int32, torch.int32, torch.int64, torch.float32])
        arguments[name] = generator.choice([torch.tensor(values).to(dtype), _odd(generator)])
    elif name:
        arguments[name] = _odd(generator)

    def is_right(out: Any) -> bool:
        return out.shape == arguments["q"].shape

    return Call(pyflash.attention_varlen, arguments, is_right)


def _sdpa(generator: random.Random) -> Call:
    arguments: dict[str, Any] = {
        "query": _tensor(generator, [2, 4, 9, 16]),
        "key": _tensor(generator, [2, 4, 9, 16]),
        "value": _tensor(generator, [2, 4, 9, 16]),
    }
    for name in ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"):
        if generator.random() < 0.15:
            arguments[name] = _odd(generator)

    def is_right(out: Any) -> bool:
        if out.device.type == "meta" or out.numel() == 0 or arguments.get("dropout_p"):
            return True
        with torch.no_grad():
            ref = F.scaled_dot_product_attention(**arguments)
        return (out - ref).abs().max().item() < 0.1

    return Call(pyflash.sdpa, arguments, is_right)


def _select(generator: random.Random) -> Call:
    fields: dict[str, Any] = {
        "batch": 2, "heads_q": 4, "heads_kv": 2, "seqlen_q": 64, "seqlen_k": 64, "d_head": 64,
        "dtype": "FP16", "device": "cpu",
    }  # fmt: skip
    for name in generator.sample(list(fields), generator.choice([0, 1, 1, 2])):
        fields[name] = generator.choice([_odd(generator), "mps", "cuda", "cuda:99", "BF16"])
    options = _options(generator)

    def function() -> Any:
        return pyflash.select(Problem(**fields, options=options))

    return Call(function, {}, lambda selection: isinstance(selection.config, KernelConfig))


def _one_argument(generator: random.Random) -> Call:
    functions: list[tuple[Callable[[Any], Any], Any]] = [
        (parse, KernelConfig),
        (as_config, KernelConfig),
        (from_dict, KernelConfig),
        (FlashForwardKernelConfig.parse, KernelConfig),
        (FlashForwardKernelConfig.from_dict, KernelConfig),
        (Arch.of, Arch),
        (DType.of, DType),
        (Features.of, Features),
        (Features.parse, Features),
        (pyflash.named_set, list),
        (find_family, object),
        (parse(CONFIG).violations, list),
        (parse(CONFIG).is_legal, bool),
        (parse(CONFIG).num_ctas_per_sm, int),
        (Space(dtype="FP16", d_head=64).legal, Space),
        (Space().filter, Space),
        (pyflash.select, object),
        (pyflash.load, int),
    ]
    function, kind = generator.choice(functions)
    value = generator.choice([_odd(generator), generator.choice(SET_NAMES), 90, "sm_90"])
    return Call(lambda: function(value), {}, lambda result: isinstance(result, kind))


def _config(generator: random.Random) -> Call:
    fields: dict[str, Any] = parse(CONFIG).to_dict()
    for name in generator.sample([*fields, "stages"], generator.choice([1, 1, 2])):
        fields[name] = _odd(generator)
    function = generator.choice(
        [FlashForwardKernelConfig, parse(CONFIG).replace, Space, from_dict_of]
    )
    kinds = (KernelConfig, Space)
    return Call(lambda: function(**fields), {}, lambda result: isinstance(result, kinds))


def from_dict_of(**fields: Any) -> KernelConfig:
    return from_dict(fields)


def _build(generator: random.Random) -> Call:
    """Always wrong, because a right one compiles."""
    arguments: dict[str, Any] = {"configs": CONFIG, "archs": "sm_90", "features": "plain"}
    wrong = {
        "configs": ["(FP16, 64, 7, 3, 4): load_0_0_0_tiles", "fast", 5, [5], ["fast"], {}, b""],
        "archs": ["sm_91", "fast", 5.0, [], [None], ["sm_80", "x"], object()],
        "features": ["fast", ["fast"], 5, ["plain", 3], "x" * 5000],
    }
    name = generator.choice(list(wrong))
    arguments[name] = generator.choice(wrong[name])
    return Call(pyflash.build, arguments, lambda _: False)


_MAKERS = [_attention, _attention, _varlen, _sdpa, _select, _one_argument, _config, _build]


def main(first: int = 0, last: int = 5000) -> int:
    n_wrong = 0
    for seed in range(first, last):
        call = call_of(seed)
        if complaint := complaint_of(call):
            n_wrong += 1
            name = getattr(call.function, "__qualname__", call.function)
            types = {
                k: v if not isinstance(v, Tensor) else v.shape for k, v in call.arguments.items()
            }
            print(f"seed {seed}: {name}: {complaint}\n    {str(types)[:300]}")
    print(f"{n_wrong} of {last - first} calls are answered badly")
    return n_wrong


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])) > 0)
