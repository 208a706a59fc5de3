"""What plays the score and the indices while a function of torch is traced."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from pyflash.variant.dsl import Term, node_of
from pyflash.variant.expr import Node, constant, operation
from pyflash.variant.scalars import Scalar
from pyflash.variant.torch_rules import DTYPES, RULES, TENSOR_DTYPES, refusal_of


class Proxy(Term):
    """A number that torch's functions and operators take as a tensor without axes."""

    __slots__ = ()

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return applied(function, args, kwargs or {})

    def operand(self, value: Any) -> Node:
        return _operand(value)

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.node.kind]

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def shape(self) -> torch.Size:
        return torch.Size()

    @property
    def ndim(self) -> int:
        return 0

    def dim(self) -> int:
        return 0

    def new_ones(self, size: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
        return self._new(size, 1, dtype)

    def new_zeros(self, size: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
        return self._new(size, 0, dtype)

    def _new(self, size: Any, value: int, dtype: torch.dtype | None) -> Any:
        if tuple(size):
            raise TypeError("a tensor with axes: expected one number, as new_ones(()) makes")
        return Proxy(constant(value, _kind_of(dtype or self.dtype)))

    def __getattr__(self, name: str) -> Any:
        if name in RULES or name in CASTS or name == "to" or refusal_of(name):
            rule = "where of" if name == "where" else name  # which has the condition second
            return lambda *args, **kwargs: called(rule, (self, *args), kwargs)
        raise AttributeError(
            f"a score or an index has no {name!r} here: expected operators, or functions of torch: "
            f"{', '.join(sorted(word for word in RULES if word[0] != '_' and ' ' not in word))}"
        )

    def __getitem__(self, _: Any) -> Any:
        raise TypeError("a score or an index has no elements: expected a tensor before [")

    def __setitem__(self, *_: Any) -> None:
        raise TypeError("a write: expected a new value, as torch.where makes")

    def _number(self) -> Any:
        raise TypeError(
            "the value of a score or an index is not known here: expected functions of torch, not "
            "of math, and no loop over it"
        )

    __index__ = __int__ = __float__ = _number

    def __pow__(self, power: Any) -> Any:
        return called("pow", (self, power), {})

    def __rpow__(self, base: Any) -> Any:
        return called("pow", (base, self), {})


CASTS = {
    "float": torch.float32,
    "int": torch.int32,
    "long": torch.int64,
    "bool": torch.bool,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "double": torch.float64,
}
_KINDS = {dtype: kind for kind, dtype in TENSOR_DTYPES.items()}


def _kind_of(dtype: torch.dtype) -> Scalar:
    if dtype not in _KINDS:
        names = ", ".join(str(known).removeprefix("torch.") for known in _KINDS)
        name = str(dtype).removeprefix("torch.")
        raise TypeError(f"{name} is no type of a variant: expected {names}, convert it before")
    return _KINDS[dtype]


def kind_of_tensor(tensor: torch.Tensor) -> Scalar:
    """Raises TypeError for a dtype that no parameter has."""
    return _kind_of(tensor.dtype)


_PLACES = ("device", "dtype", "layout", "memory_format")


class _Running(threading.local):
    """What makes a node of a captured tensor: of the tracers that a thread runs, the last one's."""

    def __init__(self) -> None:
        self.of_tensor: list[Callable[[torch.Tensor], Node]] = []


running = _Running()


def applied(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of torch on proxies."""
    is_method = function is torch.Tensor.where
    return called("where of" if is_method else function.__name__, args, kwargs)


def called(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """By the name of a function or method."""
    if reason := refusal_of(name):
        raise TypeError(reason)
    if name in CASTS:
        return _cast(args[0], CASTS[name])
    if name in ("to", "type"):
        return _to(args[0], *args[1:], **kwargs)
    if name not in RULES:
        raise TypeError(
            f"torch's {name} has no form here: expected one of "
            f"{', '.join(sorted(word for word in RULES if word[0] != '_' and ' ' not in word))}"
        )
    words = {key: _operand(value) for key, value in kwargs.items() if key not in _PLACES}
    found = Proxy(RULES[name](*map(_operand, args), **words))
    return _cast(found, kwargs["dtype"]) if kwargs.get("dtype") else found


def _operand(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return running.of_tensor[-1](value)
    if value is None or isinstance(value, str):
        return value
    return node_of(value)


def _cast(value: Proxy, dtype: torch.dtype) -> Proxy:
    kind = _kind_of(dtype)
    if kind.computed is not kind:  # rounded, and computed with as an f32
        return Proxy(operation(kind.value, value.node))
    return value if value.node.kind is kind else Proxy(operation(kind.value, value.node))


def _to(value: Proxy, *args: Any, **kwargs: Any) -> Proxy:
    wanted = [*args, *kwargs.values()]
    for target in wanted:
        if isinstance(target, torch.dtype):
            return _cast(value, target)
        if isinstance(target, Proxy | torch.Tensor):
            return _cast(value, target.dtype)
    return value  # another device is none here
