"""Headers that a compiler parses once for many sources: of CuTe that is half of its work.

    headers = headers_for(kernels, header, "emulated_")   # to be compiled first
    kernels = [using(kernel, headers) for kernel in kernels]

A precompiled header takes as long as some sources, and 80 MB of the cache or 200, so that there is
one only where it saves more: of CuTe's headers from the fourth source on. What is compiled is the
same with it and without. GCC alone: other compilers get none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pyflash.codegen.cache_dir import cache_dir
from pyflash.codegen.compilation import Compilation, Compiler

_PAYS_FROM = 4  # sources, with CuTe

Headers = Mapping[Compiler, Compilation]


def headers_for(
    sources: Sequence[Compilation], header: Path, stem: str = "", pays_from: int = _PAYS_FROM
) -> Headers:
    """The header as each of the compilers takes it that are about to compile `sources`, which
    include it first; none where that does not pay, because these sources and those compiled before
    whose stems start with `stem`, if it is given, are fewer than `pays_from`.
    """
    before = (cache_dir() / "objects").glob(f"{stem}*/*") if stem else ()
    n_compiled = sum(1 for _ in before)
    compilers = {source.compiler for source in sources}
    found = {c: _precompiled(c, header) for c in compilers if c.is_gcc}
    pays = n_compiled + len(sources) >= pays_from
    return {c: made for c, made in found.items() if pays or made.object.exists()}


def using(source: Compilation, headers: Headers) -> Compilation:
    """With the header, if it is there: else it is parsed as any other."""
    header = headers.get(source.compiler)
    if header is None or not header.object.exists():
        return source
    includes = (*source.compiler.includes, "-include", str(header.source))
    return replace(source, compiler=replace(source.compiler, includes=includes))


def _precompiled(compiler: Compiler, header: Path) -> Compilation:
    # NOTE: where the headers lie is part of it, since GCC knows by their paths what it has read.
    pairs = zip(compiler.includes[::2], compiler.includes[1::2], strict=True)
    system = tuple(
        word for option, folder in pairs if option == "-isystem" for word in (option, folder)
    )
    return Compilation(
        label=f"{header.name}, precompiled",
        stem=header.stem,
        text=header.read_text(),
        compiler=replace(
            compiler,
            flags=(*compiler.flags, "-x", "c++-header"),
            includes=system,
            identity="\n".join([compiler.identity, *system]),
            suffix=header.suffix,
            object_suffix=f"{header.suffix}.gch",
        ),
    )
