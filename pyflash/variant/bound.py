"""A variant with the values of its parameters."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyflash.config.words import shown, type_name
from pyflash.variant.expr import Param
from pyflash.variant.scalars import BOOL, Scalar
from pyflash.variant.value import Variant

_DTYPES = {
    "bool": Scalar.BOOL,
    "int32": Scalar.I32,
    "int64": Scalar.I64,
    "float32": Scalar.F32,
    "float16": Scalar.F16,
    "bfloat16": Scalar.BF16,
}


_PROMISES = itertools.count(1)


@dataclass(frozen=True, eq=False)
class Bound:
    """A variant and a number or tensor for each parameter, by name. Raises ValueError where one is
    missing, unknown, of another type, or a divisor that is 0."""

    variant: Variant
    values: Mapping[str, Any]
    # Of this value alone, in this process; 0: it promises nothing.
    promise: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        check_values(self.variant, self.values)

    def frozen(self) -> Bound:
        """The same, with the promise that its tensors stay as they are while it is used: what a GPU
        makes of them before a kernel runs, such as lists of blocks, is made once and kept as long
        as the value. A write that PyTorch counts (`tensor._version`) is seen nevertheless, and all
        is made anew. Others are not: those through `.data`, to tensors of `torch.inference_mode`,
        of kernels that PyTorch knows nothing of, and of replayed CUDA graphs; results are then
        those of the tensors as they were, or partly so."""
        made = Bound(self.variant, dict(self.values))
        object.__setattr__(made, "promise", next(_PROMISES))
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        # NOTE: a copy has other tensors, or is of another process: its promise is another one.
        return _copied, (self.variant, self.values, self.promise > 0)


def _copied(variant: Variant, values: Mapping[str, Any], is_frozen: bool) -> Bound:
    bound = Bound(variant, values)
    return bound.frozen() if is_frozen else bound


def check_values(variant: Variant, values: Mapping[str, Any]) -> None:
    """Raises ValueError as `Bound` does."""
    # NOTE: every call comes through here, so what it does costs.
    if len(values) != len(variant.params):
        _refuse_names(variant, values)
    for param in variant.params:
        if param.name not in values:
            _refuse_names(variant, values)
        _check(param, values[param.name])
    for name, node in variant.divisors:
        if not is_symbol(values[name]) and values[name] == 0:
            raise ValueError(f"{name} is 0 in {shown(str(node))}: expected a divisor")


def _refuse_names(variant: Variant, values: Mapping[str, Any]) -> None:
    names = [param.name for param in variant.params]
    expected = f"expected values of {', '.join(names) or 'no parameter'}"
    for name in values:
        if name not in names:
            raise ValueError(f"{name} is no parameter of {variant.name}: {expected}")
    missing = next(name for name in names if name not in values)
    raise ValueError(f"{missing} of {variant.name} has no value: {expected}")


def is_symbol(value: Any) -> bool:
    """Whether a number is one of torch's graphs, whose value is not known yet."""
    return type(value).__name__ == "SymInt"


def bind(variant: Variant, **values: Any) -> Bound:
    """With a value for each parameter: a number of Python's, or a tensor."""
    return Bound(variant, values)


def _check(param: Param, value: Any) -> None:
    if param.rank is None:
        _check_number(param, value)
        return
    try:
        shape, dtype = value.shape, value.dtype
    except AttributeError:
        found = type_name(value)
        raise ValueError(f"{param.name} is {found}: expected a tensor, {param.type_text}") from None
    if len(shape) != param.rank:
        raise ValueError(f"{param.name} has {len(shape)} axes: expected {param.rank}")
    if _scalar_of(dtype) is not param.kind:
        name = str(dtype).removeprefix("torch.")
        raise ValueError(f"{param.name} is {name}: expected {param.kind}, convert it")


@functools.cache
def _scalar_of(dtype: Any) -> Scalar | None:
    return _DTYPES.get(str(dtype).removeprefix("torch."))


def _check_number(param: Param, value: Any) -> None:
    if is_symbol(value) and param.kind is not BOOL:
        return
    is_bool = isinstance(value, bool)
    if param.kind is BOOL:
        good = is_bool
    elif param.kind.is_integer:
        good = isinstance(value, int) and not is_bool and param.kind.holds(value)
    else:
        good = isinstance(value, int | float) and not is_bool
    if not good:
        raise ValueError(f"{param.name} is {shown(value)}: expected a number, {param.kind}")
