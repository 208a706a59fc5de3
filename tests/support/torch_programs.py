"""Expressions by torch's own functions: of tensors, or of whatever plays one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from pyflash.variant.expr import Node, params_of
from pyflash.variant.scalars import F32, I64, signature
from pyflash.variant.value import Variant
from pyflash.variant.walk import fold

_DTYPES = {
    "bool": torch.bool,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "~": lambda a: ~a,
    "neg": lambda a: -a,
    "min": torch.minimum,
    "max": torch.maximum,
    "clamp": torch.clamp,
    "abs": torch.abs,
    "floor": torch.floor,
    "where": torch.where,
    "erf": torch.erf,
    **{name: getattr(torch, name) for name in ("exp", "exp2", "log", "log2", "tanh", "sigmoid")},
    **{name: getattr(torch, name) for name in ("sqrt", "rsqrt", "sin", "cos")},
}


def torch_value(root: Node, values: Mapping[str, Any], floats: torch.dtype = torch.float32) -> Any:
    """The value of a node, of the type that stands for f32. Loads read values by the names of
    parameters; numbers may be Python's."""

    def rule(node: Node, args: tuple[Any, ...]) -> Any:
        if node.op == "constant":
            return _tensor(node, floats)
        if node.op == "index":
            return values[node.data]
        if node.op == "load":
            found = values[node.data.name]
            if isinstance(found, bool | int | float):
                return _number(found, values["q"])
            element = found[args] if args else found
            return (
                element.to(floats) if node.kind is F32 and node.data.rank is not None else element
            )
        if node.op in ("f32", *_DTYPES):
            wide = args[0].to(_DTYPES.get(node.op, floats))
            return wide.to(floats) if node.kind is F32 else wide
        if node.op in ("exp", "exp2", "log", "log2", "tanh", "sigmoid", "sqrt", "rsqrt", "sin",
                       "cos", "erf", "floor", "/"):  # fmt: skip
            args = tuple(arg if _is_float(arg) else arg.to(floats) for arg in args)
        kinds = tuple(arg.kind for arg in node.args)
        if I64 in kinds and len(set(kinds)) > 1:  # vmap takes what is not batched for a number
            wanted, _ = signature(node.op, kinds)
            args = tuple(
                a.to(_DTYPES.get(str(w), floats)) for a, w in zip(args, wanted, strict=True)
            )
        if node.op in ("clamp", "min", "max"):
            kind = floats if node.kind is F32 else _DTYPES[str(node.kind)]
            args = tuple(arg.to(kind) for arg in args)
        if node.op == "clamp" and all(type(arg) is torch.Tensor for arg in args):
            args = torch.broadcast_tensors(*args)  # torch has no gradient of it otherwise
        return FUNCTIONS[node.op](*args)

    return fold(root, rule)


def _is_float(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.is_floating_point()


def _tensor(node: Node, floats: torch.dtype) -> torch.Tensor:
    return torch.tensor(node.data, dtype=_DTYPES.get(str(node.kind), floats))


def _number(number: Any, index: Any) -> Any:
    """A number of Python's as a tensor, by what torch makes of it beside one."""
    if isinstance(number, int) and not isinstance(number, bool):
        return index * 0 + number
    return torch.where(index == index, number, number)


def flex_functions(
    variant: Variant, values: Mapping[str, Any]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """score_mod and mask_mod of a variant that reads what FlexAttention's functions may: numbers
    and tensors are captured, one closure variable each."""
    captured = {param.name: values[param.name] for param in params_of(variant.score, variant.mask)}
    numbers = {param.name for param in variant.params if param.rank is None}
    names = [*captured]
    source = [f"def make({', '.join(names)}):"]
    bound = ", ".join(f"{name!r}: {name}" for name in names)
    for role, first, extra in (("score", "s, ", "'s': s, "), ("mask", "", "")):
        source += [
            f"    def {role}_mod({first}b, h, q, k):",
            f"        values = {{{extra}'b': b, 'h': h, 'q': q, 'k': k, {bound}}}",
            f"        return torch_value({role}, values)",
        ]
    source += ["    return score_mod, mask_mod"]
    names_here: dict[str, Any] = {
        "torch_value": torch_value, "score": variant.score, "mask": variant.mask
    }  # fmt: skip
    exec("\n".join(source), names_here)
    return names_here["make"](
        *(value.item() if name in numbers else value for name, value in captured.items())
    )
