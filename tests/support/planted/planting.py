"""Bugs for the emulator to find: small edits of a copy of the real kernel.

An edit names a piece of the source, which must be there exactly once (white space aside), and what
takes its place while the bug is on. All bugs are compiled into one library; a number says which one
is on.
"""

from __future__ import annotations

import ctypes
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from pyflash.codegen import emit, toolchain
from pyflash.codegen.compilation import ROOT, Compilation
from pyflash.codegen.emulated import emulated_kernels, link_with_machine
from pyflash.config import KernelConfig, KernelFeatures, Op
from pyflash.config.features import EMULATED_PAGED
from pyflash.emulator import Finding
from pyflash.op.reference import Expected, expect, expect_varlen
from pyflash.variant import Variant

# Which bug is on; 0: none.
SWITCH = "pyflash_planted_bug"
_HEADER = "planted.h"
_DECLARATION = f"""#pragma once
extern "C" {{
__attribute__((visibility("default"))) inline int {SWITCH} = 0;
}}
"""


@dataclass(frozen=True)
class Edit:
    original: str
    planted: str  # {original} stands for that
    file: str  # of cute_kernels


@dataclass(frozen=True)
class Found:
    """What must be found: one of the kinds, the memory, the sites named, words of the detail."""

    kinds: frozenset[str]
    memory: str | None  # None: any
    sites: frozenset[str]
    detail: str = ""

    def is_in(self, findings: Iterable[Finding]) -> bool:
        return any(
            f.kind in self.kinds
            and self.memory in (None, f.memory)
            and f.sites >= self.sites
            and self.detail in f.detail
            for f in findings
        )


def found(kind: str, *sites: str, memory: str | None = "shared", detail: str = "") -> Found:
    """`kind`: one, or several with "or" between: which, is a matter of the order of warps."""
    return Found(frozenset(kind.split(" or ")), memory, frozenset(sites), detail)


@dataclass(frozen=True)
class Bug:
    name: str
    edits: tuple[Edit, ...]
    found: tuple[Found, ...] = ()
    # A site whose loads must have bank conflicts.
    conflicts_at: str | None = None
    silent: bool = False  # out and lse are right all the same
    configs: tuple[str, ...] = ("eager",)
    problem: str = "ragged"

    def __str__(self) -> str:
        return self.name


def instead(original: str, planted: str, file: str) -> Edit:
    """Statements while the bug is on, others while it is off."""
    return Edit(original, f"if (BUG) {{ {planted} }} else {{ {{original}} }}", file)


def without(original: str, file: str) -> Edit:
    return instead(original, "", file)


def condition(original: str, planted: str, file: str) -> Edit:
    """An expression, or the start of one, in which BUG is 1 while the bug is on and 0 while not."""
    return Edit(original, planted, file)


EMITTED = "the variant as it is emitted"  # as the file of an edit


def build_planted(
    bugs: Sequence[Bug],
    configs: Mapping[str, KernelConfig],
    root: Path,
    paged: bool = False,
    machine: Sequence[str] = (),
    variant: Variant | None = None,
    features: Sequence[KernelFeatures] | None = None,
) -> dict[str, Path]:
    """A library of each config, with all bugs in it, for problems in pages or for others, or with a
    variant and these features; `root` is an empty folder for the source. `machine`: sources of the
    emulator that have bugs, too."""
    for folder in ("cute_kernels", "codegen"):
        shutil.copytree(ROOT / folder, root / folder)
    (root / "cute_kernels" / _HEADER).write_text(_DECLARATION)
    for number, bug in enumerate(bugs, start=1):
        for edit in bug.edits:
            if edit.file != EMITTED:
                apply(edit, number, root / "cute_kernels" / edit.file)
    for file in {edit.file for bug in bugs for edit in bug.edits} - {EMITTED}:
        path = root / "cute_kernels" / file
        path.write_text(f'#include "cute_kernels/{_HEADER}"\n{path.read_text()}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolchain, "ROOT", root)
        if variant:
            (op,) = {config.family.op for config in configs.values()}
            struct = _planted_struct(bugs, variant, op)
            patch.setattr(emit, "variant_struct", lambda *_: struct)
        built = features or (EMULATED_PAGED if paged else None)
        kernels = emulated_kernels(list(configs.values()), variant, built)
        compiler = toolchain.machine_compiler()
    folder = root / "cute_kernels" / "emulator"
    instead = [Compilation.of_file(folder / f"{name}.cpp", compiler) for name in machine]
    return dict(zip(configs, link_with_machine(kernels, instead), strict=True))


def _planted_struct(bugs: Sequence[Bug], variant: Variant, op: Op) -> str:
    text = emit.variant_struct(variant, op)
    for number, bug in enumerate(bugs, start=1):
        for edit in bug.edits:
            if edit.file == EMITTED:
                text = _applied(edit, number, text, EMITTED)
    return f'#include "cute_kernels/{_HEADER}"\n{text}'


def apply(edit: Edit, number: int, path: Path) -> None:
    path.write_text(_applied(edit, number, path.read_text(), path.name))


def _applied(edit: Edit, number: int, text: str, name: str) -> str:
    pattern = r"\s*".join(map(re.escape, "".join(edit.original.split())))
    places = list(re.finditer(pattern, text))
    assert len(places) == 1, f"{len(places)} places in {name} read {edit.original!r}"
    start, end = places[0].span()
    planted = edit.planted.replace("{original}", text[start:end] + "\n")
    planted = re.sub(r"\bBUG\b", f"({SWITCH} == {number})", planted)
    return text[:start] + planted + text[end:]


def expected_of(inputs: tuple[Any, ...], options: Mapping[str, Any]) -> Expected:
    """What the reference says of a problem, padded or packed, whatever its splits."""
    options = {name: value for name, value in options.items() if name != "num_splits"}
    return expect_varlen(*inputs[:5], **options) if len(inputs) > 3 else expect(*inputs, **options)


def is_right(expected: Expected, out: torch.Tensor, lse: torch.Tensor) -> bool:
    try:
        expected.check(out, lse)
    except AssertionError:
        return False
    return True


@contextmanager
def switched_on(bugs: Sequence[Bug], bug: Bug, library: Path) -> Iterator[None]:
    """`bugs`: those that the library has."""
    switch = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), SWITCH)
    switch.value = 1 + bugs.index(bug)
    try:
        yield
    finally:
        switch.value = 0
