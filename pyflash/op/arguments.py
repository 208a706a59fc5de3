"""From the options of a caller to the keyword arguments of the ops."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from pyflash.config import ARCHS, KernelConfig, parse_short_form
from pyflash.op import library
from pyflash.op.errors import OPTION_KINDS, check_type
from pyflash.op.options import DEFAULTS, is_given, refuse_unknown


def arguments_of(function: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The op's keyword arguments; errors name `function`. Options at their defaults are left out:
    torch takes 0.6 us for each that is passed."""
    arguments = {}
    for name, value in options.items():
        if name not in DEFAULTS:
            refuse_unknown(function, options)
        default = DEFAULTS[name]
        if value is default:
            continue
        check_type(name, value, OPTION_KINDS[name])
        if name == "config":
            if value != "":
                arguments[name] = _short_form(value)
        elif is_given(name, value):
            arguments[name] = value
    return arguments


def _short_form(config: KernelConfig | str) -> str:
    return _checked_short_form(config)


@functools.lru_cache(maxsize=4096)
def _checked_short_form(config: KernelConfig | str) -> str:
    """The short form of the config that stands for all that compile to the same kernel. Raises
    ValueError for one that is not built, and breaks rules on every architecture."""
    if isinstance(config, str):
        try:
            config = parse_short_form(config)
        except ValueError as error:
            raise ValueError(f"pyflash: config: {error}") from None
    is_legal = any(config.is_legal(arch) for arch in ARCHS)
    if not is_legal and config not in library.built_configs():
        sentence = min((config.violations(arch) for arch in ARCHS), key=len)[0].sentence
        raise ValueError(f"pyflash: config '{config}' is legal nowhere: {sentence}")
    return config.canonical().short_form()


# NOTE: torch.compiler.assume_constant_result, without the second that it takes to import.
_short_form._dynamo_marked_constant = True  # type: ignore[attr-defined]
