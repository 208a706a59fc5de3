"""Headers that are parsed once for many sources: what is compiled with one is what is compiled
without."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyflash.codegen import toolchain
from pyflash.codegen.cache import entries
from pyflash.codegen.compilation import ROOT, Compilation, Compiler, compile_all
from pyflash.codegen.precompiled import headers_for, using
from pyflash.config import named_set
from pyflash.inspect import native

NATIVE = ROOT / "cute_kernels" / "native" / "python_and_cute.h"
EMULATOR = ROOT / "cute_kernels" / "emulator" / "cute.h"


@pytest.fixture
def compiler(tmp_path, monkeypatch) -> Compiler:
    monkeypatch.setenv("PYFLASH_CACHE_DIR", str(tmp_path / "cache"))
    plain = toolchain.cpp_compiler()
    if not plain.is_gcc:
        pytest.skip("not GCC")
    return plain


@pytest.fixture
def header(tmp_path) -> Path:
    path = tmp_path / "answer.h"
    path.write_text(
        "#ifndef ANSWER_H\n#define ANSWER_H\ninline int answer() { return 42; }\n#endif\n"
    )
    return path


def units(compiler: Compiler, header: Path, count: int) -> list[Compilation]:
    text = f'#include "{header}"\nint number_{{}}() {{{{ return answer() + {{}}; }}}}\n'
    return [
        Compilation(f"unit {i}", f"unit_{i}", text.format(i, i), compiler) for i in range(count)
    ]


def test_there_is_one_from_the_fourth_source_on(compiler, header):
    """Whether they are compiled at once or after each other."""
    sources = units(compiler, header, 4)
    assert headers_for(sources[:3], header, "unit_") == {}
    assert list(headers_for(sources, header, "unit_")) == [compiler]
    assert compile_all(sources[:3], "units") == []
    headers = headers_for(sources[3:], header, "unit_")
    assert headers_for(sources[3:], header, "other_") == {}
    assert using(sources[3], headers) == sources[3], "it is not compiled yet"
    assert compile_all(list(headers.values()), "headers") == []
    assert list(headers_for(sources[3:], header, "other_")) == [compiler], "it is there"
    assert {entry.problem for entry in entries()} == {None}


def test_what_is_compiled_is_the_same(compiler, header):
    """By bytes, under the same key; and the header is not read again."""
    sources = units(compiler, header, 4)
    assert compile_all(sources, "units") == []
    plain = [source.object.read_bytes() for source in sources]
    headers = headers_for(sources, header, "unit_")
    assert compile_all(list(headers.values()), "headers") == []
    for source in sources:
        source.object.unlink()
    (made,) = headers.values()
    made.source.write_text("#error read again\n")
    quicker = [using(source, headers) for source in sources]
    assert [source.key for source in quicker] == [source.key for source in sources]
    assert compile_all(quicker, "units") == []
    assert [source.object.read_bytes() for source in quicker] == plain


def test_another_header_another_flag_or_another_folder_is_another(compiler, header, tmp_path):
    def key(compiler: Compiler) -> str:
        (made,) = headers_for(units(compiler, header, 4), header, "unit_").values()
        return made.key

    others = [
        Compiler(
            compiler.command, (*compiler.flags, "-DX"), compiler.includes, compiler.identity, ".cpp"
        ),
        Compiler(
            compiler.command,
            compiler.flags,
            (*compiler.includes, "-isystem", str(tmp_path)),
            compiler.identity,
            ".cpp",
        ),
    ]
    keys = [key(compiler), *map(key, others)]
    header.write_text(header.read_text().replace("42", "43"))
    assert len({*keys, key(compiler)}) == 4


def test_other_compilers_than_gcc_get_none(compiler, header):
    clang = Compiler(
        compiler.command, compiler.flags, compiler.includes, "clang version 19", ".cpp"
    )
    assert headers_for(units(clang, header, 9), header, "unit_") == {}


@pytest.mark.parametrize("header", [EMULATOR, NATIVE], ids=lambda path: path.name)
def test_a_header_stands_alone(header):
    """A copy of it is what is precompiled: it includes nothing of this project, and a guard keeps
    the two apart."""
    text = header.read_text()
    assert not re.search(r'#\s*include\s*"|#\s*pragma\s+once', text)
    assert re.search(r"#ifndef (\w+)\n#define \1\n", text)


def first_include(text: str) -> str:
    return re.findall(r"#include [<\"](c[^>\"]*)", text)[0]


def test_units_include_their_header_first():
    for atoms in ("atoms.h", "atoms_sm90.h"):
        text = EMULATOR.with_name(atoms).read_text()
        assert first_include(text) == "cute_kernels/emulator/cute.h"
    algebra = NATIVE.with_name("algebra.cpp").read_text()
    for text in (algebra, *map(native.emit_module, named_set("prog"))):
        assert first_include(text) == "cute_kernels/native/python_and_cute.h"
