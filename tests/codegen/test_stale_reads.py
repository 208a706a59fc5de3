"""Registers that are read from the operand cache after they were written."""

from __future__ import annotations

import re

import pytest
from support.listings import BASE, BEST, STALE_READ, listing, recorded_listing

from pyflash.codegen.stale_reads import stale_reads


def readers(*instructions: str) -> list[str]:
    """Of registers that are marked earlier and written in between."""
    return [read.reader.partition(" ")[2] for read in stale_reads(listing(*instructions))]


def test_the_fault_that_was_found():
    (read,) = stale_reads(listing(*STALE_READ))
    assert read.function == "_Z6kernelv"
    assert read.marked == "0x20 MOV R33, R31.reuse"
    assert read.reader == "0xa0 IADD3 R39, R39, R31, RZ"
    assert not readers(*(text.replace("R31.reuse", "R31") for text in STALE_READ))


MARK = "MOV R0, R11.reuse"
WRITE = "MOV R11, R1"
READ = "IADD3 R2, R11, R3, RZ"


@pytest.mark.parametrize(
    "between",
    [
        "FADD R4, R11, R5",
        "FADD R11, R11, R5",
        "STG.E desc[UR4][R10.64+0x20], R5",
        "@P0 STG.E.128 desc[UR4][R4.64], R8",
        "STS.64 [R4], R10",
        "STSM.16.M88.4 [R4], R8",
        "IMAD.WIDE.U32 R10, R8, UR4, R10",
        "IMAD.WIDE R4, R11, 0x2, R6",
        "LDS R4, [R11+0x10]",
        "LDG.E.128 R4, desc[UR4][R10.64]",
        "HMMA.16816.F32 R12, R8, R4, RZ",
        "HMMA.16816.F32 R8, R12, R4, R8",
        "HGMMA.64x32x16.F32 R0, gdesc[UR8], R0",
        "HGMMA.64x32x16.F32 R24, R8, gdesc[UR8], R24",
        "RED.E.ADD.F32.FTZ.RN.STRONG.GPU desc[UR4][R10.64], R5",
        "SHFL.BFLY PT, R4, R11, 0x1, 0x1f",
        "ATOMG.E.ADD.STRONG.GPU PT, R4, desc[UR4][R10.64], R5",
        "FCHK P0, R11, R5",
        "ISETP.GE.AND P0, PT, R11, R5, PT",
        "WARPSYNC R11",
        "R2UR UR4, R11",
        "BRA 0x60",
        "@P0 BRA 0x60",
        "BSYNC B0",
        "EXIT",
    ],
)
def test_what_reads_it_first_or_leads_away(between):
    """It takes the marked operand, or the reader is another's."""
    assert not readers(MARK, between, WRITE, READ)


@pytest.mark.parametrize(
    "write",
    [
        WRITE,
        "@P0 MOV R11, R1",
        "IADD3 R11, P1, R1, R2, RZ",
        "IMAD.WIDE.U32 R10, R8, UR4, R12",
        "LDC.64 R10, c[0x0][0x420]",
        "LDS.128 R8, [R4]",
        "LDSM.16.M88.4 R8, [R4]",
        "LDG.E.64 R10, desc[UR4][R4.64]",
        "SHFL.BFLY PT, R11, R4, 0x1, 0x1f",
        "SHFL.BFLY P0, R11, R4, 0x1, 0x1f",
        "ATOMG.E.ADD.STRONG.GPU PT, R11, desc[UR4][R4.64], R5",
        "S2R R11, SR_TID.X",
        "MUFU.EX2 R11, R4",
    ],
)
def test_every_kind_of_write(write):
    assert readers(MARK, "NOP", write, READ) == [READ]


@pytest.mark.parametrize("near", ["LDC R10, c[0x0][0x420]", "LDS.64 R8, [R4]", "LDS.128 R12, [R4]"])
def test_writes_of_registers_beside_it(near):
    assert not readers(MARK, near, READ)


def test_the_marked_instruction_writes_it_itself():
    assert readers("IADD3 R11, R11.reuse, R1, RZ", READ) == [READ]


def test_a_read_where_a_branch_leads():
    assert not readers(MARK, WRITE, "IADD3 R2, R11, R3, RZ", "@P0 BRA 0x20")


@pytest.mark.parametrize("config", [BASE, BEST], ids=["base", "best"])
def test_a_write_behind_each_mark_of_real_kernels(config):
    """Whose reader comes before a branch; of the kernels as they are nothing is said."""
    text = recorded_listing(config)
    assert not list(stale_reads(text))
    head = "\t\tFunction : _Z6kernelv\n"
    for line in re.finditer(r"^.*\.reuse.*\n", text, re.MULTILINE):
        for register in set(re.findall(r"(R\d+)\.reuse", line[0])):
            write = f"        /*fffff0*/    MOV {register}, RZ ;\n"
            edited = line[0] + write + text[line.end() : line.end() + 20_000]
            marks = [read.marked for read in stale_reads(head + edited)]
            assert any(f"{register}.reuse" in mark for mark in marks), line[0]
