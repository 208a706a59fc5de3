"""Problems as text, as JSON and at random: what a tuning run is asked for.

>>> problem = parse_problem("bf16,batch=4,heads=16,seqlen=4096,d_head=128,causal")
>>> problem_text(problem)
'bf16,batch=4,heads=16,seqlen=4096,d_head=128,causal'
"""

from __future__ import annotations

import json
import math
import random
from typing import Any

import torch

from pyflash.config import DType
from pyflash.op.options import DEFAULTS, PER_HEAD, TENSORS, is_given, scalar_options
from pyflash.op.selection import Problem
from pyflash.ui.variants import AskedVariant

EXTENTS = ("batch", "heads", "heads_kv", "seqlen", "seqlen_q", "seqlen_k", "d_head")
_SCALARS = {name: kind for name, (kind, of) in scalar_options().items() if not of.chooses}
FLAGS = ("packed", *[name for name, kind in _SCALARS.items() if kind is bool], *PER_HEAD)
# NOTE: texts are names in journals and tables, so numbers keep their order: those without a default
# of their own come last.
NUMBERS: dict[str, type] = {
    name: int if _SCALARS[name] is int else float
    for name in sorted(_SCALARS, key=lambda name: DEFAULTS[name] is None)
    if _SCALARS[name] is not bool
}
WITH = " with "  # before a variant in the name of a problem
FORM = "bf16,batch=4,heads=16[,heads_kv=4],seqlen=4096[,seqlen_k=8192],d_head=128[,causal]"


def parse_problem(text: str, device: str = "cuda") -> Problem:
    """The problem of a text: a dtype, extents as NAME=NUMBER, options of attention, a tensor's by
    its name alone, `packed` for packed sequences; joined by commas.

    batch is 1 and heads_kv is heads where they are left out; seqlen is that of q and of k. Raises
    ValueError naming the word that was not understood, or the extent that is missing.
    """
    dtype, *words = (word.strip() for word in text.split(","))
    values: dict[str, Any] = {"batch": 1}
    for word in words:
        name, _, value = word.partition("=")
        values[name] = _value(text, word, name, value)
    values = {"heads_kv": values.get("heads")} | values
    if seqlen := values.pop("seqlen", None):
        values = {"seqlen_q": seqlen, "seqlen_k": seqlen} | values
    values.setdefault("seqlen_k", values.get("seqlen_q"))
    extents = {name: values.pop(name, None) for name in EXTENTS if name != "seqlen"}
    if missing := [name for name, value in extents.items() if value is None]:
        raise ValueError(f"problem {text!r} lacks {', '.join(missing)}: expected {FORM}")
    return problem_from_json({"dtype": dtype.upper(), **extents, **values}, device)


def named_problem(name: str) -> Problem:
    """The problem of a name in journals: a text, behind which a variant may stand."""
    return parse_problem(name.partition(WITH)[0])


def problem_text(problem: Problem) -> str:
    """The inverse of `parse_problem`, and the name of the problem in journals and tables."""
    values = problem_to_json(problem)
    words = [problem.dtype.name.lower(), f"batch={problem.batch}", f"heads={problem.heads_q}"]
    if problem.heads_kv != problem.heads_q:
        words.append(f"heads_kv={problem.heads_kv}")
    if problem.seqlen_q == problem.seqlen_k:
        words.append(f"seqlen={problem.seqlen_q}")
    else:
        words += [f"seqlen_q={problem.seqlen_q}", f"seqlen_k={problem.seqlen_k}"]
    words.append(f"d_head={problem.d_head}")
    words += [name for name in FLAGS if values.get(name)]
    words += [f"{name}={values[name]:g}" for name in NUMBERS if name in values]
    return ",".join(words)


def problem_name(problem: Problem, asked: AskedVariant | None) -> str:
    """Its name in journals: the text, and what tells variants and their values apart."""
    if asked is None:
        return problem_text(problem)
    values = f" {json.dumps(dict(asked.values))}" if asked.values else ""
    return f"{problem_text(problem)}{WITH}{asked.name}{values}"


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """Extents, dtype by name, and the options that are not at their defaults; tensors as true."""
    values: dict[str, Any] = {
        "dtype": problem.dtype.name,
        "batch": problem.batch,
        "heads": problem.heads_q,
        "heads_kv": problem.heads_kv,
        "seqlen_q": problem.seqlen_q,
        "seqlen_k": problem.seqlen_k,
        "d_head": problem.d_head,
    }
    if problem.packed:
        values["packed"] = True
    for name, value in problem.options.items():
        if is_given(name, value) and (name in PER_HEAD or name not in TENSORS):
            values[name] = True if name in PER_HEAD else value
    return values


def problem_from_json(values: dict[str, Any], device: str = "cuda") -> Problem:
    """The inverse of `problem_to_json`; tensors are zeros, packed sequences as long as
    `packed_lengths` has them."""
    values = dict(values)
    dtype = DType.of(values.pop("dtype"))
    heads = values.pop("heads")
    extents = {
        name: values.pop(name) for name in ("batch", "heads_kv", "seqlen_q", "seqlen_k", "d_head")
    }
    packed = values.pop("packed", False)
    for name in PER_HEAD:
        if values.pop(name, False):
            values[name] = torch.zeros(heads)
    totals = {}
    if packed:
        for name in ("q", "k"):
            lengths = packed_lengths(extents["batch"], extents[f"seqlen_{name}"])
            totals[f"total_{name}"] = sum(lengths)
    return Problem(
        dtype=dtype,
        heads_q=heads,
        packed=packed,
        device=device,
        options=values,
        **extents,
        **totals,
    )


def packed_lengths(n: int, longest: int, seed: int = 0) -> list[int]:
    """The lengths of n packed sequences: from half of the longest to all of it; the first is the
    longest. The same seed gives the same shares of any length."""
    rng = random.Random(seed)
    shares = [1.0, *(rng.uniform(0.5, 1) for _ in range(n - 1))][:n]
    return [math.ceil(longest * share) for share in shares]


def random_problems(n: int, seed: int, device: str = "cuda") -> list[Problem]:
    """Problems as users have them: full, causal and windowed, GQA, odd lengths, batches of 1 to 64,
    packed sequences, decoding, narrow heads, softcap and sinks. The same seed gives the same."""
    rng = random.Random(seed)
    problems: dict[str, Problem] = {}
    while len(problems) < n:
        values = _draw(rng)
        if _MIN_WORK <= _work(values) <= _MAX_WORK and _elements(values) <= _MAX_ELEMENTS:
            problem = problem_from_json(values, device)
            problems.setdefault(problem_text(problem), problem)
    return list(problems.values())


# Multiplications of one GEMM: from what a launch hides to a few milliseconds.
_MIN_WORK, _MAX_WORK = 1 << 20, 1 << 39
_MAX_ELEMENTS = 1 << 29  # of q, k and v


def _draw(rng: random.Random) -> dict[str, Any]:
    heads_kv = rng.choice((1, 2, 4, 8, 8, 16))
    group = rng.choice((1, 1, 1, 2, 4, 8))
    decoding = rng.random() < 0.25
    seqlen_k = round(2 ** rng.uniform(7 if not decoding else 9, 14.2))
    seqlen_q = rng.choice((1, 1, 1, 2, 4)) if decoding else seqlen_k
    if not decoding and rng.random() < 0.15:  # a prompt behind a cache
        seqlen_q = max(1, round(seqlen_k * rng.uniform(0.1, 0.9)))
    values: dict[str, Any] = {
        "dtype": rng.choice(("BF16", "BF16", "FP16")),
        "batch": round(2 ** rng.uniform(0, 6)),
        "heads": heads_kv * group,
        "heads_kv": heads_kv,
        "seqlen_q": seqlen_q,
        "seqlen_k": seqlen_k,
        "d_head": rng.choice((128, 128, 128, 128, 64, 64, 64, 80, 96, 48)),
    }
    mask = rng.random()
    if mask < 0.5:
        values["causal"] = True
    if mask < 0.12:
        values["window_left"] = rng.choice((255, 511, 1023, 4095))
    if not decoding and rng.random() < 0.15:
        values["packed"] = True
    extra = rng.random()
    if extra < 0.05:
        values["softcap"] = rng.choice((30.0, 50.0))
    elif extra < 0.1:
        values["sinks"] = True
    return values


def _work(values: dict[str, Any]) -> int:
    rows = values["batch"] * values["heads"] * values["seqlen_q"]
    return rows * values["seqlen_k"] * values["d_head"]


def _elements(values: dict[str, Any]) -> int:
    rows_q = values["batch"] * values["heads"] * values["seqlen_q"]
    rows_kv = values["batch"] * values["heads_kv"] * values["seqlen_k"]
    return (rows_q + 2 * rows_kv) * values["d_head"]


def _value(text: str, word: str, name: str, value: str) -> Any:
    if name in FLAGS and not value:
        return True
    kind = int if name in EXTENTS else NUMBERS.get(name)
    try:
        if kind:
            return kind(value)
    except ValueError:
        pass
    raise ValueError(f"unknown word {word!r} in problem {text!r}: expected {FORM}")
