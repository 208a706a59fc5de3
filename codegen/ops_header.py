"""The C++ headers that include those of the ops and of the families.

    first, second = include_dirs()              # for -I; written where they are not there
    first / "cute_kernels/generated/ops.h"
    second / "cute_kernels/generated/launchers.h"

So C++ that asks every family, or every op, names none: it calls an overload for the config's type,
which the family's header has, or the code does not compile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pyflash.codegen.config_header import PATH as CONFIG_HEADER
from pyflash.codegen.config_header import write_header
from pyflash.config import FAMILIES, Family

OPS_PATH = CONFIG_HEADER.with_name("ops.h")
LAUNCHERS_PATH = CONFIG_HEADER.with_name("launchers.h")

_HEADER = """\
// {what} Emitted by codegen/ops_header.py from the records in pyflash/config.
#pragma once

{includes}
"""


def emit_headers(families: Sequence[Family] = FAMILIES) -> dict[Path, str]:
    """The texts of the headers by their paths. Pure: the same families give the same bytes."""
    ops = [family.op.header for family in families]
    hosts = [family.host_header for family in families]
    launchers = [family.launcher_header for family in families]
    return {
        OPS_PATH: _text("The ops, and what host code asks of each family's configs.", ops + hosts),
        LAUNCHERS_PATH: _text("How the kernels of each family are launched.", launchers),
    }


def include_dirs() -> list[Path]:
    """The folders in the cache that hold the headers of `FAMILIES`, written where missing."""
    return [write_header(text, path) for path, text in emit_headers().items()]


def _text(what: str, headers: Iterable[str]) -> str:
    includes = "\n".join(f'#include "{header}"' for header in dict.fromkeys(headers))
    return _HEADER.format(what=what, includes=includes)
