"""The options of commands that take a variant: which attention is computed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyflash.ui.app import completed_from

if TYPE_CHECKING:
    from pyflash.variant import Param, Variant
    from pyflash.variant.library import Entry
    from pyflash.variant.tiles import Problem


def known_variants() -> list[str]:
    from pyflash.variant.library import names

    return names()


_HELP = "A name of `pyflash variant list`, or text: 'causal: s where k <= q'."
VariantOption = Annotated[
    str | None,
    typer.Option(
        "--variant", metavar="VARIANT", autocompletion=completed_from(known_variants), help=_HELP
    ),
]
ValueOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=JSON",
        help="A variant's parameter as JSON: window=128, doc=[[0, 0, 1]]; may be repeated.",
    ),
]


def variant_of(text: str) -> tuple[Variant, Entry | None]:
    """The variant, and its file where it is named. Raises ValueError with the place of what is
    wrong, in a line."""
    from pyflash.variant import TextError, parse
    from pyflash.variant.library import named

    if ":" not in text:
        entry = named(text.strip())
        return entry.variant, entry
    try:
        return parse(text), None
    except TextError as error:
        before, after = error.text[: error.column], error.text[error.column :]
        raise ValueError(f"{error.reason}: {before}>>>{after}") from None


def values_of(
    variant: Variant, entry: Entry | None, texts: list[str], problem: Problem
) -> dict[str, Any]:
    """Numbers and nested lists by parameter: the example's of a named variant, and those that texts
    name=JSON give."""
    return (entry.example(problem) if entry else {}) | _given(variant, texts)


def tensors_of(variant: Variant, values: dict[str, Any]) -> dict[str, Any]:
    """The same with tensors in place of lists. Raises ValueError for a parameter that has none."""
    missing = [param.name for param in variant.params if param.name not in values]
    if missing:
        raise ValueError(
            f"{variant.name} has no value of {', '.join(missing)}: expected --value "
            f"{missing[0]}=JSON"
        )
    return {param.name: _tensor(param, values[param.name]) for param in variant.params}


def _tensor(param: Param, value: Any) -> Any:
    import torch

    from pyflash.variant.torch_rules import TENSOR_DTYPES

    return value if param.rank is None else torch.tensor(value, dtype=TENSOR_DTYPES[param.kind])


def _given(variant: Variant, texts: list[str]) -> dict[str, Any]:
    ranks = {param.name: param.rank or 0 for param in variant.params}
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if name not in ranks or not equals:
            known = ", ".join(ranks) or "none"
            raise ValueError(f"--value {text}: expected name=JSON, of the parameters {known}")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"--value {text}: expected JSON ({error.msg})") from None
        if _rank(found[name]) != ranks[name]:
            raise ValueError(
                f"--value {text}: expected {ranks[name]} axes of lists, none of them empty"
            )
    return found


def _rank(value: Any) -> int:
    """The axes of nested lists of equal lengths; -1 for anything else."""
    if not isinstance(value, list):
        return 0 if isinstance(value, bool | int | float) else -1
    inner = {(_rank(item), len(item) if isinstance(item, list) else 0) for item in value}
    return 1 + next(iter(inner))[0] if len(inner) == 1 and min(inner)[0] >= 0 else -1
