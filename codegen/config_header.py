"""The C++ header of the config types: their structs and descriptions.

    folder = include_dir()                          # for -I; written where it is not there
    folder / "cute_kernels/generated/configs.h"

It is emitted from the field descriptions in `pyflash.config` and never committed: a build includes
it from a folder of the cache that is named by its contents.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from enum import IntEnum
from pathlib import Path

from pyflash.codegen.cache_dir import CacheError, cache_dir, opened, write_if_changed
from pyflash.codegen.cache_locks import locked_for
from pyflash.config import FAMILIES, DType, Family, KernelConfig, Op
from pyflash.config.fields import Field, Word, cpp_value, describe

PATH = Path("cute_kernels") / "generated" / "configs.h"

_HEADER = """\
// The configs of all kernel families. Emitted by codegen/config_header.py from the field
// descriptions in pyflash/config: edit those.
#pragma once

#include <compare>

// NOTE: the config types are outside namespace pyflash because nvcc 13.0 writes a host stub that
// does not compile for a kernel whose class-type template argument lives in a namespace.

{enums}

{structs}

// Device code that is compiled by itself needs no more.
#if !defined(PYFLASH_DEVICE_CODE)

#include <array>
#include <tuple>
#include <variant>

#include "cute_kernels/config_description.h"

namespace pyflash {{

{ops}

// Each is defined by a header of its own: cute_kernels/ops.h.
using AllOps = OpList<{op_names}>;

}}  // namespace pyflash

{descriptions}

// In the order of the families, which is that of the configs of different families.
using AnyConfig = std::variant<
    {names}>;

{configs_of_ops}

#endif
"""

_DIGEST = """
// A digest of the text above: libraries that were built from other headers have another one.
inline constexpr char kConfigsDigest[] = "{digest}";
"""

_ENUM = "{comment}enum class {name} : int {{ {members} }};"

_ENUM_DESCRIPTION = """\
template <>
struct EnumDescription<{name}> {{
  static constexpr pyflash::description::EnumValue<{name}> values[] = {{{values}}};
}};"""

_STRUCT = """\
// {family}
struct {struct} {{
{members}

  friend auto operator<=>({struct} const&, {struct} const&) = default;
}};"""

_OP = "struct {struct};"

_CONFIGS_OF_OP = """\
template <>
struct ConfigsOf<pyflash::{struct}> {{
  // In the order of AnyConfig.
  using Any = std::variant<
    {names}>;
  // What the CPU names, and what is proposed for building, where nothing is built: by family, dtype
  // and d_head, ascending.
  static constexpr std::array<Any, {n_fallbacks}> kFallbacks = {fallbacks};
}};"""

_DESCRIPTION = """\
// {family}
template <>
struct ConfigDescription<{struct}> {{
  using C = {struct};
  using Op = pyflash::{op};
  using Int = pyflash::description::Int<C>;
  using Flag = pyflash::description::Flag<C>;
  template <class E>
  using Enum = pyflash::description::Enum<C, E>;
  template <std::size_t n>
  using Number = pyflash::description::Number<C, n>;

  static constexpr char const* name = "{struct}";
  static constexpr char const* family = "{family}";
  static constexpr char const* tag = "{tag}";
  static constexpr char const* form =
      "{form}";
  static constexpr auto tile = std::tuple{{
      {tile}}};
  static constexpr auto words = std::tuple{{
      {words}}};
}};"""


def emit_config_header(families: Sequence[Family] = FAMILIES) -> str:
    """The header's text. Pure: the same families give the same bytes."""
    text = _text(tuple(families))
    return text + _DIGEST.format(digest=_digest(text))


def configs_digest(families: Sequence[Family] = FAMILIES) -> str:
    """kConfigsDigest of the header."""
    return _digest(_text(tuple(families)))


@functools.cache
def _text(families: tuple[Family, ...]) -> str:
    return _HEADER.format(
        enums="\n\n".join(map(_enum, _enums(families))),
        structs="\n\n".join(map(_struct, families)),
        descriptions="\n\n".join(
            [*map(_enum_description, _enums(families)), *map(_description, families)]
        ),
        names=_names(families),
        ops="\n".join(_OP.format(struct=op.struct) for op in _ops(families)),
        op_names=", ".join(op.struct for op in _ops(families)),
        configs_of_ops="\n\n".join(_configs_of(op, families) for op in _ops(families)),
    )


def _ops(families: Iterable[Family]) -> list[Op]:
    """The ops of the families, each once."""
    return list(dict.fromkeys(family.op for family in families))


def _names(families: Iterable[Family]) -> str:
    """One a line."""
    return ",\n    ".join(family.struct for family in families)


def include_dir() -> Path:
    """The folder in the cache that holds the header of `FAMILIES`, which is written if missing."""
    return write_header(emit_config_header(), PATH)


def write_header(text: str, path: Path) -> Path:
    """The folder in the cache, named by the text, that holds a header as `path`; written if
    missing."""
    folder = cache_dir() / "generated" / _digest(text)
    if not is_whole(folder / path):
        with locked_for():
            write_if_changed(folder / path, text)
    return folder


def is_whole(path: Path) -> bool:
    """Whether a header in the cache holds what was written there."""
    try:
        with opened(path) as file:
            return _digest(file.read().decode()) == path.parents[2].name
    except (OSError, ValueError, CacheError):
        return False


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _enums(families: Iterable[Family]) -> list[type[IntEnum]]:
    kinds = [kind for family in families for kind in family.config_type.field_types().values()]
    return list(dict.fromkeys(kind for kind in [DType, *kinds] if issubclass(kind, IntEnum)))


def _enum(enum: type[IntEnum]) -> str:
    return _ENUM.format(
        name=enum.__name__,
        comment="// c10::ScalarType ids.\n" if enum is DType else "",
        members=", ".join(f"{member.name} = {int(member)}" for member in enum),
    )


def _enum_description(enum: type[IntEnum]) -> str:
    return _ENUM_DESCRIPTION.format(
        name=enum.__name__,
        values=", ".join(f'{{"{member.name}", {cpp_value(member)}}}' for member in enum),
    )


def _struct(family: Family) -> str:
    fields = describe(family.config_type).fields.values()
    return _STRUCT.format(
        family=family.name, struct=family.struct, members="\n".join(map(_member, fields))
    )


def _description(family: Family) -> str:
    description = describe(family.config_type)
    words = [_word(word) for word in description.words if word.fields]
    return _DESCRIPTION.format(
        family=family.name,
        struct=family.struct,
        op=family.op.struct,
        tag=family.tag,
        form=description.form,
        tile=",\n      ".join(_value(field) for field in description.tile),
        words=",\n      ".join(words),
    )


def _member(field: Field) -> str:
    default = "" if field.required else f" = {cpp_value(field.default)}"
    return f"  {field.kind.__name__} {field.name}{default};"


def _value(field: Field) -> str:
    if field.is_enum:
        return f'Enum<{field.kind.__name__}>{{"{field.name}", &C::{field.name}}}'
    otherwise = "" if field.required else f", {field.default}"
    return f'Int{{"{field.name}", &C::{field.name}, {field.least}{otherwise}}}'


def _word(word: Word) -> str:
    if word.is_flag:
        return f'Flag{{"{word.form}", &C::{word.fields[0].name}}}'
    pieces = ", ".join(f'"{piece}"' for piece in word.pieces)
    values = ",\n           ".join(_value(field) for field in word.fields)
    return (
        f'Number<{len(word.fields)}>{{\n          "{word.label}",\n          {{{pieces}}},\n'
        f"          {{{values}}}}}"
    )


def _configs_of(op: Op, families: Iterable[Family]) -> str:
    of_op = [family for family in families if family.op is op]
    fallbacks = _fallbacks(of_op)
    return _CONFIGS_OF_OP.format(
        struct=op.struct,
        names=_names(of_op),
        n_fallbacks=len(fallbacks),
        fallbacks="\n".join(["{{", *fallbacks, "  }}"]) if fallbacks else "{}",
    )


def _fallbacks(families: Iterable[Family]) -> list[str]:
    configs = sorted(
        family.fallback(dtype, d_head)
        for family in families
        if family.fallback
        for dtype in DType
        for d_head in family.supported["d_head"]
    )
    return [f"    // {config}\n    {_positional(config)}," for config in configs]


def _positional(config: KernelConfig) -> str:
    """The C++ literal in one line: beside the struct it needs no designators."""
    values = ", ".join(cpp_value(getattr(config, name)) for name in config.field_types())
    return f"{config.family.struct}{{{values}}}"
