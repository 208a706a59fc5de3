"""batch_invariant: calls in which the bits of a row of out and lse depend on its own query, the
keys and values that it attends, and the options.

A dtype, d_head and kind of GPU have one config, or one for many rows and one for few with the same
B_c, so that blocks of keys begin at multiples of it from the first key on, whatever pages hold
them. CTAs share the keys of a tile at fixed ones, whatever lengths are; their results are merged in
order, and those of CTAs without a key of a row change none of its bits. The maximum that exponents
of a row refer to is the row's own doing, too: with `rows_decide`, or without `rescale_threshold`,
else the rows of a warp vote.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pyflash.config import DType, Family, KernelConfig, named_set, parse_short_form
from pyflash.op.errors import check_type, dtype_name, require

# num_splits of such calls: kKeysOfFixedSplit of cute_kernels/params.h.
AT_FIXED_KEYS = -2

_DTYPES = {torch.float16: DType.FP16, torch.bfloat16: DType.BF16}


def invariant_arguments(
    batch_invariant: bool,
    arguments: dict[str, Any],
    q: Tensor,
    k: Tensor,
    longest_q: int | None = None,
    variant: Any = None,
) -> dict[str, Any]:
    """The op's keyword arguments with the config and the splits of such calls, or as they are if
    it is False. longest_q: queries of the longest sequence, by default those of q, (batch,
    seqlen_q, heads, d_head). Raises ValueError for what cannot be invariant."""
    if batch_invariant is False:
        if arguments.get("num_splits", 0) == AT_FIXED_KEYS:
            raise ValueError(
                f"pyflash: num_splits = {AT_FIXED_KEYS} came without batch_invariant: expected a "
                "number from 1 to 128, 0 to have it chosen, or -1 for as many as each sequence's "
                "length asks for"
            )
        return arguments
    check_type("batch_invariant", batch_invariant, "bool")
    _refuse_what_cannot_be(arguments, q, variant)
    config = arguments.get("config") or _config_for(q, k, longest_q)
    return {**arguments, "config": config, "num_splits": AT_FIXED_KEYS}


def _config_for(q: Tensor, k: Tensor, longest_q: int | None) -> str:
    """That for few rows where those of each sequence and head of k fit one of its tiles."""
    kind = (q.dtype, operator.index(q.shape[-1]), _sm_arch(q.device))
    # Other shapes are the op's to refuse.
    if q.dim() >= 3 and k.dim() >= 3 and k.shape[-2] > 0:
        rows = q.shape[-2] // k.shape[-2] * (q.shape[-3] if longest_q is None else longest_q)
        if rows <= _few_rows(*kind):
            return _short_form(*kind, True)
    return _short_form(*kind, False)


# NOTE: sentences are made where they are raised: under torch.compile numbers may be symbols.
def _refuse_what_cannot_be(arguments: Mapping[str, Any], q: Tensor, variant: Any) -> None:
    if q.dtype not in _DTYPES:
        raise ValueError(
            f"pyflash: batch_invariant with q of {dtype_name(q.dtype)}: expected float16 or "
            "bfloat16, to which autocast casts too late"
        )
    if variant is not None:
        raise ValueError(
            "pyflash: batch_invariant came with a variant: expected one of them; blocks of keys "
            "that a variant hides are left out by what all queries of a tile attend"
        )
    num_splits = arguments.get("num_splits", 0)
    if num_splits not in (0, AT_FIXED_KEYS):
        raise ValueError(
            f"pyflash: batch_invariant came with num_splits = {num_splits}: expected 0, because "
            "keys are split at fixed places then"
        )
    if "dropout_p" in arguments:
        raise ValueError(
            f"pyflash: batch_invariant came with dropout_p = {arguments['dropout_p']}: expected 0, "
            "because what is dropped depends on a sequence's place in the batch"
        )
    softcap = arguments.get("softcap", 0.0)
    if q.device.type == "cuda" and softcap > 0:
        raise ValueError(
            f"pyflash: batch_invariant came with softcap = {softcap}: expected 0 on a GPU, where "
            "the rows of a warp vote on the terms of tanh"
        )
    config = arguments.get("config")
    if config and not _has_own_rows(config):
        raise ValueError(
            f"pyflash: batch_invariant came with config '{config}': expected one without "
            "rescale_threshold, by which the rows of a warp vote, or with rows_decide, too"
        )


def invariant_config(
    dtype: DType | str, d_head: int, sm_arch: int, few_rows: bool = False
) -> KernelConfig:
    """The config of such calls: of the set `invariant`, that of the newest family that runs on an
    architecture, 0 for the CPU, with the narrowest head that holds d_head. few_rows: the one for
    few rows, B_r at most, of each sequence and head of k; there may be one for all."""
    fitting = [
        config
        for config in named_set("invariant")
        if config.dtype == DType.of(dtype)
        and config.d_head >= d_head
        and _runs_on(config.family, sm_arch)
    ]
    require(len(fitting) > 0, f"batch_invariant with d_head {d_head}: expected 256 at most")
    return min(
        fitting,
        key=lambda config: (
            -config.family.generation,
            config.d_head,
            config.B_r if few_rows else -config.B_r,
        ),
    )


def _runs_on(family: Family, sm_arch: int) -> bool:
    if family.arch_specific:
        return sm_arch == family.generation
    return sm_arch == 0 or sm_arch >= family.generation


def _sm_arch(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


def _short_form(dtype: torch.dtype, d_head: int, sm_arch: int, few_rows: bool) -> str:
    return _short_form_of(dtype, d_head, sm_arch, few_rows)


@functools.lru_cache(maxsize=256)
def _short_form_of(dtype: torch.dtype, d_head: int, sm_arch: int, few_rows: bool) -> str:
    config = invariant_config(_DTYPES[dtype], d_head, sm_arch, few_rows)
    return config.canonical().short_form()


def _few_rows(dtype: torch.dtype, d_head: int, sm_arch: int) -> int:
    return _few_rows_of(dtype, d_head, sm_arch)


@functools.lru_cache(maxsize=256)
def _few_rows_of(dtype: torch.dtype, d_head: int, sm_arch: int) -> int:
    return invariant_config(_DTYPES[dtype], d_head, sm_arch, few_rows=True).B_r


def _has_own_rows(config: str) -> bool:
    return bool(parse_short_form(config).has_own_rows)


# As in pyflash/op/arguments.py.
_few_rows._dynamo_marked_constant = True  # type: ignore[attr-defined]
_short_form._dynamo_marked_constant = True  # type: ignore[attr-defined]
_has_own_rows._dynamo_marked_constant = True  # type: ignore[attr-defined]
