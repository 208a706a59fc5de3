"""Answers about calls, kept between calls: who computes the gradients of a call is asked in its
forward and in its backward pass, and finding out takes a large part of a short call's host time."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

_AT_MOST = 4096
_answers: dict[Any, Any] = {}
_Answer = TypeVar("_Answer")


def forget() -> None:
    """After kernels were loaded."""
    _answers.clear()


def kept(function: Callable[..., _Answer]) -> Callable[..., _Answer]:
    """A function of (q, k, packing, options, *others) whose answer follows from devices, shapes,
    dtypes, numbers, torch's switches and the kernels that are loaded; what it raises is not kept.
    packing: the positional arguments of `fwd_varlen` after v, or ()."""

    @functools.wraps(function)
    def asked(
        q: Tensor,
        k: Tensor | None,
        packing: Sequence[Any],
        options: Mapping[str, Any],
        *others: Any,
    ) -> _Answer:
        key = (
            function,
            q.device,
            q.dtype,
            q.shape,
            None if k is None else k.shape,
            (packing[0].shape, *packing[2:]) if packing else None,
            *[
                (name, x.shape, x.dtype) if isinstance(x, Tensor) else (name, x)
                for name, x in options.items()
            ],
            *others,
            *_switches(),
        )
        try:
            return _answers[key]
        except KeyError:
            pass
        except TypeError:  # an extent that is unknown while a call is traced has no hash
            return function(q, k, packing, options, *others)
        answer = function(q, k, packing, options, *others)
        if len(_answers) >= _AT_MOST:
            forget()
        _answers[key] = answer
        return answer

    return asked


def _switches() -> tuple[Any, ...]:
    return (
        os.environ.get("PYFLASH_BACKWARD"),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cuda.cudnn_sdp_enabled(),
    )
