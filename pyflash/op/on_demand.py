"""Kernels that are compiled when a call asks for them: `compile=True`, or PYFLASH_JIT=1."""

from __future__ import annotations

import functools
import os
import threading
from typing import Any

import torch
from torch import Tensor

from pyflash.config import Features, KernelConfig, parse
from pyflash.config.features import first_covering
from pyflash.op import library

_lock = threading.Lock()


def ensure_built(arguments: dict[str, Any], q: Tensor, compile: bool) -> None:
    """Compiles the config that the op's `arguments` name, and loads it, if `compile` or PYFLASH_JIT
    asks for it and no loaded kernel covers the call; what is in the user's cache is only loaded.
    The arguments then name the config by its canonical form, under which it is built.

    Raises ValueError for a config that breaks rules on q's GPU, RuntimeError for one that does not
    compile, and without a compiler, with the command that installs one.
    """
    if "config" in arguments and _is_on_gpu(q) and (compile or _asked_by_environment()):
        config = arguments["config"]
        causal, window_right = arguments.get("causal", False), arguments.get("window_right", -1)
        features = {
            "right_window": causal or window_right >= 0,
            "left_window": arguments.get("window_left", -1) >= 0,
            "predicated_head_dim": q.shape[-1] != _d_head(config),
            "softcap": arguments.get("softcap", 0.0) != 0.0,
            "sinks": arguments.get("sinks") is not None,
        }
        words = "+".join(name for name, needed in features.items() if needed)
        arguments["config"] = _ensure(config, words or "plain", q.device.index)


def _is_on_gpu(q: Any) -> bool:
    return isinstance(q, Tensor) and q.is_cuda


def _asked_by_environment() -> bool:
    return _environment()


@functools.cache
def _environment() -> bool:
    """Read once: a look into the environment takes a microsecond."""
    value = os.environ.get("PYFLASH_JIT", "")
    if value not in ("", "0", "1"):
        raise ValueError(f"pyflash: PYFLASH_JIT is {value!r}: expected 0 or 1")
    return value == "1"


def _d_head(config: str) -> int:
    return _parsed(config).d_head


_parsed = functools.lru_cache(maxsize=4096)(parse)


def _ensure(config: str, features: str, device_index: int) -> str:
    with _lock:
        return _ensure_once(config, features, device_index)


# NOTE: torch.compiler.assume_constant_result, without the second that it takes to import.
for _function in (_asked_by_environment, _d_head, _ensure):
    _function._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=4096)
def _ensure_once(text: str, features: str, device_index: int) -> str:
    """The canonical form. Kernels are never unloaded: what was found once is there."""
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
    """Where that can be launched, the one kernel that the call needs as device code alone: seconds.
    Else a library with every combination of features that the config's family builds."""
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
