"""Kernels with a variant that are compiled when a call asks for them."""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch

from pyflash.config import Arch, DType, KernelConfig, named_set, parse, rank
from pyflash.op import library
from pyflash.op.selection import TORCH_DTYPES
from pyflash.op.variants.features import features_asked
from pyflash.variant.parser import normal_of

_lock = threading.Lock()


def default_config(dtype: DType, d_head: int, arch: Arch) -> KernelConfig:
    """The first in rank of the default configs that an architecture runs, of the smallest d_head
    that is not below this one, whose threads have registers left for a variant. Raises ValueError
    where there is none."""
    known = [*named_set("all"), *named_set("head_dims")]
    fitting = [
        config
        for config in known
        if config.family.takes_variant(config)
        and config.dtype == dtype
        and config.d_head >= d_head
        and config.is_legal(arch)
    ]
    if not fitting:
        raise ValueError(f"pyflash: no config is for {dtype.name} with d_head {d_head} on {arch}")
    return min(fitting, key=lambda config: (config.d_head, rank(config)))


def ensure_built(text: str, arguments: dict[str, Any], q: torch.Tensor) -> None:
    """Compiles the kernel of a variant, given its portable text, that a call needs, and loads it.
    The arguments then name its config.

    Raises as `pyflash.op.on_demand.ensure_built` does.
    """
    numbers = tuple((name, x) for name, x in arguments.items() if not isinstance(x, torch.Tensor))
    tensors = tuple(name for name, x in arguments.items() if isinstance(x, torch.Tensor))
    arguments["config"] = _ensure(text, numbers, tensors, q.dtype, q.shape[-1], q.device.index)


@functools.lru_cache(maxsize=4096)
def _ensure(
    text: str,
    numbers: tuple[tuple[str, Any], ...],
    tensors: tuple[str, ...],
    dtype: torch.dtype,
    d_head: int,
    device_index: int,
) -> str:
    """The short form of the config."""
    from pyflash.codegen.build import build_with_variants, nearest_archs

    options = dict(numbers)
    major, minor = torch.cuda.get_device_capability(device_index)
    archs = nearest_archs([10 * major + minor])
    named = options.pop("config", "")
    of_q = next((known for known, of in TORCH_DTYPES.items() if of is dtype), None)
    if of_q is None or not archs:
        return named  # the op says what is wrong
    config = parse(named) if named else default_config(of_q, d_head, archs[0])
    features = features_asked(options | dict.fromkeys(tensors, True), d_head, config.canonical())
    with _lock:
        try:
            library.load(build_with_variants([normal_of(text)], [config], archs, [features]))
        except RuntimeError as error:
            raise RuntimeError(
                f"pyflash: the variant is not built for config '{config}', and cannot be compiled: "
                f"{error}"
            ) from error
    return config.canonical().short_form()


# NOTE: torch.compiler.assume_constant_result, without the second that it takes to import.
_ensure._dynamo_marked_constant = True  # type: ignore[attr-defined]
