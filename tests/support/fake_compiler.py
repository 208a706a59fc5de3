"""A compiler and linker of a few milliseconds: what it makes is what it read, joined."""

from __future__ import annotations

from pathlib import Path

from pyflash.codegen.compilation import Compilation, Compiler, compile_all
from pyflash.config import FORWARD, KernelFeatures

_SCRIPT = """\
#!/bin/sh
# As nvcc does, in a process of its own, which writes in two parts; then nothing is half-written.
while [ $# -gt 0 ]; do
  case "$1" in
    -o) out=$2; shift ;;
    -c) files=$2; shift ;;
    -*) ;;
    *) files="$files $1" ;;
  esac
  shift
done
[ -z "$RUNS" ] || echo "$out" >> "$RUNS"
printf 'made of ' > "$out"
{pause}
cat $files >> "$out"
! grep -q kBuilt $files || cat {symbols}
"""


def fake_compiler(folder: Path, seconds: float = 0) -> Compiler:
    """Takes `seconds` for each object or library, and writes their names to the file RUNS, where
    that is set; set CXX to its command to link by it."""
    script = folder / f"fake-compiler-{seconds}"
    pause = f"sh -c 'sleep {seconds}; true'" if seconds else ""
    symbols = folder / f"symbols-{seconds}"
    combinations = (*FORWARD.built, FORWARD.features.parse("softcap"))
    symbols.write_text("".join(map(_what_ptxas_says, combinations)))
    script.write_text(_SCRIPT.replace("{pause}", pause).replace("{symbols}", str(symbols)))
    script.chmod(0o755)
    return Compiler((str(script),), (), (), "fake", ".cpp")


def _what_ptxas_says(features: KernelFeatures) -> str:
    """A line for a kernel with them, whether or not a source has it."""
    flags = "".join(f"Lb{int(getattr(features, name))}E" for name in features.names())
    symbol = f"_Z1k{len(features.struct)}{features.struct}{flags}E"
    return f"ptxas info    : Compiling entry function '{symbol}' for 'sm_90'\n"


def sources(compiler: Compiler, count: int, stem: str = "source") -> list[Compilation]:
    return [
        Compilation(f"{stem} {i}", f"{stem}_{i}", f"// {stem} {i}\n" + "x" * 200, compiler)
        for i in range(count)
    ]


def compiled(compiler: Compiler) -> Compilation:
    """Whose object is in the cache."""
    (c,) = sources(compiler, 1)
    assert compile_all([c], "objects") == []
    return c
