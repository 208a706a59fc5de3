"""Finds installed packages without importing them.

pip builds in an isolated process whose sys.path hides the environment it installs into; there the
packages are looked up in that environment's own site-packages.
"""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path


def package_dirs(name: str) -> list[Path]:
    """The directories of the package `name`, most visible first; [] where it is not installed.

    A namespace package, such as `nvidia`, may have several.
    """
    spec = importlib.util.find_spec(name)
    visible = list(spec.submodule_search_locations or []) if spec else []
    installed = [Path(sysconfig.get_paths()[key]) / name for key in ("purelib", "platlib")]
    candidates = dict.fromkeys([*map(Path, visible), *installed])
    return [path for path in candidates if path.is_dir()]
