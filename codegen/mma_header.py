"""The C++ header of the warpgroup MMA atoms that SM90 kernels are made of, by element type and N.

    folder = include_dir()                          # for -I; written where it is not there
    folder / "cute_kernels/generated/mma_sm90.h"

CUTLASS has the atoms of some N in `cute/tensor.hpp`, and those of every N, of all types, in two
headers of 76,000 lines, which take half of a kernel's compile time. This one has, of those, the
atoms of 16-bit elements and of N that are multiples of 16, as they stand in CUTLASS.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from pyflash.codegen.config_header import PATH as CONFIG_HEADER
from pyflash.codegen.config_header import write_header
from pyflash.third_party.cutlass import CutlassError
from pyflash.third_party.cutlass import include_dir as cutlass_include_dir

PATH = CONFIG_HEADER.with_name("mma_sm90.h")

ALL_N = range(16, 257, 16)
_IN_TENSOR_HPP = (16, 32, 64, 96, 128, 192, 256)
# The word in the names of CUTLASS's atoms, by C++ type.
_TYPES = {"cutlass::half_t": "F16", "cutlass::bfloat16_t": "BF16"}

_HEADER = """\
// Warpgroup MMA atoms by element type and N: A and B in shared memory (SS), or A in registers (RS).
// Emitted by codegen/mma_header.py; what CuTe's header lacks comes from CUTLASS's other headers.
#pragma once

#include <cute/atom/mma_traits_sm90_gmma.hpp>

namespace cute {{

namespace SM90::GMMA {{

{atoms}

{layouts}

}}  // namespace SM90::GMMA

{traits}

}}  // namespace cute

namespace pyflash::sm90 {{

template <class Element, int kN>
struct MmaAtoms;

{choices}

}}  // namespace pyflash::sm90
"""

_CHOICE = """\
template <>
struct MmaAtoms<{type}, {n}> {{
  template <cute::GMMA::Major kMajorA, cute::GMMA::Major kMajorB>
  using SS = cute::SM90::GMMA::{name}_SS<kMajorA, kMajorB>;
  template <cute::GMMA::Major kMajorA, cute::GMMA::Major kMajorB>
  using RS = cute::SM90::GMMA::{name}_RS<kMajorA, kMajorB>;
}};"""


def include_dir() -> Path:
    """The folder in the cache that holds the header, which is written if missing. Raises
    CutlassError where CUTLASS is missing, or has other atoms than are known here."""
    return write_header(_text(cutlass_include_dir()), PATH)


@functools.cache
def _text(cutlass: Path) -> str:
    added = [(word, n) for word in _TYPES.values() for n in ALL_N if n not in _IN_TENSOR_HPP]
    names = [f"{_name(word, n)}_{kind}" for word, n in added for kind in ("SS", "RS")]
    return _HEADER.format(
        atoms="\n".join(_sections(cutlass / "cute/arch/mma_sm90_gmma_ext.hpp", names)),
        layouts="\n".join(
            f"using CLayout_64x{n} = CLayout_64xN<{n}>;" for n in sorted({n for _, n in added})
        ),
        traits="\n".join(_sections(cutlass / "cute/atom/mma_traits_sm90_gmma_ext.hpp", names)),
        choices="\n".join(
            _CHOICE.format(type=cpp_type, n=n, name=_name(word, n))
            for cpp_type, word in _TYPES.items()
            for n in ALL_N
        ),
    )


def _name(word: str, n: int) -> str:
    return f"MMA_64x{n}x16_F32{word}{word}"


def _sections(path: Path, names: list[str]) -> list[str]:
    """What one of CUTLASS's headers defines for each of these atoms: templates up to the end of a
    struct."""
    known = {}
    for part in re.split(r"(?<=^\};)$", path.read_text(), flags=re.MULTILINE):
        found = re.search(r"^(?:struct|using \w+ = SM90::GMMA::)\s*(MMA_\w+)", part, re.MULTILINE)
        if found and found[1] in names:
            known[found[1]] = part[part.index("template") :]
    if missing := [name for name in names if name not in known]:
        raise CutlassError(
            f"{path} does not define {missing[0]}: set CUTLASS_PATH to CUTLASS 4.2, or remove it"
        )
    return [known[name] for name in names]
