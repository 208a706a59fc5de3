"""Registers by warpgroup: those that its machine code names, beside its share by setmaxnreg.

ptxas reports one figure for a kernel, that with which every warp starts. Behind a setmaxnreg a warp
has as many registers as that says, until the next. Which instructions come behind which one, the
control flow tells; a register beyond the share is undefined on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pyflash.inspect.sass import Instruction, Kernel, SassError, flow

SETMAXNREG = "USETMAXREG"


@dataclass(frozen=True, slots=True)
class RegisterShare:
    """The registers of the threads that have `budget` each."""

    budget: int
    used: int  # the highest that an instruction names, and one
    instruction: Instruction  # that one

    @property
    def fits(self) -> bool:
        return self.used <= self.budget

    def __str__(self) -> str:
        return f"{self.used} of {self.budget}"


def register_shares(kernel: Kernel, at_entry: int) -> list[RegisterShare]:
    """A share for each number of registers that threads have at some time, ascending. `at_entry` is
    ptxas's figure.

    Raises SassError where a setmaxnreg names no number.
    """
    graph, starts = flow(kernel.instructions)
    ends = dict(zip(starts, [*starts[1:], len(kernel.instructions)], strict=True))
    block_at = {kernel.instructions[start].address: start for start in starts}
    highest: dict[int, tuple[int, Instruction]] = {}
    to_visit, seen = [(0, at_entry)], set()
    while to_visit:
        start, budget = block = to_visit.pop()
        if block in seen:
            continue
        seen.add(block)
        for instruction in kernel.instructions[start : ends[start]]:
            if instruction.opcode.startswith(SETMAXNREG):
                budget = _number(instruction)
            used = max(_registers(instruction), default=-1) + 1
            if used > highest.get(budget, (0, None))[0]:
                highest[budget] = (used, instruction)
            if instruction.opcode.startswith("CALL") and (callee := _callee(instruction)):
                to_visit.append((block_at[callee], budget))
        to_visit += [(successor, budget) for successor in graph.successors(start)]
    return [RegisterShare(budget, *highest[budget]) for budget in sorted(highest)]


def _number(instruction: Instruction) -> int:
    found = re.search(r"(0x[0-9a-f]+|\d+)\s*$", instruction.operands)
    if found is None:
        raise SassError(f"{instruction}: expected a number of registers")
    return int(found[1], 0)


def _callee(instruction: Instruction) -> int | None:
    found = re.search(r"0x([0-9a-f]+)", instruction.operands)
    return int(found[1], 16) if found else None


# Only operands of WGMMA can reach past a share: the others are at most four registers, aligned to
# their size, and a share is a multiple of eight.
def _registers(instruction: Instruction) -> Iterator[int]:
    """The last register of each operand."""
    operands = instruction.operands.split(",")
    wgmma = re.match(r"HGMMA\.64x(\d+)x\d+\.F32", instruction.opcode)
    for i, operand in enumerate(operands):
        for number in map(int, re.findall(r"(?<![A-Z])R(\d+)", operand)):
            accumulator = wgmma and (i == 0 or "gdesc" in "".join(operands[1:i]))
            yield number + (int(wgmma[1]) // 2 - 1 if accumulator else 0)
