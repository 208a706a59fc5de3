"""From a variant and what it captures to the arguments of `torch.ops.pyflash.fwd_variant`."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from pyflash.config.words import type_name
from pyflash.variant import Bound, Variant, parse
from pyflash.variant.bound import check_values, is_symbol
from pyflash.variant.library import named
from pyflash.variant.parser import normal_of
from pyflash.variant.summed import differentiable


class Captured(NamedTuple):
    """The op's arguments after q, k and v."""

    text: str  # portable
    tensors: list[Tensor]
    reals: list[float]
    integers: list[int]


def as_variant(variant: Variant | str) -> Variant:
    """The value itself, the one of a text, or the named one. Raises ValueError for another text,
    TypeError for another type."""
    if isinstance(variant, Variant):
        return variant
    if not isinstance(variant, str):
        raise TypeError(
            f"pyflash: variant is {type_name(variant)}: expected a Variant, one that is bound, its "
            "text or the name of one"
        )
    return _of_text(variant)


@functools.lru_cache(maxsize=4096)
def _of_text(text: str) -> Variant:
    try:
        return parse(text) if ":" in text else named(text).variant
    except ValueError as error:
        raise ValueError(f"pyflash: variant: {error}") from None


def captured_of(variant: Variant | Bound | str, values: Mapping[str, Any] | None) -> Captured:
    """Raises ValueError for values that are not of the variant's parameters, TypeError for what is
    no variant and for values that are no mapping."""
    if isinstance(variant, Bound) and not values and not torch.compiler.is_dynamo_compiling():
        return _captured_of_bound(variant)
    given = dict(values) if values is not None else {}
    if isinstance(variant, Bound):
        given, variant = {**variant.values, **given}, variant.variant
    known = _known(variant)
    if not given and not known[1]:
        return Captured(known[0], [], [], [])
    if torch.compiler.is_compiling():  # the op checks types
        _check_names(given, known[1])
    else:
        _check(variant, given)
    return _in_places(known, given)


_BOUND: weakref.WeakKeyDictionary[Bound, Captured] = weakref.WeakKeyDictionary()


def _captured_of_bound(bound: Bound) -> Captured:
    """Kept as long as the value is: it was checked when it was made."""
    found = _BOUND.get(bound)
    if found is None:
        found = _BOUND[bound] = _in_places(_known(bound.variant), bound.values)
        if bound.promise:
            forget = weakref.finalize(bound, torch.ops.pyflash.forget_made, bound.promise)
            forget.atexit = False
    return found


_PLAIN = (Tensor, torch.nn.Parameter)


def promise_of(variant: Variant | Bound | str, captured: Captured, q: Tensor) -> list[int] | None:
    """The op's argument: the number of a value that is frozen, and the versions of its tensors;
    None where it promises nothing, or `keeps_promises` does not hold."""
    if not isinstance(variant, Bound) or not variant.promise or not keeps_promises(q):
        return None
    if _BOUND.get(variant) is not captured:  # other values came beside it
        return None
    return [variant.promise, *(-1 if x.is_inference() else x._version for x in captured.tensors)]


def keeps_promises(q: Tensor) -> bool:
    """Whether a call is one of real tensors. What is traced runs with others, and would have the
    promise for a constant."""
    return (
        not torch.compiler.is_compiling()
        and type(q) in _PLAIN
        and _get_current_dispatch_mode() is None
        and not torch.jit.is_tracing()
    )


# The portable text, the names of all parameters, and those of the captured ones in their order, by
# the values of the op that they are among: tensors, reals, integers.
_Known = tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]


def _in_places(known: _Known, given: Mapping[str, Any]) -> Captured:
    text, _, tensors, reals, integers = known
    return Captured(
        text,
        [given[name] for name in tensors],
        # NOTE: a comprehension of nothing costs a call.
        [float(given[name]) for name in reals] if reals else [],
        [_integer(given[name]) for name in integers] if integers else [],
    )


def _integer(value: Any) -> Any:
    return value if is_symbol(value) else int(value)


def _known(variant: Variant | str) -> _Known:
    # NOTE: equal variants may have parameters of other names.
    return _known_of_text(variant) if isinstance(variant, str) else _known_of(as_variant(variant))


@functools.lru_cache(maxsize=4096)
def _known_of_text(text: str) -> _Known:
    return _known_of(as_variant(text))


def _known_of(value: Variant) -> _Known:
    return value.portable, value.names, *value.captured_names


# NOTE: torch.compiler.assume_constant_result, without the second that it takes to import.
_known._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _check(variant: Variant | str, given: Mapping[str, Any]) -> None:
    try:
        check_values(as_variant(variant), given)
    except ValueError as error:
        raise ValueError(f"pyflash: {error}") from None


def _check_names(given: Mapping[str, Any], expected: tuple[str, ...]) -> None:
    if sorted(given) != sorted(expected):
        raise ValueError(
            f"pyflash: the variant got {', '.join(given) or 'no values'}: expected "
            f"{', '.join(expected) or 'none'}"
        )


def summed_of(captured: Captured, needed: Sequence[bool]) -> tuple[int, ...]:
    """The places of captured tensors whose gradients kernels sum, of those that are needed. Others
    are 0 everywhere."""
    return tuple(place for place in _differentiable(captured.text) if needed[place])


def _differentiable(text: str) -> tuple[int, ...]:
    return _differentiable_once(text)


@functools.lru_cache(maxsize=4096)
def _differentiable_once(text: str) -> tuple[int, ...]:
    return differentiable(normal_of(text))


# NOTE: torch.compile looks through what is cached for what it wraps, which has no mark.
_differentiable._dynamo_marked_constant = True  # type: ignore[attr-defined]
