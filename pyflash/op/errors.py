"""The exceptions of calls: TypeError for types, ValueError for values, torch.OutOfMemoryError where
memory is not enough, RuntimeError for what else this machine, or what is built, cannot do."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pyflash.config import KernelConfig
from pyflash.config.words import shown, type_name
from pyflash.op.options import kinds_of_options

LARGEST = 2**63 - 1

NO_GRADIENTS_OVER_PAGES = (
    "pyflash: attention over pages and append_kv have no gradients: expected tensors that do not "
    "require them, or torch.no_grad()"
)

# What an argument may be, by its kind, and in words.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "tensor": ((Tensor,), "a tensor"),
    "tensor or None": ((Tensor, type(None)), "a tensor or None"),
    "bool": ((bool, torch.SymBool), "a bool"),
    "int": ((int, torch.SymInt, numbers.Integral), "an int"),
    "float": ((int, float, torch.SymFloat, torch.SymInt, numbers.Real), "a number"),
    "float or None": (
        (int, float, type(None), torch.SymFloat, torch.SymInt, numbers.Real),
        "a number or None",
    ),
    "config": ((str, KernelConfig), "a KernelConfig or its short form"),
}
OPTION_KINDS = kinds_of_options()


def check_type(name: str, value: Any, kind: str) -> None:
    """Raises TypeError for what an argument of this kind cannot be, ValueError for an int that
    torch cannot pass on."""
    types, words = _KINDS[kind]
    if (found := type(value)) is not int and found in types:
        return  # as in nearly all calls
    if isinstance(value, types) and not (kind == "int" and isinstance(value, bool)):
        # NOTE: while torch.compile traces, an int may come from the data.
        is_known = isinstance(value, int) and not torch.compiler.is_compiling()
        if is_known and not -LARGEST <= value <= LARGEST:
            raise ValueError(f"pyflash: {name} = {shown(value)}: expected a number of 64 bits")
        return
    if isinstance(value, Tensor):
        raise TypeError(
            f"pyflash: {name} is a tensor: expected {words}, through which no gradient flows; "
            ".item() makes one"
        )
    raise TypeError(f"pyflash: {name} is {type_name(value)}: expected {words}")


def check_types(tensors: Mapping[str, Any], ints: Mapping[str, Any]) -> None:
    """Raises TypeError for an argument of a call that is of another type."""
    for name, value in tensors.items():
        if type(value) is not Tensor:
            check_type(name, value, "tensor")
    for name, value in ints.items():
        check_type(name, value, "int")


def call(op: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """A call of one of our ops, whose refusals of values are ValueErrors here."""
    try:
        return op(*arguments, **options)
    except NotImplementedError as error:  # torch's, of kilobytes
        raise _not_dense(arguments, error) from None
    except RuntimeError as error:
        if str(error) == torch.ops.pyflash.last_refusal():
            raise ValueError(str(error)) from None
        raise _with_cause(error) from None


def run(op: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """A call of an op that the caller did not name: what it refuses stays a RuntimeError."""
    try:
        return op(*arguments, **options)
    except RuntimeError as error:
        raise _with_cause(error) from None


def _with_cause(error: RuntimeError) -> RuntimeError:
    """NOTE: the op library cannot say that memory was the cause but in words."""
    lacks_memory = str(error).startswith("pyflash: torch could not allocate ")
    return torch.OutOfMemoryError(str(error)) if lacks_memory else error


def _not_dense(arguments: tuple[Any, ...], error: Exception) -> Exception:
    tensors = [x for x in arguments if isinstance(x, Tensor)]
    for x in tensors:
        if x.is_nested:
            return ValueError(
                "pyflash: a tensor is nested: expected dense tensors; sequences of several lengths "
                "go to pyflash.attention_varlen, packed"
            )
        if x.is_quantized:
            return ValueError("pyflash: a tensor is quantized: expected float16 or bfloat16")
        if x.layout != torch.strided:
            layout = str(x.layout).removeprefix("torch.")
            return ValueError(f"pyflash: a tensor has layout {layout}: expected strided tensors")
    devices = {x.device.type for x in tensors} - {"cpu", "cuda", "meta"}
    if devices:
        return ValueError(
            f"pyflash: tensors are on {', '.join(sorted(devices))}: expected a CUDA device or cpu"
        )
    return error


def unexpected(sentence: str) -> ValueError:
    """What is raised for an argument. Where time counts, its sentence is made as it is raised."""
    return ValueError(f"pyflash: {sentence}")


def require(condition: bool, sentence: str) -> None:
    """Raises ValueError for what does not hold."""
    if not condition:
        raise unexpected(sentence)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_device(q: Tensor, owner: str = "q", **others: Tensor) -> None:
    """Refuses a tensor that is not where q is, or the one that `owner` names."""
    for name, x in others.items():
        require(
            x.device == q.device, f"{name} is on {x.device}: expected {q.device}, where {owner} is"
        )


def check_integers(**tensors: Tensor) -> None:
    """Refuses a tensor of another dtype than int32 and int64."""
    for name, x in tensors.items():
        if x.dtype not in (torch.int32, torch.int64):
            raise unexpected(f"{name} is {dtype_name(x.dtype)}: expected int32 or int64")
