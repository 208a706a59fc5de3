"""The emitted header of the config types: a C++ compiler sees what Python describes."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
from support.headers import ROOT
from support.toy_family import TOY_FAMILY

from pyflash.codegen import config_header
from pyflash.codegen.compilation import Compilation, included_headers
from pyflash.codegen.config_header import emit_config_header, include_dir
from pyflash.codegen.toolchain import cpp_compiler
from pyflash.config import FAMILIES, DType
from pyflash.config.fields import describe

FAMILIES_AND_A_TOY = (*FAMILIES, TOY_FAMILY)


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> list[str]:
    """The lines of print_descriptions.cpp for two families."""
    folder = tmp_path_factory.mktemp("print_descriptions")
    header = folder / config_header.PATH
    header.parent.mkdir(parents=True)
    header.write_text(emit_config_header(FAMILIES_AND_A_TOY))
    source = ROOT / "tests" / "support" / "print_descriptions.cpp"
    options = ["-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}", f"-I{folder}"]
    subprocess.run(["g++", *options, source, "-o", folder / "program"], check=True)
    listing = subprocess.run([folder / "program"], check=True, capture_output=True, text=True)
    return listing.stdout.splitlines()


def of_family(printed: list[str], family) -> list[str]:
    starts = [i for i, line in enumerate(printed) if line.startswith(("family", "fallback"))]
    (start,) = (i for i in starts if printed[i].startswith(f"family {family.name} "))
    return printed[start : next(i for i in starts if i > start)]


@pytest.mark.parametrize("family", FAMILIES_AND_A_TOY, ids=str)
def test_fields_have_the_order_the_types_and_the_defaults_of_python(printed, family):
    description = describe(family.config_type)
    ctypes_of = {bool: ctypes.c_bool, int: ctypes.c_int, DType: ctypes.c_int}

    class Struct(ctypes.Structure):
        _fields_ = tuple(
            (name, ctypes_of[field.kind]) for name, field in description.fields.items()
        )

    def at(name: str) -> str:
        field = description.fields[name]
        value = 0 if field.required else int(field.default)
        return f"{getattr(Struct, name).offset} {value}"

    def number(field) -> str:
        default = "required" if field.required else field.default
        return f"int {at(field.name)} {field.name} {field.least} {default}"

    size = ctypes.sizeof(Struct)
    expected = [f"family {family.name} {family.struct} '{family.tag}' {size} {description.form}"]
    for field in description.tile:
        expected.append(f"enum {at(field.name)} {field.name}" if field.is_enum else number(field))
    for word in description.words:
        if word.is_flag:
            expected.append(f"flag {at(word.fields[0].name)} {word.form}")
        elif word.fields:
            pieces = " ".join(f"'{piece}'" for piece in word.pieces)
            expected += [f"number {word.label} {pieces}", *map(number, word.fields)]
    assert of_family(printed, family) == expected


def test_fallbacks_are_ascending_and_print_as_in_python(printed):
    expected = [
        family.fallback(dtype, d_head)
        for family in FAMILIES_AND_A_TOY
        if family.fallback
        for dtype in DType
        for d_head in family.supported["d_head"]
    ]
    found = [line for line in printed if line.startswith("fallback")]
    assert found == [f"fallback 1 {config}" for config in expected]


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.fallback], ids=str)
def test_fallbacks_are_legal_wherever_the_family_runs(family):
    for dtype in DType:
        for d_head in family.supported["d_head"]:
            config = family.fallback(dtype, d_head)
            assert (config.dtype, config.d_head) == (dtype, d_head)
            assert config.canonical() == config
            assert config.is_legal(90)


def test_the_text_is_the_same_each_time_and_its_digest_tells_families_apart(printed):
    assert emit_config_header() == emit_config_header()
    both = emit_config_header(FAMILIES_AND_A_TOY)
    assert printed[-1].removeprefix("digest ") in both
    assert printed[-1].removeprefix("digest ") not in emit_config_header()
    forms = [describe(family.config_type).form for family in FAMILIES_AND_A_TOY]  # a string each
    lines = [line for line in both.splitlines() if not any(form in line for form in forms)]
    assert all(len(line) <= 120 for line in lines)


def test_a_build_finds_it_and_depends_on_its_contents(tmp_path, monkeypatch):
    monkeypatch.setenv("PYFLASH_CACHE_DIR", str(tmp_path))
    header = include_dir() / config_header.PATH
    assert header.read_text() == emit_config_header()
    assert header.is_relative_to(tmp_path / "generated")
    before = header.stat().st_mtime_ns
    assert include_dir() / config_header.PATH == header
    assert header.stat().st_mtime_ns == before

    text = '#include "cute_kernels/config.h"\n'
    compilation = Compilation("test", "test", text, cpp_compiler())
    assert header in compilation.files
    assert header not in included_headers(text)
    key = compilation.key
    other = emit_config_header(FAMILIES_AND_A_TOY)
    monkeypatch.setattr(config_header, "emit_config_header", lambda: other)
    assert Compilation("test", "test", text, cpp_compiler()).key != key
    assert len(list((tmp_path / "generated").rglob(config_header.PATH.name))) == 2


def test_it_is_no_file_of_the_repository():
    assert not (ROOT / config_header.PATH).exists()
    assert Path("cute_kernels") in config_header.PATH.parents
