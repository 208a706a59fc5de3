"""The native module: the layouts of a kernel's own CuTe types.

    description = describe(config)
    description.layouts["K"].layout         # a pyflash.layouts.Layout

A config is a template argument, so each has a module of its own (pybind11), compiled by the build
that compiles kernels for the emulator, and kept in the same cache. It needs g++, CUTLASS and the
headers of CUDA; no nvcc and no GPU.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

from pyflash.codegen import emit, seal, toolchain
from pyflash.codegen.build import BuildError
from pyflash.codegen.cache_dir import cache_dir
from pyflash.codegen.compilation import ROOT, Compilation, Compiler, compile_all
from pyflash.codegen.linking import link, reusable
from pyflash.codegen.precompiled import headers_for, using
from pyflash.config import KernelConfig, as_config
from pyflash.layouts import Layout
from pyflash.third_party.packages import package_dirs

_MODULE = "pyflash_native"
# What each unit includes first.
_HEADER = ROOT / "cute_kernels" / "native" / "python_and_cute.h"
_UNIT = """\
// {short_form}
#include "cute_kernels/native/python_and_cute.h"

#include "{traits_header}"

#include "cute_kernels/native/config_layouts.h"

PYBIND11_MODULE({module}, module) {{
  pyflash::native::define<pyflash::{traits}<{struct}>>(module);
}}
"""


class NativeError(RuntimeError):
    """The native module cannot be built here."""


@dataclass(frozen=True, slots=True)
class NamedLayout:
    """A layout of a kernel.

    Of kind "smem" it maps coordinates to elements of shared memory; of kind "threads" it maps
    (thread, value) to an index in a tile of `extents`, its first mode the fastest.
    """

    name: str
    kind: str
    text: str  # as CuTe prints it
    extents: tuple[int, ...]
    offsets: tuple[int, ...] = dataclasses.field(repr=False)  # of every index, as CuTe computes it
    counted: str = "of them"  # what a third mode of a tile counts

    @property
    def layout(self) -> Layout:
        return Layout.parse(self.text)

    @property
    def tile(self) -> Layout:
        """Rows and columns: of several stages or warpgroups, the first one's."""
        whole = self.layout
        return Layout(whole.shape[:2], whole.stride[:2], whole.swizzle)

    @property
    def repeats(self) -> str:
        """How often the tile is there, such as "2 stages"; "" where it has no third mode."""
        if self.kind != "smem" or len(self.extents) < 3:
            return ""
        return f"{self.extents[2]} {self.counted}"


@dataclass(frozen=True, slots=True)
class Member:
    """A part of a CTA's shared memory; parts of one union start at the same offset."""

    name: str
    offset: int  # bytes
    bytes: int


@dataclass(frozen=True, slots=True)
class Description:
    layouts: dict[str, NamedLayout]
    smem: list[Member]
    smem_bytes: int
    reader: str  # what reads Q, K and V from shared memory


def describe(config: KernelConfig | str) -> Description:
    """The layouts of a config's kernel and what lies where in its shared memory.

    Compiled the first time. Raises BuildError where it does not compile, NativeError without
    pybind11, RuntimeError without a C++ compiler or the headers.
    """
    config = as_config(config).canonical()
    values = _module(config).describe()
    layouts = [
        NamedLayout(
            layout["name"],
            layout["kind"],
            layout["text"],
            tuple(layout["extents"]),
            tuple(layout["offsets"]),
            config.family.repeats.get(layout["name"], "of them"),
        )
        for layout in values["layouts"]
    ]
    members = [Member(*member) for member in values["smem"]]
    return Description(
        layouts={layout.name: layout for layout in layouts},
        smem=sorted(members, key=lambda member: (member.offset, -member.bytes)),
        smem_bytes=values["smem_bytes"],
        reader=config.family.operand_reader,
    )


def emit_module(config: KernelConfig) -> str:
    """The translation unit of a config's module. The traits are `KernelTraits` in the family's
    namespace."""
    return _UNIT.format(
        short_form=config.short_form(),
        traits_header=config.family.traits_header,
        traits=f"{config.family.namespace}::{config.family.traits}",
        module=_MODULE,
        struct=config.to_cpp_struct(),
    )


def native_compiler() -> Compiler:
    """As for the emulator, with the headers of Python and pybind11.

    Raises NativeError without them.
    """
    plain = toolchain.emulator_compiler()
    python = sysconfig.get_paths()["include"]
    if not (Path(python) / "Python.h").is_file():
        raise NativeError(f"no headers of Python in {python}: install python3-dev")
    pybind11 = _pybind11()
    version = sysconfig.get_config_var("SOABI")
    return dataclasses.replace(
        plain,
        flags=(*plain.flags, "-O0", "-DNDEBUG"),  # run once
        includes=(*plain.includes, "-isystem", python, "-isystem", str(pybind11)),
        identity=f"{plain.identity}\n{version}\n{_pybind11_version(pybind11)}",
    )


def build_module(stem: str, compilations: Sequence[Compilation]) -> Path:
    """Compiles and links a module, or finds it in the cache. Raises BuildError."""
    key = hashlib.sha256("".join(c.key for c in compilations).encode()).hexdigest()[:16]
    path = cache_dir() / "native" / key / f"{stem}.so"
    if not reusable(path):
        headers = headers_for(compilations, _HEADER, "native_")
        if missing := [h for h in headers.values() if not h.object.exists()]:
            compile_all(missing, "headers of native modules")
        quick = [using(c, headers) for c in compilations]
        if failures := compile_all(quick, f"native module {stem}"):
            raise BuildError(failures, len(compilations))
        link(path, compilations, [])
    return path


def load_module(name: str, path: Path) -> ModuleType:
    """The extension module `name` in the file `path`, whose folder is named by its key.

    NOTE: pybind11 returns the module that it has under a name, whatever file it came from: all are
    called `name`, so each is loaded into a package of its own.
    """
    name = f"_{path.parent.name}.{name}"
    with seal.checked(path) as (file, _):
        loader = ExtensionFileLoader(name, file)
        spec = importlib.util.spec_from_file_location(name, file, loader=loader)
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    return module


@cache
def algebra() -> ModuleType:
    """CuTe's own layout algebra, cute_kernels/native/algebra.cpp, to check pycute against."""
    compiler = native_compiler()
    path = ROOT / "cute_kernels" / "native" / "algebra.cpp"
    return load_module(
        "pyflash_algebra", build_module("algebra", [Compilation.of_file(path, compiler)])
    )


@cache
def _module(config: KernelConfig) -> ModuleType:
    stem = f"native_{emit.file_stem(config)}"
    unit = Compilation(
        label=f"layouts of {config}",
        stem=stem,
        text=emit_module(config),
        compiler=native_compiler(),
    )
    return load_module(_MODULE, build_module(stem, [unit]))


def _pybind11() -> Path:
    """The folder of pybind11's headers."""
    for folder in package_dirs("pybind11"):
        if (folder / "include" / "pybind11" / "pybind11.h").is_file():
            return folder / "include"
    raise NativeError("pybind11 not found: `pip install pybind11`")


def _pybind11_version(include: Path) -> str:
    text = (include / "pybind11" / "detail" / "common.h").read_text()
    return "\n".join(line for line in text.splitlines() if "define PYBIND11_VERSION" in line)
