"""Families that a copy of the repository gets, each a folder in pyflash/config and one line: one of
op forward, and one of an op of its own, which brings a folder of C++ too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from support.toy_family import TOY, TOY_FAMILY
from support.toy_op import NEGATE_FAMILY, NEGATING

from pyflash.config import Family, KernelConfig

ROOT = Path(__file__).parents[2]
FAMILIES = "_in_order(SM80_FORWARD, SM80_BACKWARD, SM90_FORWARD, SM90_BACKWARD)"
FIRST_IMPORT = "from pyflash.config.words"


class Fake(NamedTuple):
    family: Family
    variable: str  # of the record in its module
    module: Path  # of tests/support
    cpp: Path | None  # a folder of tests/support
    config: KernelConfig
    set_name: str
    says: list[str]  # of `pyflash config`

    def add_to(self, root: Path) -> None:
        """Puts the folders and the one line into a copy of the repository."""
        folder = root / "pyflash" / "config" / self.family.name
        folder.mkdir()
        shutil.copy(self.module, folder / "__init__.py")
        if self.cpp is not None:
            shutil.copytree(self.cpp, root / "cute_kernels" / self.cpp.name)
        path = root / "pyflash" / "config" / "family.py"
        text = path.read_text()
        assert text.count(FAMILIES) == text.count(FIRST_IMPORT) == 1
        text = text.replace(FAMILIES, FAMILIES.replace(")", f", {self.variable})"))
        imported = f"from pyflash.config.{self.family.name} import {self.variable}\n"
        path.write_text(text.replace(FIRST_IMPORT, imported + FIRST_IMPORT))


SUPPORT = ROOT / "tests" / "support"
FAKES = {
    fake.family.name: fake
    for fake in (
        Fake(
            TOY_FAMILY,
            "TOY_FAMILY",
            SUPPORT / "toy_family.py",
            None,
            TOY,
            "toys",
            ["toy kernels run on sm_90 alone", "multicast"],
        ),
        Fake(
            NEGATE_FAMILY,
            "NEGATE_FAMILY",
            SUPPORT / "toy_op" / "__init__.py",
            SUPPORT / "toy_op" / "negate",
            NEGATING,
            "negates",
            ["vector_4", "legal"],
        ),
    )
}


def copied_tree(root: Path, fake: Fake) -> Path:
    """A copy of the repository with the family in its folder, and its one line."""
    ignored = shutil.ignore_patterns("lib", "__pycache__")
    for name in ("pyflash", "codegen", "third_party", "cute_kernels"):
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    (root / "pyflash" / "lib").symlink_to(ROOT / "pyflash" / "lib")
    fake.add_to(root)
    return root
