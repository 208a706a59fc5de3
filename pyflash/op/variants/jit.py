"""Kernels with a variant that are compiled when a call asks for them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from pyflash.config import (
    FAMILIES,
    Arch,
    DType,
    KernelConfig,
    KernelFeatures,
    named_set,
    parse,
    rank,
)
from pyflash.config.variant_needs import FEW_KEYS, FEW_ROWS, NO_NEEDS, VariantNeeds
from pyflash.op import library
from pyflash.op.on_demand import longest, static
from pyflash.op.selection import TORCH_DTYPES
from pyflash.op.variants.features import (
    are_gathered,
    backward_features_asked,
    features_asked,
    on_pages,
)
from pyflash.variant.needs import needs_of
from pyflash.variant.parser import normal_of
from pyflash.variant.summed import Summed

_lock = threading.Lock()
_MANY = (False, False)  # keys, queries


def default_config(
    dtype: DType,
    d_head: int,
    arch: Arch,
    needs: VariantNeeds = NO_NEEDS,
    *,
    few_keys: bool = False,
    few_queries: bool = False,
) -> KernelConfig:
    """The first in rank of the configs for variants, or of the default ones where a family has
    none of those, that an architecture runs, of the smallest d_head that is not below this one,
    whose threads have registers left for a variant of such needs. few_keys: queries have FEW_KEYS
    or fewer; few_queries: those of a head of K and V are FEW_ROWS or fewer. Raises ValueError where
    there is none."""
    default = [*named_set("all"), *named_set("head_dims")]
    own = {family.name: family.for_variants(needs, few_keys, few_queries) for family in FAMILIES}
    for_variants = [config for configs in own.values() for config in configs]
    others = [config for config in default if not own[config.family.name]]
    with_room = [c for c in (*for_variants, *others) if c.family.takes_variant(c, needs)]

    def rank_with_variant(config: KernelConfig) -> int:
        if config in for_variants:
            return config.family.first_rank + for_variants.index(config)
        return rank(config)

    return _first_fitting(with_room, dtype, d_head, arch, rank_of=rank_with_variant)


def default_gradient_config(dtype: DType, d_head: int, arch: Arch) -> KernelConfig:
    """The same of gradients. Columns of a family that is slower on the architecture count for
    more."""
    families = [family for family in FAMILIES if family.gradient_header]
    known = [config for family in families for config in family.ranked]
    return _first_fitting(
        known, dtype, d_head, arch, lambda config: config.d_head / config.family.mma_rate(arch)
    )


def _first_fitting(
    known: Iterable[KernelConfig],
    dtype: DType,
    d_head: int,
    arch: Arch,
    columns: Callable[[KernelConfig], float] = lambda config: config.d_head,
    rank_of: Callable[[KernelConfig], int] = rank,
) -> KernelConfig:
    fitting = [
        config
        for config in known
        if config.dtype == dtype and config.d_head >= d_head and config.is_legal(arch)
    ]
    if not fitting:
        raise ValueError(f"pyflash: no config is for {dtype.name} with d_head {d_head} on {arch}")
    return min(fitting, key=lambda config: (columns(config), rank_of(config)))


def ensure_built(
    text: str,
    arguments: dict[str, Any],
    q: torch.Tensor,
    k: torch.Tensor,
    packing: tuple[Any, ...],
) -> None:
    """Compiles the kernel of a variant, given its portable text, that a call needs, and loads it.
    The arguments then name its config.

    Raises as `pyflash.op.on_demand.ensure_built` does.
    """
    few = _has_few_keys(k, packing), _has_few_queries(q, k, packing[2] if packing else None)
    own, d_head = constants_of(arguments), static(q.shape[-1])
    arguments["config"] = _ensure(text, *own, q.dtype, d_head, q.device.index, few)


def ensure_paged_built(
    text: str,
    arguments: dict[str, Any],
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor,
    max_seqlen_q: int | None,
) -> None:
    """`ensure_built` of a call over pages."""
    if q.dim() == 0 or k_cache.dim() != 4 or block_table.dim() != 2:
        return  # the op refuses it
    few_keys = bool(longest(k_cache.shape[1]) * longest(block_table.shape[1]) <= FEW_KEYS)
    few = few_keys, _has_few_queries(q, k_cache, max_seqlen_q)
    gathered = are_gathered(k_cache, block_table)
    own, d_head = constants_of(arguments), static(q.shape[-1])
    arguments["config"] = _ensure(
        text, *own, q.dtype, d_head, q.device.index, few, None, (), gathered
    )


def _has_few_keys(k: torch.Tensor, packing: tuple[Any, ...]) -> bool:
    """Whether the longest sequence has FEW_KEYS or fewer."""
    if not packing and k.dim() != 4:
        return False  # the op refuses it
    return bool(longest(packing[3] if packing else k.shape[1]) <= FEW_KEYS)


def _has_few_queries(q: torch.Tensor, k: torch.Tensor, max_seqlen_q: int | None) -> bool:
    """Whether all those of a sequence that share a head of K and V are FEW_ROWS or fewer."""
    if q.dim() != (4 if max_seqlen_q is None else 3) or k.dim() < 3:
        return False  # the op refuses it
    n_queries = q.shape[1] if max_seqlen_q is None else max_seqlen_q
    group = q.shape[-2] // max(k.shape[-2], 1)
    return bool(longest(n_queries * group) <= FEW_ROWS)


def ensure_gradients_built(
    text: str,
    options: Mapping[str, Any],
    q: torch.Tensor,
    packed: bool,
    summed: tuple[int, ...] = (),
) -> str:
    """Compiles the kernel of the gradients of a variant, and of the captured tensors `summed`, by
    their places, as `ensure_built` does, and returns the short form of its config."""
    own, d_head = constants_of(options), static(q.shape[-1])
    return _ensure(text, *own, q.dtype, d_head, q.device.index, _MANY, packed, summed)


def constants_of(options: Mapping[str, Any]) -> tuple[tuple[tuple[str, Any], ...], tuple[str, ...]]:
    """The numbers, and the names of the tensors."""
    tensors = tuple(name for name, x in options.items() if isinstance(x, torch.Tensor))
    return tuple((name, static(x)) for name, x in options.items() if name not in tensors), tensors


def _ensure(*problem: Any) -> str:
    return _ensure_once(*problem)


@functools.lru_cache(maxsize=4096)
def _ensure_once(
    text: str,
    numbers: tuple[tuple[str, Any], ...],
    tensors: tuple[str, ...],
    dtype: torch.dtype,
    d_head: int,
    device_index: int,
    few: tuple[bool, bool],
    packed_gradients: bool | None = None,
    summed: tuple[int, ...] = (),
    gathered: bool | None = None,
) -> str:
    """The short form of the config; what the call names where the op says what is wrong.
    few: keys, and queries, as default_config has them.
    packed_gradients: None in a forward pass; in a backward pass, whether sequences are packed.
    gathered: None where k and v lie in no pages; else whether rows of these are gathered."""
    options = dict(numbers) | dict.fromkeys(tensors, True)
    named = options.pop("config", "")
    of_q, archs = _asked(dtype, device_index)
    if of_q is None or not archs:
        return named
    if packed_gradients is None:
        if named:
            config = parse(named)
        else:
            needs = needs_of(normal_of(text))
            config = default_config(
                of_q, d_head, archs[0], needs, few_keys=few[0], few_queries=few[1]
            )
        features = features_asked(options, d_head, config.canonical())
        if gathered is not None:
            features = on_pages(features, gathered)
    else:
        config = default_gradient_config(of_q, d_head, archs[0])
        features = backward_features_asked(options, packed_gradients)
    return _load(text, config, archs, features, summed)


def _asked(dtype: torch.dtype, device_index: int) -> tuple[DType | None, list[Arch]]:
    """The dtype of configs, and what to compile for."""
    from pyflash.codegen.build import nearest_archs

    major, minor = torch.cuda.get_device_capability(device_index)
    of_q = next((known for known, of in TORCH_DTYPES.items() if of is dtype), None)
    return of_q, nearest_archs([10 * major + minor])


def _load(
    text: str,
    config: KernelConfig,
    archs: list[Arch],
    features: KernelFeatures,
    summed: tuple[int, ...],
) -> str:
    """Compiles and loads a kernel. The short form of the config."""
    from pyflash.codegen.build import build_with_variants

    normal = normal_of(text)
    variant = Summed(normal, summed) if summed else normal
    with _lock:
        try:
            library.load(build_with_variants([variant], [config], archs, [features]))
        except RuntimeError as error:
            raise RuntimeError(
                f"pyflash: the variant is not built for config '{config}', and cannot be compiled: "
                f"{error}"
            ) from error
    return config.canonical().short_form()


# NOTE: torch.compiler.assume_constant_result, without the second that it takes to import.
# torch.compile looks through what is cached for what it wraps, which has no mark.
_ensure._dynamo_marked_constant = True  # type: ignore[attr-defined]
