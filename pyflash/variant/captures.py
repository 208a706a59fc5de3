"""What a function captures in its closure, globals and defaults: numbers, tensors, functions.

Numbers are replaced by ones that know their names, so that another window or slope is another value
of a parameter and no other variant.
"""

from __future__ import annotations

import builtins
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

_NUMBERS = (int, float)
_FIXED = ("torch", "math", "operator", "functools", "builtins")  # whose attributes stay


class Number:
    """A captured number. It is a number of Python's too: what is computed of it is one with its
    name, and may be compared and counted with."""

    name: str
    register: Callable[[Any], Any]

    @property
    def node(self) -> Any:
        return self.register(self)


class CapturedInt(Number, int):
    pass


class CapturedFloat(Number, float):
    pass


def named(value: int | float, name: str, register: Callable[[Any], Any]) -> Any:
    kind = CapturedFloat if isinstance(value, float) else CapturedInt
    found = kind(value)
    found.name, found.register = name, register
    return found


def _computing(name: str) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        plain = int if isinstance(self, int) else float
        result = getattr(plain(self), name)(*others)
        is_number = isinstance(result, _NUMBERS) and not isinstance(result, bool)
        return named(result, self.name, self.register) if is_number else result

    return method


_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
for _kind in (CapturedInt, CapturedFloat):
    for _name in (*_OPERATORS, *(f"r{op}" for op in _OPERATORS), "neg", "abs"):
        setattr(_kind, f"__{_name}__", _computing(f"__{_name}__"))


def is_captured_number(value: Any) -> bool:
    """An infinity stays a constant: it is a mask more often than a number."""
    is_number = isinstance(value, _NUMBERS) and not isinstance(value, bool)
    return is_number and value == value and abs(value) != float("inf")


def _is_of(value: Any, *packages: str) -> bool:
    name = getattr(value, "__module__", None) or getattr(value, "__name__", "")
    return str(name).partition(".")[0] in packages


def _is_own(function: Any) -> bool:
    """Whether its captures are looked into: of torch's functions, those that close over others, as
    and_masks makes them."""
    is_function = isinstance(function, types.FunctionType)
    return is_function and (not _is_of(function, "torch") or bool(function.__closure__))


def captured(function: types.FunctionType) -> Iterator[tuple[str, str, Any]]:
    """Where each captured value is, its name, and the value."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield "closure", name, cell.cell_contents
        except ValueError:  # an empty cell: Python says so where it is read
            continue
    if _is_of(function, "torch"):
        return
    for name in dict.fromkeys(_global_names(function.__code__)):
        if name in function.__globals__ and not hasattr(builtins, name):
            yield "globals", name, function.__globals__[name]
    defaults = function.__defaults__ or ()
    count = function.__code__.co_argcount
    for name, value in zip(
        function.__code__.co_varnames[count - len(defaults) : count], defaults, strict=True
    ):
        yield "defaults", name, value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield "kwdefaults", name, value


def is_foreign(function: types.FunctionType, value: Any) -> bool:
    """Whether a global of a function is another module's function, which has globals of its own."""
    is_function = isinstance(value, types.FunctionType) and not _is_of(value, "torch")
    return is_function and value.__globals__ is not function.__globals__


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def snapshot(function: Any) -> list[Any] | None:
    """What a trace of a function depends on, tensors by identity. None: it may depend on more."""
    found: list[Any] = []
    return found if _snap(function, found, set()) else None


def _snap(value: Any, found: list[Any], open_functions: set[int]) -> bool:
    import torch

    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device)):
        found.append((type(value), repr(value)))
        return True
    is_fixed = isinstance(value, types.ModuleType | types.BuiltinFunctionType | type)
    if isinstance(value, torch.Tensor) or (is_fixed and _is_of(value, *_FIXED)):
        found.append(value)
        return True
    if isinstance(value, tuple | list):
        found.append((type(value), len(value)))
        return all(_snap(item, found, open_functions) for item in value)
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, sorted(value.keywords.items()))
        return _snap(parts, found, open_functions)
    if not isinstance(value, types.FunctionType) or id(value) in open_functions:
        return False
    if not _is_own(value):
        found.append(value)
        return True
    if open_functions:  # of the outermost one the cache knows
        found.append(value)
    found.append(value.__code__)
    inner = open_functions | {id(value)}
    return all(
        not (where == "globals" and is_foreign(value, item)) and _snap(item, found, inner)
        for where, _, item in captured(value)
    )


def same(one: list[Any], other: list[Any]) -> bool:
    """Whether two snapshots are of the same things."""
    return len(one) == len(other) and all(
        a == b if isinstance(a, tuple) else a is b for a, b in zip(one, other, strict=True)
    )


class Rewriter:
    """Functions that read captured numbers by name. see: called with each tensor and its name."""

    def __init__(self, register: Callable[[Any], Any], see: Callable[[Any, str], None]) -> None:
        self.register, self.see = register, see
        self.made: dict[int, Any] = {}

    def of(self, value: Any, name: str = "captured") -> Any:
        import torch

        if is_captured_number(value):
            return named(value, name, self.register)
        if isinstance(value, torch.Tensor):
            self.see(value, name)
        if type(value) in (tuple, list):
            return type(value)(self.of(item, name) for item in value)
        if isinstance(value, functools.partial):
            words = {key: self.of(item, key) for key, item in value.keywords.items()}
            return functools.partial(self.of(value.func), *map(self.of, value.args), **words)
        if isinstance(value, types.MethodType):
            return types.MethodType(self.of(value.__func__), value.__self__)
        return self._function(value) if _is_own(value) else value

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        if id(function) in self.made:
            return self.made[id(function)]
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        names = dict(function.__globals__)
        made = types.FunctionType(
            function.__code__, names, function.__name__, function.__defaults__, cells or None
        )
        self.made[id(function)] = made  # before what it captures, which may be itself
        defaults, words = [], {}
        places = function.__code__.co_freevars
        for where, name, value in captured(function):
            is_left = where == "globals" and is_foreign(function, value)
            new = value if is_left else self.of(value, name)
            if where == "closure":
                cells[places.index(name)].cell_contents = new
            elif where == "globals":
                names[name] = new
            elif where == "defaults":
                defaults.append(new)
            else:
                words[name] = new
        made.__defaults__, made.__kwdefaults__ = tuple(defaults) or None, words or None
        return made
