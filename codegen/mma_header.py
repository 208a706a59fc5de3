"""The C++ header of the warpgroup MMA atoms that SM90 kernels are made of, by element type and N.

    folder = include_dir()                          # for -I; written where it is not there
    folder / "cute_kernels/generated/mma_sm90.h"

CUTLASS has the atoms of the usual N, of all types, in two headers of 30,000 lines, which
`cute/tensor.hpp` includes, and those of the other N in two of 76,000 lines. A compiler would read
them as long as the rest of a kernel. This header has the atoms of 16-bit elements and of N that are
multiples of 16, as they stand in CUTLASS. Units of device code alone take all of them from it, and
what CUTLASS's headers have before the atoms; none of these units includes `cute/tensor.hpp`. Other
units take the usual N from CUTLASS.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from itertools import product
from pathlib import Path

from pyflash.codegen.config_header import PATH as CONFIG_HEADER
from pyflash.codegen.config_header import write_header
from pyflash.third_party.cutlass import CutlassError
from pyflash.third_party.cutlass import include_dir as cutlass_include_dir

PATH = CONFIG_HEADER.with_name("mma_sm90.h")

ALL_N = range(16, 257, 16)
_USUAL_N = (16, 32, 64, 96, 128, 192, 256)
# The word in the names of CUTLASS's atoms, by C++ type.
_TYPES = {"cutlass::half_t": "F16", "cutlass::bfloat16_t": "BF16"}

_HEADER = """\
// Warpgroup MMA atoms by element type and N: A and B in shared memory (SS), or A in registers (RS).
// Emitted by codegen/mma_header.py from parts of CUTLASS's headers.
#pragma once

#if defined(PYFLASH_DEVICE_CODE)
{usual_atoms}
}}  // namespace SM90::GMMA
}}  // namespace cute

{usual_traits}
}}  // namespace cute
#else
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#endif

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
    arch, atom = cutlass / "cute/arch", cutlass / "cute/atom"
    others = [n for n in ALL_N if n not in _USUAL_N]
    return _HEADER.format(
        usual_atoms=_with_beginning(arch / "mma_sm90_gmma.hpp"),
        usual_traits=_with_beginning(atom / "mma_traits_sm90_gmma.hpp"),
        atoms=_sections(arch / "mma_sm90_gmma_ext.hpp", others),
        layouts="\n".join(f"using CLayout_64x{n} = CLayout_64xN<{n}>;" for n in others),
        traits=_sections(atom / "mma_traits_sm90_gmma_ext.hpp", others),
        choices="\n".join(
            _CHOICE.format(type=cpp_type, n=n, name=_name(word, n))
            for cpp_type, word in _TYPES.items()
            for n in ALL_N
        ),
    )


def _name(word: str, n: int) -> str:
    return f"MMA_64x{n}x16_F32{word}{word}"


def _with_beginning(path: Path) -> str:
    """What one of CUTLASS's headers has before its first atom, and the atoms of the usual N. It
    includes neither of the two headers: where one needs the other, that is before it."""
    text = path.read_text()
    name = "MMA_64x8x16_F16F16F16_SS"
    first = text.find(name, text.find("namespace cute"))
    if first < 0:
        raise _unknown(path, name)
    beginning = text[: text.rindex("template", 0, first)]
    included = r"^#include <cute/arch/mma_sm90_gmma\.hpp>.*\n|^#pragma once\n"
    return re.sub(included, "", beginning, flags=re.MULTILINE) + _sections(path, _USUAL_N)


def _sections(path: Path, of_n: Iterable[int]) -> str:
    """What one of CUTLASS's headers defines for the atoms of these N: templates up to the end of a
    struct."""
    atoms = product(_TYPES.values(), of_n, ("SS", "RS"))
    names = [f"{_name(word, n)}_{kind}" for word, n, kind in atoms]
    known = {}
    for part in re.split(r"(?<=^\};)$", path.read_text(), flags=re.MULTILINE):
        found = re.search(r"^(?:struct|using \w+ = SM90::GMMA::)\s*(MMA_\w+)", part, re.MULTILINE)
        if found and found[1] in names:
            known[found[1]] = part[part.index("template") :]
    if missing := [name for name in names if name not in known]:
        raise _unknown(path, missing[0])
    return "\n".join(known[name] for name in names)


def _unknown(path: Path, name: str) -> CutlassError:
    return CutlassError(
        f"{path} does not define {name}: set CUTLASS_PATH to CUTLASS 4.2, or remove it"
    )
