"""The least cycles that each pipe of an SM takes for some instructions: a floor, not a prediction.

An SM has four parts, each with a scheduler that issues one instruction of a warp per cycle, a
tensor core and pipes of its own; shared memory serves the whole SM. The warps of a CTA are spread
evenly over the parts. A pipe's floor is what its instructions take one after another with nothing
in between; a loop takes at least its largest floor.

Sources: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions"; NVIDIA's
A100, GA102, Ada and H100 whitepapers for the rates of tensor cores; 128 bytes of shared memory per
cycle of an SM.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyflash.config.arch import Arch
from pyflash.inspect.sass import Instruction

WARP = 32
PARTS = 4  # of an SM


@dataclass(frozen=True, slots=True)
class Rates:
    """Per cycle of one SM: results of arithmetic, FLOPs of the tensor cores on 16-bit inputs."""

    tensor_flops: int  # with fp32 accumulation, dense
    fp32: int = 128  # FFMA, FMUL, FADD
    imad: int = 64
    alu: int = 64  # integers, logic, compares, min and max, packing of 16-bit pairs, moves
    mufu: int = 16  # exp2, reciprocal, and conversions between integers and floats
    shuffle: int = 32


# NOTE: GeForce boards of sm_86 and sm_89 do half the FLOPs with fp32 accumulation. mma.sync is not
# known to reach the rate of sm_90, which is that of wgmma.
RATES: dict[int, Rates] = {
    80: Rates(tensor_flops=2048, fp32=64),
    86: Rates(tensor_flops=1024),
    89: Rates(tensor_flops=1024),
    90: Rates(tensor_flops=4096),
}
SHARED_BYTES = 128  # per cycle of an SM

# Opcodes by pipe; what is in none takes an issue slot only.
_PIPES = {
    "fp32": r"FFMA|FMUL|FADD",
    "imad": r"IMAD",
    "alu": r"IADD|LOP3|SHF|LEA|PRMT|FSETP|ISETP|FMNMX|FSEL|SEL\b|F2FP|IABS|IMNMX|VI|PLOP3|MOV\b"
    r"|SGXT",
    "mufu": r"MUFU|I2F|F2I|F2F\b|FRND|POPC|FLO|BREV",
    "shuffle": r"SHFL",
}
# The pipes in sentences.
_NAMES = {
    "tensor": "the tensor cores",
    "issue": "the schedulers",
    "fp32": "FP32 arithmetic",
    "alu": "integer and logic instructions",
    "mufu": "exponentials and conversions",
    "shuffle": "shuffles",
    "shared memory": "shared memory",
}
_ARITHMETIC = {name: re.compile(pattern) for name, pattern in _PIPES.items()}
# "LDSM.16.M88.4": so many 8 x 8 matrices of 128 bytes; "LDS.128": so many bits of each lane.
_MATRICES = re.compile(r"(?:LDSM|STSM)\.16\.\w+?(?:\.([24]))?$")
_SHARED = re.compile(r"(?:LDS|STS)\b(?!M)(?:\.\w+)*?(?:\.(64|128))?$")
_COPY = re.compile(r"LDGSTS\S*?(?:\.(64|128))?$")
# "HMMA.16816.F32": m16 n8 k16 of a warp; "HGMMA.64x128x16": of four warps.
_MMA = re.compile(r"HMMA\.(16816|1688)")
_WGMMA = re.compile(r"HGMMA\.(\d+)x(\d+)x(\d+)")


@dataclass(frozen=True, slots=True)
class Floor:
    pipe: str
    cycles: float  # of one CTA, alone on its SM

    @property
    def name(self) -> str:
        """The pipe, in a sentence."""
        return _NAMES[self.pipe]


def floors(
    instructions: Iterable[Instruction],
    arch: Arch,
    n_warps: int,
    degrees: Mapping[str, float] | None = None,
) -> list[Floor]:
    """The floor of each pipe for `instructions` of every warp of a CTA, largest first.

    `degrees` gives how many times as long accesses to shared memory take because of bank
    conflicts, by class ("ldmatrix", "shared store", "cp.async", ...); 1 by default. [] where the
    rates of `arch` are not known.
    """
    instructions = list(instructions)
    rates = RATES.get(arch.sm)
    if rates is None:
        return []
    degrees = degrees or {}
    per_part = n_warps / PARTS
    cycles = {"issue": len(instructions) * per_part}
    for ins in instructions:
        for pipe, pattern in _ARITHMETIC.items():
            if pattern.match(ins.opcode):
                rate = getattr(rates, pipe)
                cycles[pipe] = cycles.get(pipe, 0) + n_warps * WARP / rate
        if flops := _tensor_flops(ins.opcode):
            cycles["tensor"] = cycles.get("tensor", 0) + n_warps * flops / rates.tensor_flops
        if n_bytes := shared_bytes(ins.opcode):
            degree = degrees.get(ins.kind, 1)
            busy = n_warps * n_bytes * degree / SHARED_BYTES
            cycles["shared memory"] = cycles.get("shared memory", 0) + busy
    # Integer multiplies share the fp32 pipe.
    if "imad" in cycles:
        cycles["fp32"] = cycles.get("fp32", 0) + cycles.pop("imad")
    ordered = sorted(cycles.items(), key=lambda item: -item[1])
    return [Floor(pipe, value) for pipe, value in ordered]


def _tensor_flops(opcode: str) -> float:
    """The FLOPs of one warp."""
    if found := _MMA.match(opcode):
        return {"16816": 4096, "1688": 2048}[found[1]]
    if found := _WGMMA.match(opcode):
        m, n, k = map(int, found.groups())
        return 2 * m * n * k / 4
    return 0


def shared_bytes(opcode: str) -> int:
    """Bytes of shared memory that a warp's instruction moves, all lanes taking part; 0: none."""
    if found := _MATRICES.match(opcode):
        return 128 * int(found[1] or 1)
    if found := _SHARED.match(opcode) or _COPY.match(opcode):
        return WARP * int(found[1] or 32) // 8
    return 0
