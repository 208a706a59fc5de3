"""One object: whole or not there, with what the compiler said of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.listings import STALE_READ, listing

from pyflash.codegen import compile_object


def named(target: Path) -> list[str]:
    """The object, its lock, and how many compilers may run."""
    target.parent.mkdir(exist_ok=True)
    return [str(target), str(target.parents[1] / "lock"), "1"]


def test_a_failing_compiler_leaves_no_object(tmp_path):
    target = tmp_path / "made" / "x.o"
    script = 'import sys; open(sys.argv[-1], "w").write("half"); sys.exit("error: gone")'
    arguments = [*named(target), compile_object.digest([]), "", "--", sys.executable, "-c", script]
    assert compile_object.main(arguments) == 1
    assert [path.name for path in target.parent.iterdir()] == ["x.log"]
    assert "error: gone" in target.with_suffix(".log").read_text()


def test_a_header_edited_during_the_build_leaves_no_object(tmp_path):
    """The object would be of the new header and be kept under the key of the old one.
    Pitfall 21: stale build cache."""
    header = tmp_path / "answer.h"
    header.write_text("#define ANSWER 42\n")
    target = tmp_path / "x.o"
    arguments = [*named(target), compile_object.digest([header]), "", str(header)]
    script = f"import sys; open({str(header)!r}, 'a').write('// edited'); open(sys.argv[-1], 'w')"
    assert compile_object.main([*arguments, "--", sys.executable, "-c", script]) == 1
    assert not target.exists()
    assert "build again" in target.with_suffix(".log").read_text()


@pytest.mark.parametrize("mark", [".reuse", ""])
def test_wrong_machine_code_leaves_no_object(tmp_path, mark):
    """A cuobjdump that prints a register which is read from the operand cache after it was
    written, or the same without the mark."""
    cuobjdump = tmp_path / "cuobjdump"
    cuobjdump.write_text(
        f"#!/bin/sh\ncat <<'END'\n{listing(*STALE_READ).replace('.reuse', mark)}END\n"
    )
    cuobjdump.chmod(0o755)
    target = tmp_path / "made" / "x.o"
    script = "import sys; open(sys.argv[-1], 'w').write('code')"
    arguments = [*named(target), compile_object.digest([]), str(cuobjdump), "--", sys.executable]
    assert compile_object.main([*arguments, "-c", script]) == bool(mark)
    assert target.exists() == (not mark)
    assert ("ptxas made wrong machine code" in target.with_suffix(".log").read_text()) == bool(mark)


PTXAS_LOG = """\
ptxas info    : 11 bytes gmem, 88 bytes cmem[4]
ptxas info    : Compiling entry function '_Z1kPf' for 'sm_80'
ptxas info    : Function properties for _Z1kPf
    48 bytes stack frame, 52 bytes spill stores, 56 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 1024 bytes smem, 360 bytes cmem[0]
ptxas info    : Function properties for _Z6helperv
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compile time = 2.000 ms
ptxas info    : Compiling entry function '_Z1kPf' for 'sm_90'
ptxas info    : Function properties for _Z1kPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers
"""


def test_ptxas_log_is_read():
    assert compile_object.parse_ptxas(PTXAS_LOG) == [
        {
            "arch": 80,
            "function": "_Z1kPf",
            "stack_bytes": 48,
            "spill_store_bytes": 52,
            "spill_load_bytes": 56,
            "registers": 255,
            "static_smem_bytes": 1024,
        },
        {
            "arch": 90,
            "function": "_Z1kPf",
            "stack_bytes": 0,
            "spill_store_bytes": 0,
            "spill_load_bytes": 0,
            "registers": 10,
            "static_smem_bytes": 0,
        },
    ]


def test_kernels_are_in_order_of_arch_and_function():
    entry = "ptxas info    : Compiling entry function '{}' for 'sm_{}'\n"
    printed = [("_Z1b", 90), ("_Z1a", 90), ("_Z1b", 80), ("_Z1a", 80)]
    kernels = compile_object.parse_ptxas("".join(entry.format(*kernel) for kernel in printed))
    assert [(kernel["function"], kernel["arch"]) for kernel in kernels] == printed[::-1]


def test_seconds_by_arch_are_read():
    phases = """\
source file name , phase name , phase input files , phase output file , arch , tool, metric , unit
a.cu , gcc (preprocessing 4) , a.cu  , a.ii ,  , nvcc , 500.0 , ms
a.cu , cudafe++ , a.ii , a.cpp , compute_90 , nvcc , 3000.0 , ms
a.cu , gcc (preprocessing 1) , a.cu  , a.ii , compute_80 , nvcc , 500.0 , ms
a.cu , cicc ,  a.ii , a.ptx , compute_80 , nvcc , 1900.0 , ms
a.cu , ptxas , a.ptx , a.cubin , sm_80 , nvcc , 100.0 , ms
a.cu , cicc ,  a.ii , b.ptx , compute_90 , nvcc , 7500.0 , ms
"""
    assert compile_object.seconds_by_arch(phases) == {"80": 2.5, "90": 7.5, "host": 3.5}
