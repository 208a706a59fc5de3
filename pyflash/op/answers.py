"""Answers about calls, kept between calls: who computes the gradients of a call is asked in its
forward and in its backward pass, and finding out takes a large part of a short call's host time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

_AT_MOST = 4096
_Answer = TypeVar("_Answer")


class Answers(dict[Any, Any]):
    """The answers about calls that are alike, by question."""

    __slots__ = ("follow_from",)

    def __init__(self, follow_from: tuple[Any, ...]) -> None:
        super().__init__()
        self.follow_from = follow_from  # `state`


_of_calls: dict[Any, Answers] = {}
_n_forgotten = 0


def forget() -> None:
    """After kernels were loaded."""
    global _n_forgotten
    _of_calls.clear()
    _n_forgotten += 1


def state() -> tuple[int, bool | str]:
    """What answers follow from beside the call: the kernels that are loaded, and whether torch's
    switch asks for one order of sums, "warn" for a warning."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns = deterministic and torch.is_deterministic_algorithms_warn_only_enabled()
    return _n_forgotten, "warn" if warns else deterministic


def answers_about(
    q: Tensor, k: Tensor | None, packing: Sequence[Any], options: Mapping[str, Any]
) -> Answers:
    """Those about calls of these devices, shapes, dtypes and numbers. packing: the positional
    arguments of `fwd_varlen` after v, or ()."""
    now = state()
    key = (
        now,
        q.device,
        q.dtype,
        q.shape,
        None if k is None else k.shape,
        (packing[0].shape, *packing[2:]) if packing else None,
        tuple(map(_told_apart, options.items())) if options else None,
    )
    try:
        return _of_calls[key]
    except KeyError:
        pass
    except TypeError:  # an extent that is unknown while a call is traced has no hash
        return Answers(now)
    if len(_of_calls) >= _AT_MOST:
        _of_calls.clear()
    found = _of_calls[key] = Answers(now)
    return found


def _told_apart(option: tuple[str, Any]) -> tuple[Any, ...]:
    name, x = option
    return (name, x.shape, x.dtype) if isinstance(x, Tensor) else option


class kept(Generic[_Answer]):
    """A function of (q, k, packing, options, *others) whose answer follows from what
    `answers_about` tells calls apart by, from `others` and from `state`; what it raises is not
    kept."""

    def __init__(self, function: Callable[..., _Answer]) -> None:
        self.function = function
        functools.update_wrapper(self, function)

    def __call__(
        self,
        q: Tensor,
        k: Tensor | None,
        packing: Sequence[Any],
        options: Mapping[str, Any],
        *others: Any,
    ) -> _Answer:
        found = answers_about(q, k, packing, options)
        return self.among(found, q, k, packing, options, *others)

    def among(self, answers: Answers, *call: Any) -> _Answer:
        """The same, given the `answers_about` the call."""
        question = (self, *call[4:]) if len(call) > 4 else self
        if question not in answers:
            answers[question] = self.function(*call)
        return answers[question]
