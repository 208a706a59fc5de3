"""FlexAttention's functions as variants:

    bound = trace(lambda s, b, h, q, k: s + slopes[h] * (k - q), lambda b, h, q, k: q >= k)
    bound.variant, bound.values

Numbers and tensors that the functions capture become parameters. A function is called once, and
again when what it captures is another object or number.
"""

from __future__ import annotations

import inspect
import linecache
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pyflash.config.words import shown, type_name
from pyflash.variant.bound import Bound
from pyflash.variant.captures import CapturedFloat, CapturedInt, Number, Rewriter
from pyflash.variant.dsl import Term
from pyflash.variant.expr import (
    RESERVED,
    SCORE,
    TRUE,
    Node,
    Param,
    constant,
    index,
    load,
    params_of,
)
from pyflash.variant.proxies import Proxy, applied, kind_of_tensor, running
from pyflash.variant.scalars import BOOL, F32, I32, I64
from pyflash.variant.torch_rules import refusal_of
from pyflash.variant.trace_cache import TraceCache
from pyflash.variant.value import Variant, as_score

_FOLDER = Path(__file__).parent
# What score_mod is called with; a mask_mod gets the indices alone.
PAIR = (Proxy(SCORE), *(Proxy(index(name)) for name in ("b", "h", "q", "k")))


class TraceError(ValueError):
    """A function that is no variant: the reason, and its line."""


def trace(
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Bound:
    """The variant of score_mod(score, b, h, q, k) and mask_mod(b, h, q, k), and what they capture.
    Positions are absolute: a causal mask of them is top-left aligned.

    Raises TraceError, a ValueError, with the line of what no variant has.
    """
    functions = (score_mod, mask_mod)
    for function in functions:
        if function is not None and not callable(function):
            raise TypeError(f"{shown(function)} is {type_name(function)}: expected a function")
    place = _cache.place(functions, name)
    if place is not None and place.bound is not None:
        return place.bound
    tracer = Tracer()
    score = SCORE if score_mod is None else tracer.score(score_mod)
    mask = TRUE if mask_mod is None else tracer.mask(mask_mod)
    bound = tracer.bound(name or _name_of(*functions), score, mask)
    if place is not None and not tracer.reads_now:
        place.keep(bound)
    return bound


_cache = TraceCache()


def _name_of(*functions: Any) -> str:
    names = (getattr(function, "__name__", "") for function in functions if function is not None)
    return next((n for n in names if n.isascii() and n.isidentifier()), "traced")


# A trace


class Tracer:
    def __init__(self) -> None:
        self.params: dict[Param, Any] = {}
        self.known: dict[tuple[Any, ...], Param] = {}
        self.names: dict[int, str] = {}  # of tensors
        self.alive: list[Any] = []  # whose ids are keys
        self.reads_now = False  # values that may be others in the next call

    def score(self, function: Callable[..., Any]) -> Node:
        return checked_score(self._call(function, "score_mod", PAIR), _place_of(function))

    def mask(self, function: Callable[..., Any]) -> Node:
        return checked_mask(self._call(function, "mask_mod", PAIR[1:]), _place_of(function))

    def bound(self, name: str, score: Node, mask: Node) -> Bound:
        params = params_of(score, mask)
        variant = Variant(name, params, score, mask)
        return Bound(variant, {param.name: self.params[param] for param in params})

    def _call(self, function: Any, role: str, args: tuple[Any, ...]) -> Node:
        _check_signature(function, role, len(args))
        traced = Rewriter(self.of_number, self.see).of(function)
        try:
            return self.result_of(role, lambda: traced(*args))
        except TraceError as error:
            raise TraceError(f"{error}\n  {_place_of(function)}") from None
        except (TypeError, ValueError, AttributeError) as error:
            raise _with_line(error) from error

    def result_of(self, role: str, compute: Callable[[], Any]) -> Node:
        """The node of what `compute` returns, which computes with proxies."""
        running.of_tensor.append(self.of_tensor)
        try:
            with _Mode(self):
                result = compute()
            return self._result(role, result)
        finally:
            running.of_tensor.pop()

    def _result(self, role: str, result: Any) -> Node:
        if result is None:
            raise TraceError(f"{role} returns nothing: expected a number, add return")
        if isinstance(result, torch.Tensor):
            return self.of_tensor(result)
        node = getattr(result, "node", None)
        if isinstance(node, Node):
            return node
        if isinstance(result, bool | int | float):
            return constant(result)
        raise TraceError(f"{role} returns {type_name(result)}: expected a number")

    # Captured values

    def see(self, tensor: Any, name: str) -> None:
        self.names.setdefault(id(tensor), name)
        self.alive.append(tensor)

    def of_number(self, number: Number) -> Node:
        if isinstance(number, CapturedFloat):
            return load(self._param(number.name, F32, None, float(number)))
        assert isinstance(number, CapturedInt)
        value = int(number)
        kind = I32 if I32.holds(value) else I64
        if not I64.holds(value):
            raise ValueError(f"{number.name} is {shown(value)}: expected at most 64 bits")
        return load(self._param(number.name, kind, None, value))

    def of_tensor(self, tensor: torch.Tensor) -> Node:
        """A tensor without axes."""
        if tensor.dim():
            raise TypeError(
                f"{self.names.get(id(tensor), 'a tensor')} has {tensor.dim()} axes: expected one "
                "of its numbers, index it"
            )
        return load(self.tensor_param(tensor))

    def number(self, name: str, kind: Any, value: Any) -> Param:
        return self._param(name, kind, None, value)

    def tensor_param(self, tensor: torch.Tensor) -> Param:
        kind = kind_of_tensor(tensor)
        name = self.names.get(id(tensor), "tensor")
        return self._param(name, kind, tensor.dim(), tensor)

    def element(self, tensor: torch.Tensor, before: tuple[Any, ...], more: Any) -> Any:
        """tensor[before][more], where an index is a proxy."""
        indices = before + (more if isinstance(more, tuple) else (more,))
        for position in indices:
            if isinstance(position, slice) or position is None or position is Ellipsis:
                raise TypeError("a slice of a tensor: expected one index for each axis")
        if len(indices) > tensor.dim():
            name = self.names.get(id(tensor), "a tensor")
            raise TypeError(f"{name} has {tensor.dim()} axes: expected {tensor.dim()} indices")
        if len(indices) < tensor.dim():
            return Partial(self, tensor, indices)
        nodes = [self.of_tensor(i) if isinstance(i, torch.Tensor) else _index(i) for i in indices]
        return Proxy(load(self.tensor_param(tensor), *nodes))

    def _param(self, name: str, kind: Any, rank: int | None, value: Any) -> Param:
        """One for each value and name: other values of a name are numbered."""
        key = (name, kind, rank, repr(value) if rank is None else id(value))
        if key in self.known:
            return self.known[key]
        name = name if name.isascii() else "captured"
        base = f"{name}_" if name in RESERVED else name
        taken = {param.name for param in self.params}
        names = (base if i == 1 else f"{base}_{i}" for i in range(1, len(taken) + 2))
        param = Param(next(n for n in names if n not in taken), kind, rank)
        self.params[param] = value
        self.known[key] = param
        return param


def checked_score(found: Node, place: str) -> Node:
    if found.kind is BOOL:
        raise TraceError(
            f"score_mod returns a bool: expected a number; is it a mask_mod?\n  {place}"
        )
    return as_score(found)


def checked_mask(found: Node, place: str) -> Node:
    if found.kind is not BOOL:
        raise TraceError(
            f"mask_mod returns {found.kind}: expected a bool, such as x != 0\n  {place}"
        )
    return found


def _place_of(function: Any) -> str:
    code = getattr(function, "__code__", None)
    return repr(function) if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _check_signature(function: Any, role: str, count: int) -> None:
    expected = "score, b, h, q, k" if count == 5 else "b, h, q, k"
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError as error:
        raise TraceError(f"{role} takes other arguments ({error}): expected {expected}") from None
    except ValueError:  # a builtin has no signature
        return


class Partial(Term):
    """A captured tensor with indices for the first of its axes."""

    __slots__ = ("indices", "tensor", "tracer")

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return applied(function, args, kwargs or {})

    def __init__(self, tracer: Tracer, tensor: torch.Tensor, indices: tuple[Any, ...]) -> None:
        self.tracer, self.tensor, self.indices = tracer, tensor, indices

    @property
    def node(self) -> Node:  # type: ignore[override]
        missing = self.tensor.dim() - len(self.indices)
        name = self.tracer.names.get(id(self.tensor), "a tensor")
        raise TypeError(f"{name} lacks {missing} of its indices: expected one for each axis")

    def __getitem__(self, more: Any) -> Any:
        return self.tracer.element(self.tensor, self.indices, more)


def _index(value: Any) -> Node:
    node = getattr(value, "node", None)
    if isinstance(node, Node):
        return node
    if isinstance(value, int) and not isinstance(value, bool):
        return constant(value)
    raise TypeError(f"an index is {type_name(value)}: expected an integer")


class _Mode(TorchFunctionMode):
    """Sees every call of torch: those with proxies become nodes, the others are computed."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name == "__getitem__" and isinstance(args[0], torch.Tensor) and _has_term(args[1]):
            return self.tracer.element(args[0], (), args[1])
        if _has_term((*args, *kwargs.values())):
            return applied(function, args, kwargs)
        return self._computed(function, name, args, kwargs)

    def _computed(self, function: Any, name: str, args: tuple[Any, ...], kwargs: Any) -> Any:
        reads = any(isinstance(arg, torch.Tensor) for arg in (*args, *kwargs.values()))
        reason = refusal_of(name, of_score=False)
        if reason:
            raise TypeError(reason)
        result = function(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            if not reads and not result.dim():  # such as torch.tensor(2.0)
                return Proxy(constant(result.item(), kind_of_tensor(result).computed))
            self.tracer.alive.append(result)
            self.tracer.reads_now = self.tracer.reads_now or reads
        return result


def _has_term(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_has_term, value))
    return isinstance(value, Term)


def _with_line(error: Exception) -> Exception:
    """A refusal of ours with the line that it is about; other errors as they are."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [Path(frame.filename).parent == _FOLDER for frame in frames]
    if isinstance(error, TraceError) or not ours[-1]:
        return error
    theirs = [frame for frame, is_ours in zip(frames, ours, strict=True) if not is_ours]
    theirs = [frame for frame in theirs if "torch" not in Path(frame.filename).parts]
    if not theirs:
        return TraceError(str(error))
    frame = theirs[-1]
    line = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
    return TraceError(f"{error}\n  {frame.filename}:{frame.lineno}: {line}")
