"""The options of commands that run, or ask about, a problem."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from pyflash.op.options import OPTIONS, PER_HEAD, scalar_options
from pyflash.ui.app import completed_from

if TYPE_CHECKING:
    from torch import Tensor

    from pyflash.config import DType


def _dtypes() -> list[str]:
    from pyflash.config import DType

    return [name.lower() for name in DType.__members__]


Batch = Annotated[int, typer.Option(metavar="N", min=0, help="Sequences.")]
Heads = Annotated[int, typer.Option(metavar="N", min=0, help="Heads of q.")]
HeadsKv = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Heads of k and v; as q by default.")
]
Dtype = Annotated[
    str,
    typer.Option(metavar="DTYPE", autocompletion=completed_from(_dtypes), help="fp16 or bf16."),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE", help="As torch names it; cuda by default where there is one, or cpu."
    ),
]


def takes_attention_options(command: Callable[..., None]) -> Callable[..., None]:
    """For a command of **options: one flag for each option of attention that a shell can write. Of
    a tensor it says whether there is one: `with_tensors` makes it."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    flags = {
        name: (
            option.default,
            Annotated[kind, typer.Option(metavar=_metavar(kind), help=option.meaning)],
        )
        for name, (kind, option) in scalar_options().items()
    }
    for name in PER_HEAD:
        only_on = "--" + name.replace("_", "-")
        help = f"A tensor that the command makes: {OPTIONS[name].meaning}"
        flags[name] = (False, Annotated[bool, typer.Option(only_on, help=help)])
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
        for name, (default, annotation) in flags.items()
        if name not in signature.parameters
    ]
    command.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in [*own, *added]}
    return command


def _metavar(kind: Any) -> str | None:
    """None: a flag has none."""
    return None if kind is bool else "X" if float in (kind, *get_args(kind)) else "N"


def with_tensors(options: Mapping[str, Any], make: Callable[[], Tensor]) -> dict[str, Any]:
    """The options of a command that `takes_attention_options`, as attention takes them."""
    return {**options, **{name: make() if options[name] else None for name in PER_HEAD}}


def dtype_of(text: str) -> DType:
    """Raises ValueError for any but fp16 and bf16, in either case."""
    from pyflash.config import DType

    if text.upper() not in DType.__members__:
        raise ValueError(f"--dtype {text}: expected fp16 or bf16")
    return DType[text.upper()]


def device_of(text: str | None) -> str:
    """Raises ValueError for what is no device of pyflash, RuntimeError for one that is not here."""
    import torch

    from pyflash.op.selection import check_device

    if text is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    return str(check_device(text))
