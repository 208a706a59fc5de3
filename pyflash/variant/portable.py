"""The portable text of a variant: what the op takes in place of the value. It has all that runs the
variant without Python: the text and the key of the normal form, its parameters under their own
names, and a program of the mask and one of the score function. It is one line, since compilers put
what an op takes into comments:

    pyflash variant 1;
    v(p0: f32[1]): s + p0[h] * f32(k - q);
    0123456789abcdef;
    slope:f32[1];
    1 0 constant:bool:1;
    3 0 index:s index:h load:0 ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflash.variant.bytecode import OPCODES, Program, program_of
from pyflash.variant.expr import MEANINGS

if TYPE_CHECKING:
    from pyflash.variant.value import Variant

HEAD = "pyflash variant 1"
SEPARATOR = ";"  # no variant has it
_INDICES = tuple(MEANINGS)


def text_of(variant: Variant) -> str:
    """The portable text."""
    normal = variant.normal
    captured = zip(normal.params, variant.captured, strict=True)
    params = " ".join(f"{own.name}:{param.type_text}" for param, own in captured)
    programs = [_line(program_of(root, normal.params)) for root in (normal.mask, normal.score)]
    return SEPARATOR.join([HEAD, str(normal), variant.key, params, *programs])


def _line(program: Program) -> str:
    words = [_word(program, *instruction) for instruction in program.code]
    return " ".join([str(program.stack), str(program.slots), *words])


def _word(program: Program, opcode: int, operand: int) -> str:
    name = OPCODES[opcode]
    if name == "constant":
        return f"constant:{_constant(program.constants[operand])}"
    if name == "index":
        return f"index:{_INDICES[operand]}"
    return f"{name}:{operand}" if name in ("load", "keep", "recall") else name


def _constant(value: Any) -> str:
    if isinstance(value, float):
        return f"f32:{value.hex()}"
    return f"bool:{int(value)}" if isinstance(value, bool) else f"i64:{value}"
