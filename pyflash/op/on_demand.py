"""Kernels that are compiled when a call asks for them: `compile=True`, or PYFLASH_JIT=1."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyflash.config import Features, KernelConfig, parse
from pyflash.config.features import first_covering
from pyflash.op import library
from pyflash.op.options import OPTIONS, PER_HEAD, TENSORS
from pyflash.op.selection import EXTENTS, Problem, features_needed

# kMaxExtent in cute_kernels/host/problem.h.
_LONGEST = 1 << 29

_lock = threading.Lock()
# The canonical form, by config, features and GPU. Kernels are never unloaded.
_built: dict[tuple[str, str, int], str] = {}


def ensure_built(
    arguments: dict[str, Any], q: Tensor, k: Tensor, packing: Sequence[Any], compile: bool
) -> None:
    """Compiles the config that the op's `arguments` name, and loads it, if `compile` or PYFLASH_JIT
    asks for it and no loaded kernel covers the call; what is in the user's cache is only loaded.
    The arguments then name the config by its canonical form, under which it is built.

    packing: (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k), or () for padded sequences.

    Leaves a problem that the op refuses to the op. Raises ValueError for a config that breaks rules
    on q's GPU, RuntimeError for one that does not compile, and without a compiler, with the command
    that installs one.
    """
    if not arguments.get("config") or not is_asked(q, compile):
        return
    if not (q.dim() == k.dim() == (3 if packing else 4)):
        return
    if packing and not (packing[0].dim() == packing[1].dim() == 1):
        return
    extents = _extents(q, k, packing)
    tensors, options = [], []
    for name, value in arguments.items():
        if name in PER_HEAD:
            tensors.append(name)
        elif name in TENSORS:
            continue  # features do not depend on it
        elif name != "config":
            options.append((name, static(value)))
    problem = (bool(packing), extents, tuple(tensors), tuple(options))
    arguments["config"] = _ensure(arguments["config"], problem, q.device.index)


def is_asked(q: Any, compile: bool) -> bool:
    """Whether a call with this q compiles what it lacks."""
    return _is_on_gpu(q) and (compile or _asked_by_environment())


def _extents(q: Tensor, k: Tensor, packing: Sequence[Any]) -> tuple[int, ...]:
    """Those of a `Problem`. A length that a graph keeps symbolic stands for the longest, which
    needs the most features."""
    *rows, heads, d_head = q.shape
    *rows_k, heads_kv, _ = k.shape
    if packing:
        batch, lengths, totals = packing[0].shape[0] - 1, packing[2:], (rows[0], rows_k[0])
    else:
        batch, lengths, totals = rows[0], (rows[1], rows_k[1]), (0, 0)
    lengths = [longest(n) for n in lengths]
    if torch.compiler.is_compiling():
        from torch.fx.experimental.symbolic_shapes import has_static_value

        if not all(has_static_value(n) for n in (batch, heads, heads_kv, *totals)):
            batch, heads, heads_kv, totals = 1, 1, 1, (0, 0)
    return (batch, heads, heads_kv, *lengths, static(d_head), *totals)


def longest(length: Any) -> Any:
    """A length, or the longest where a graph of torch.compile keeps it symbolic: the graph has one
    kernel for all of them."""
    if torch.compiler.is_compiling():
        from torch.fx.experimental.symbolic_shapes import has_static_value

        return length if has_static_value(length) else _LONGEST
    return length


def static(value: Any) -> Any:
    """A number of a problem. torch.compile specialises a graph to it."""
    if value is None or isinstance(value, str) or not torch.compiler.is_compiling():
        return value
    from torch.fx.experimental.symbolic_shapes import guard_scalar

    return guard_scalar(value)


def _is_on_gpu(q: Any) -> bool:
    return isinstance(q, Tensor) and q.is_cuda


def _asked_by_environment() -> bool:
    return _environment()


@functools.cache
def _environment() -> bool:
    """Read once: reading the environment takes a microsecond."""
    value = os.environ.get("PYFLASH_JIT", "")
    if value not in ("", "0", "1"):
        raise ValueError(f"pyflash: PYFLASH_JIT is {value!r}: expected 0 or 1")
    return value == "1"


def _ensure(config: str, problem: tuple[Any, ...], device_index: int) -> str:
    """The canonical form."""
    packed, extents, tensors, options = problem
    needed = _features_needed(config, packed, _telling(extents, options), tensors, options)
    if needed is None:
        return config
    key = (config, needed, device_index)
    # NOTE: no lock where the kernel is built: another thread holds it for minutes to compile one.
    if key not in _built:
        with _lock:
            if key not in _built:
                _built[key] = _ensure_once(*key)
    return _built[key]


def _telling(extents: Sequence[int], options: Sequence[tuple[str, Any]]) -> tuple[int, ...]:
    """Extents that need the same features, and are the same at every step of a decode: features
    depend on which windows a sequence is longer than, and on whether there is one query."""
    batch, heads, heads_kv, seqlen_q, seqlen_k, d_head, *_ = extents
    widest = 0
    for name, value in options:
        if OPTIONS[name].is_positional and value > widest:
            widest = int(value)
    beyond = widest + 2
    return (
        min(batch, 1),
        heads,
        heads_kv,
        min(seqlen_q, beyond),
        min(seqlen_k, beyond),
        d_head,
        0,
        0,
    )


# NOTE: torch.compiler.assume_constant_result, without the second that it takes to import.
for _function in (_asked_by_environment, _ensure):
    _function._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=4096)
def _features_needed(
    config: str,
    packed: bool,
    extents: tuple[int, ...],
    tensors: tuple[str, ...],
    options: tuple[tuple[str, Any], ...],
) -> str | None:
    """None: the op refuses the problem, in the words of its arguments. NOTE: the dtype is that of
    the config, because torch.autocast casts what comes."""
    values: dict[str, Any] = dict(zip(EXTENTS, extents, strict=True))
    per_head = {name: torch.empty(values["heads_q"], device="meta") for name in tensors}
    values |= {
        "dtype": _parsed(config).dtype,
        "packed": packed,
        "options": dict(options) | per_head,
    }
    try:
        return str(features_needed(Problem(**values), config))
    except ValueError:
        return None


_parsed = functools.lru_cache(maxsize=4096)(parse)


def _ensure_once(text: str, features: str, device_index: int) -> str:
    """The canonical form."""
    config = _parsed(text).canonical()
    needed = Features.parse(features)
    major, minor = torch.cuda.get_device_capability(device_index)
    sm = 10 * major + minor
    built = library.built_configs().get(config)
    if not (built and built.covers(needed, sm)):
        try:
            _compile(config, needed, sm)
        except RuntimeError as error:
            raise RuntimeError(
                f"pyflash: config '{text}' is not built, and cannot be compiled: {error}"
            ) from error
    return str(config)


def _compile(config: KernelConfig, needed: Features, sm: int) -> None:
    """Compiles the one kernel that the call needs, as device code alone, where a loaded library can
    launch it; else a library with every combination of features that the config's family builds."""
    # Needs a compiler, which running kernels does not.
    from pyflash.codegen.build import build_on_demand, nearest_archs
    from pyflash.codegen.kernels import compile_kernel

    archs = nearest_archs([sm])
    if archs and not archs[0].ptx_of and _launches_cubins():
        features = first_covering(needed, config.family.built_features(config)) or needed
        library.load_cubin(compile_kernel(config, features, archs[0]))
    else:
        library.load(build_on_demand([config], archs, more_features=[needed]))


def _launches_cubins() -> bool:
    """Cubins are launched by a kernel library, and a config that has some runs on their
    architecture alone."""
    gpus = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    return bool(library.built_configs()) and len(gpus) == 1
