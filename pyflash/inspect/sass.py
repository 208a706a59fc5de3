"""The machine code of a compiled object: kernels, loops, and classes of instructions.

    for kernel in disassemble(object_file):
        kernel.mix(kernel.main_loop)      # {"mma": 128, "ldmatrix": 64, ...}

The text is that of `cuobjdump -sass`; no GPU is needed. A loop is a natural loop: a branch back to
an instruction that every path to the branch goes through, which tells it from code that was moved
out of line and jumps back.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import itertools
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import networkx

from pyflash.codegen.stale_reads import INSTRUCTION
from pyflash.third_party.cuda import find_tool

# What instructions are for, by the start of the opcode; the first that fits counts.
CLASSES: dict[str, str] = {
    "mma": r"HMMA|IMMA|DMMA|BMMA|QMMA",
    "wgmma": r"HGMMA|IGMMA|QGMMA",
    "ldmatrix": r"LDSM",
    "stmatrix": r"STSM",
    "shared load": r"LDS\b",
    "shared store": r"STS\b",
    "cp.async": r"LDGSTS",
    "TMA load": r"UTMALDG|UBLKCP",
    "TMA store": r"UTMASTG",
    "global load": r"LDG\b|LD\b",
    "global store": r"STG\b|ST\b",
    "local memory": r"LDL|STL",  # spills, and arrays with an index
    "constant load": r"LDC|ULDC|LDCU",
    "exp2": r"MUFU\.EX2",
    "MUFU": r"MUFU",
    "FFMA": r"FFMA",
    "FMUL": r"FMUL",
    "FADD": r"FADD",
    "max": r"FMNMX",
    "compare": r"FSETP|FSEL|FSET\b|FCHK",
    "convert": r"F2F|F2I|I2F|FRND",
    "move": r"MOV\b|IMAD\.MOV|CS2R|SEL\b|PRMT|R2UR|UMOV|IMAD\.U32|USEL|S2R|S2UR|R2P|P2R",
    "shuffle": r"SHFL|REDUX|VOTE|MATCH|ELECT",
    "barrier": r"BAR|DEPBAR|LDGDEPBAR|SYNCS|WARPSYNC|ARRIVES|WARPGROUP|MEMBAR|FENCE|CCTL|UTMACCTL"
    r"|UTMACMDFLUSH|ERRBAR|BMOV|NANOSLEEP",
    "integer": r"IMAD|IADD|LEA|SHF|LOP3|PLOP3|ISETP|IABS|VI|IMNMX|POPC|FLO|BREV|LOP|SHL|SHR|SGXT|UI"
    r"|UL|US|UF|UP|UR|UB|UV",
    "branch": r"BRA|BRX|EXIT|RET|CALL|BSSY|BSYNC|BREAK|JMP|YIELD|NOP|KILL|RPCMOV",
}
OTHER = "other"
_CLASS = re.compile("|".join(f"({pattern})" for pattern in CLASSES.values()))
_NAMES = list(CLASSES)

MATRIX = ("mma", "wgmma")


class SassError(RuntimeError):
    """A listing without what was looked for."""


@dataclass(frozen=True, slots=True)
class Instruction:
    address: int
    guard: str  # "@P0", "@!UP1"; "" where it always runs
    opcode: str  # with its modifiers: "HMMA.16816.F32"
    operands: str

    @property
    def kind(self) -> str:
        """A key of `CLASSES`, or "other"."""
        found = _CLASS.match(self.opcode)
        return _NAMES[found.lastindex - 1] if found else OTHER

    @property
    def target(self) -> int | None:
        """The address that a branch goes to."""
        if not self.opcode.startswith("BRA"):
            return None
        found = re.search(r"0x([0-9a-f]+)\)?\s*$", self.operands)
        return int(found[1], 16) if found else None

    @property
    def conditional(self) -> bool:
        """Whether the next instruction may run too: a guard, or a predicate among the operands."""
        return bool(self.guard) or "," in self.operands

    def __str__(self) -> str:
        return " ".join(filter(None, (self.guard, self.opcode, self.operands)))


@dataclass(frozen=True, slots=True)
class Loop:
    """Indices of instructions, ascending; the first is where the branch goes back to."""

    indices: tuple[int, ...]
    n_matrix: int  # mma or wgmma instructions in it

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True)
class Kernel:
    """One __global__ function for one architecture."""

    function: str  # mangled
    sm: int  # compute capability, major * 10 + minor
    instructions: tuple[Instruction, ...] = field(repr=False)

    @property
    def name(self) -> str:
        """Demangled."""
        return demangle(self.function)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """All natural loops, in order of address."""
        return tuple(_loops(self.instructions))

    @property
    def main_loop(self) -> Loop | None:
        """The innermost loop with the most matrix instructions; of several, as a kernel has that
        masks some blocks only, the one with the fewest instructions. None: there is no such."""
        with_matrix = [loop for loop in self.loops if loop.n_matrix]
        innermost = [
            loop
            for loop in with_matrix
            if not any(
                set(other.indices) < set(loop.indices) for other in with_matrix if other is not loop
            )
        ]
        return min(innermost, key=lambda loop: (-loop.n_matrix, len(loop)), default=None)

    def inside(self, loop: Loop | None) -> list[Instruction]:
        """The instructions of a loop; [] of None."""
        return [self.instructions[i] for i in loop.indices] if loop else []

    def outside(self, loop: Loop | None) -> list[Instruction]:
        inside = set(loop.indices) if loop else set()
        return [ins for i, ins in enumerate(self.instructions) if i not in inside]


def mix(instructions: Iterable[Instruction]) -> dict[str, int]:
    """How many there are of each class, in the order of `CLASSES`."""
    counted = Counter(ins.kind for ins in instructions)
    return {name: counted[name] for name in (*CLASSES, OTHER) if counted[name]}


def n_predicated(instructions: Iterable[Instruction]) -> int:
    """How many have a guard, branches left out."""
    return sum(bool(ins.guard) and ins.kind != "branch" for ins in instructions)


def disassemble(path: Path, sm: int | None = None) -> list[Kernel]:
    """The kernels of an object file or library, in order; of one architecture where `sm` says so.

    Raises CudaError where there is no cuobjdump, SassError where it fails or finds no machine code.
    """
    command = [str(find_tool("cuobjdump")), "-sass", str(path)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise SassError(f"{path}: cuobjdump failed: {(result.stdout + result.stderr).strip()}")
    kernels = [k for k in parse(result.stdout) if sm in (None, k.sm)]
    if not kernels:
        raise SassError(f"{path}: no machine code{f' for sm_{sm}' if sm else ''}")
    return kernels


def parse(listing: str) -> list[Kernel]:
    """The kernels of what `cuobjdump -sass` printed."""
    kernels = []
    sm = 0
    for part in re.split(r"^(?=\s+Function : )|^(?=\s*code for sm_)", listing, flags=re.MULTILINE):
        if found := re.match(r"\s*code for sm_(\d+)", part):
            sm = int(found[1])
        elif found := re.match(r"\s+Function : (\S+)", part):
            instructions = tuple(_instructions(part))
            kernels.append(Kernel(function=found[1], sm=sm, instructions=instructions))
    return kernels


def _instructions(function: str) -> Iterable[Instruction]:
    for address, guard, opcode, operands in INSTRUCTION.findall(function):
        yield Instruction(int(address, 16), guard, opcode, operands)


def _loops(instructions: Sequence[Instruction]) -> Iterable[Loop]:
    graph, starts = flow(instructions)
    if not graph:
        return
    dominators = networkx.immediate_dominators(graph, 0)
    bodies: dict[int, set[int]] = {}
    for tail, head in graph.edges:
        if tail in dominators and _dominates(head, tail, dominators):
            body = {head, tail}
            if tail != head:
                without_head = graph.subgraph(set(graph) - {head})
                body |= networkx.ancestors(without_head, tail)
            bodies.setdefault(head, set()).update(body & set(dominators))
    ends = {**dict(itertools.pairwise(starts)), starts[-1]: len(instructions)}
    for head in sorted(bodies):
        indices = sorted(i for start in bodies[head] for i in range(start, ends[start]))
        # Endless branches to themselves fill the space after a kernel.
        if len(indices) > 1:
            n_matrix = sum(instructions[i].kind in MATRIX for i in indices)
            yield Loop(tuple(indices), n_matrix)


def flow(instructions: Sequence[Instruction]) -> tuple[networkx.DiGraph, list[int]]:
    """The control flow between basic blocks, each named by the index of its first instruction."""
    index_of = {ins.address: i for i, ins in enumerate(instructions)}
    starts = {0} if instructions else set()
    for i, ins in enumerate(instructions):
        if ins.target is not None or ins.opcode.startswith(("EXIT", "RET", "BRX")):
            starts |= {index_of[ins.target]} if ins.target in index_of else set()
            starts |= {i + 1} if i + 1 < len(instructions) else set()
    ordered = sorted(starts)
    graph = networkx.DiGraph()
    for start, end in zip(ordered, [*ordered[1:], len(instructions)], strict=True):
        graph.add_node(start)
        last = instructions[end - 1]
        if last.target in index_of:
            graph.add_edge(start, index_of[last.target])
        leaves = last.target is not None or last.opcode.startswith(("EXIT", "RET", "BRX"))
        if end < len(instructions) and (not leaves or last.conditional):
            graph.add_edge(start, end)
    return graph, ordered


def _dominates(head: int, block: int, dominators: dict[int, int]) -> bool:
    while block != head:
        above = dominators.get(block)
        if above is None or above == block:
            return False
        block = above
    return True


def demangle(symbol: str) -> str:
    """As c++filt; a symbol that is none of C++ comes back as it is."""
    function = _cxa_demangle()
    status = ctypes.c_int()
    result = function(symbol.encode(), None, None, ctypes.byref(status))
    if not result:
        return symbol
    try:
        return ctypes.string_at(result).decode()
    finally:
        ctypes.CDLL(None).free(ctypes.c_void_p(result))


def _cxa_demangle():
    library = ctypes.CDLL(ctypes.util.find_library("stdc++") or "libstdc++.so.6")
    function = library.__cxa_demangle
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    return function
