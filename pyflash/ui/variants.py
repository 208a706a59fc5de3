"""The options of commands that take a variant: which attention is computed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyflash.ui.app import completed_from

if TYPE_CHECKING:
    from pyflash.config import KernelConfig
    from pyflash.variant import Param, Variant
    from pyflash.variant.library import Entry
    from pyflash.variant.tiles import Problem


def known_variants() -> list[str]:
    from pyflash.variant.library import names

    return names()


_HELP = "A name of `pyflash variant list`, text such as 'causal: s where k <= q', or a file of it."
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


def read_variant(text: str) -> tuple[Variant, Entry | None]:
    """`variant_of` a command's argument, which may name a file: what has a dot or a slash, and no
    colon. Its lines that begin with # are comments. Raises ValueError as that does, OSError for a
    file that is not there."""
    if ":" in text or not set(text) & set("./"):
        return variant_of(text)
    lines = Path(text).read_text().splitlines()
    found = "\n".join(line for line in lines if not line.lstrip().startswith("#")).strip()
    if ":" not in found:
        raise ValueError(f"{text} holds no variant: expected a text such as causal: s where k <= q")
    return variant_of(found)


@dataclass(frozen=True)
class AskedVariant:
    """The variant of a command, and what --value gave."""

    variant: Variant
    entry: Entry | None
    values: Mapping[str, Any]

    @classmethod
    def of(cls, text: str | None, texts: Iterable[str] | None) -> AskedVariant | None:
        """None where there is none. Raises BadParameter for values alone; else as `read_variant`
        does, and for a value that is none of the variant's."""
        if text is None:
            if texts:
                raise typer.BadParameter(
                    "--value came without --variant: expected both, or neither"
                )
            return None
        variant, entry = read_variant(text)
        return cls(variant, entry, _given(variant, list(texts or ())))

    @classmethod
    def of_value(
        cls, variant: AskedVariant | Variant | str | None, values: Mapping[str, Any] | None
    ) -> AskedVariant | None:
        """From Python: a value, or a text or name of one. Raises ValueError for values that are
        none of its parameters."""
        if variant is None or isinstance(variant, AskedVariant):
            return variant
        found, entry = variant_of(variant) if isinstance(variant, str) else (variant, None)
        given = [f"{name}={json.dumps(value)}" for name, value in (values or {}).items()]
        return cls(found, entry, _given(found, given))

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> AskedVariant:
        """The inverse of `to_json`."""
        variant, entry = variant_of(values["variant"])
        return cls(variant, entry, values["values"])

    def to_json(self) -> dict[str, Any]:
        """By "variant" and "values"."""
        text = self.entry.name if self.entry else str(self.variant)
        return {"variant": text, "values": dict(self.values)}

    @property
    def name(self) -> str:
        """What tells it from other variants in records."""
        return f"{self.variant.name} {self.variant.key}"

    def check_families(self, configs: Iterable[KernelConfig]) -> None:
        """Raises BadParameter for a config whose kernels take no variant."""
        for config in configs:
            if config.family.variant_header is None:
                raise typer.BadParameter(f"--variant: kernels of {config.family} take none")

    def tensors(self, problem: Problem, device: str = "cpu") -> dict[str, Any]:
        """Numbers, and tensors on a device, by parameter. Raises ValueError for a parameter that
        has neither an example nor a value."""
        example = self.entry.example(problem) if self.entry else {}
        return tensors_of(self.variant, example | dict(self.values), device)


def values_of(
    variant: Variant, entry: Entry | None, texts: list[str], problem: Problem
) -> dict[str, Any]:
    """Numbers and nested lists by parameter: the example's of a named variant, and those that texts
    name=JSON give."""
    return (entry.example(problem) if entry else {}) | _given(variant, texts)


def tensors_of(variant: Variant, values: dict[str, Any], device: str = "cpu") -> dict[str, Any]:
    """The same with tensors in place of lists. Raises ValueError for a parameter that has none."""
    missing = [param.name for param in variant.params if param.name not in values]
    if missing:
        raise ValueError(
            f"{variant.name} has no value of {', '.join(missing)}: expected --value "
            f"{missing[0]}=JSON"
        )
    return {param.name: _tensor(param, values[param.name], device) for param in variant.params}


def _tensor(param: Param, value: Any, device: str) -> Any:
    import torch

    from pyflash.variant.torch_rules import TENSOR_DTYPES

    if param.rank is None:
        return value
    return torch.tensor(value, dtype=TENSOR_DTYPES[param.kind], device=device)


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
