"""Finds a fault of ptxas in machine code: a register is read from the operand cache after it was
written.

    python stale_reads.py CUOBJDUMP OBJECT      # ends with 1, and a line for each, if there are any

An operand marked `.reuse` stays in the operand cache for the next instruction that reads the same
register. ptxas of CUDA 13.0 marks some whose register is written before that, where it keeps
moving the high half of an address of which only the low half is used. The reader then gets the old
value: docs/experiments/2026-11-stale-operands.md. No marked operand may therefore be written next,
between branches and where branches lead.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class StaleRead(NamedTuple):
    function: str  # mangled
    marked: str  # "0xf8b0 MOV R33, R31.reuse"
    reader: str

    def __str__(self) -> str:
        return f"{self.function}: {self.reader} reads what {self.marked} has left in the cache"


class _Instruction(NamedTuple):
    address: int
    opcode: str
    operands: str

    def __str__(self) -> str:
        return f"{self.address:#x} {self.opcode} {self.operands}"


def main(argv: Sequence[str]) -> int:
    cuobjdump, path = argv
    listing = subprocess.run([cuobjdump, "-sass", path], capture_output=True, text=True)
    if listing.returncode != 0 and "does not contain device code" not in listing.stderr:
        print(
            f"error: {cuobjdump} cannot read {path}: {listing.stderr.strip()}; install the one of "
            "nvcc's version"
        )
        return 1
    found = list(stale_reads(listing.stdout))
    for read in found:
        print(
            f"error: ptxas made wrong machine code: {read}; build with another version of CUDA, or "
            "without this config or combination of features (pyflash.codegen.stale_reads)"
        )
    return 1 if found else 0


def stale_reads(listing: str) -> Iterator[StaleRead]:
    """Those of all kernels in what `cuobjdump -sass` printed."""
    _, *functions = re.split(r"^\s+Function : ", listing, flags=re.MULTILINE)
    for function in functions:
        name = function.partition("\n")[0].strip()
        lines = INSTRUCTION.findall(function)
        instructions = [_Instruction(int(a, 16), opcode, rest) for a, _, opcode, rest in lines]
        for marked, reader in _in_function(instructions):
            yield StaleRead(name, str(marked), str(reader))


def _in_function(
    instructions: Sequence[_Instruction],
) -> Iterator[tuple[_Instruction, _Instruction]]:
    # NOTE: BSSY names where paths meet again, and goes on.
    leading = [i for i in instructions if _leads(i) or i.opcode.startswith("BSSY")]
    targets = {int(a, 16) for i in leading for a in _TARGET.findall(i.operands)}
    for at, marked in enumerate(instructions):
        for register in set(map(int, _MARKED.findall(marked.operands))):
            written = register in _writes(marked)
            for i in _until_a_branch(instructions, at, targets):
                if register in _reads(i):
                    if written:
                        yield marked, i
                    break
                written = written or register in _writes(i)


def _until_a_branch(
    instructions: Sequence[_Instruction], at: int, targets: set[int]
) -> Iterable[_Instruction]:
    """The instructions behind one that always run after it, and that nothing else leads to."""
    for i in range(at + 1, len(instructions)):
        if instructions[i].address in targets or _leads(instructions[i - 1]):
            return
        yield instructions[i]


def _leads(i: _Instruction) -> bool:
    return i.opcode.startswith(("BRA", "BRX", "BSYNC", "BREAK", "CALL", "RET", "EXIT"))


def _writes(i: _Instruction) -> range:
    """The registers that it writes: of the first operand, or of the one behind a predicate."""
    if i.opcode.startswith(_WITHOUT_RESULT):
        return range(0)
    behind_predicate = i.opcode.startswith(("SHFL", "ATOM", "MATCH"))
    found = re.match(r"P[\dT]+, R(\d+)\b" if behind_predicate else r"R(\d+)\b", i.operands)
    if not found:
        return range(0)
    n = 1
    if i.opcode.startswith("HGMMA"):
        n = int(re.search(r"x(\d+)x", i.opcode)[1]) // 2
    elif i.opcode.startswith(("HMMA", "LDSM")):
        n = 4
    elif i.opcode.startswith(("LD", "ATOM")):
        n = 4 if ".128" in i.opcode else 2 if ".64" in i.opcode else 1
    elif ".WIDE" in i.opcode:
        n = 2
    return range(int(found[1]), int(found[1]) + n)


def _reads(i: _Instruction) -> set[int]:
    """The registers that it reads, with those that follow in operands of several."""
    n_results = len(_writes(i)) > 0
    named = [(int(r), bool(pair)) for r, pair in _REGISTER.findall(i.operands)]
    reads = {register for register, _ in named[n_results:]}
    reads |= {register + 1 for register, pair in named[n_results:] if pair}
    if not named:
        return reads
    last = named[-1][0]
    if i.opcode.startswith(("HGMMA", "HMMA")):
        reads |= {register + k for register in (*_writes(i)[:1], *reads) for k in range(4)}
        reads |= set(_writes(i))
    elif i.opcode.startswith("ST"):
        n = 4 if ".128" in i.opcode or "STSM" in i.opcode else 2 if ".64" in i.opcode else 1
        reads |= set(range(last, last + n))
    elif i.opcode.startswith(("RED", "ATOM")):
        reads |= set(range(last, last + 4))
    elif ".WIDE" in i.opcode and re.search(r"R\d+(\.reuse)?$", i.operands):
        reads |= {last + 1}
    return reads


# "        /*0010*/              @!P0 BRA 0x340 ;                /* encoding */":
# address, guard, opcode, operands.
INSTRUCTION = re.compile(
    r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;", re.MULTILINE
)
_MARKED = re.compile(r"\bR(\d+)(?:\.64)?\.reuse")
_REGISTER = re.compile(r"(?<!\w)R(\d+)(?:\.reuse)?(\.64)?")
_TARGET = re.compile(r"0x([0-9a-f]+)")
_WITHOUT_RESULT = (
    *("ST", "SUST", "RED", "LDGSTS", "UTM", "UBLK", "CCTL", "R2UR", "R2P", "BAR", "SYNCS"),
    *("WARPSYNC", "NANOSLEEP", "BPT", "BRX", "JMX", "CALL", "RET"),
)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
