"""Registers torch.ops.pyflash as soon as both torch and pyflash are imported, in either order.

Imports torch only where torch would not call `pyflash_autoload.register`.
"""

import os
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec

from pyflash.op.explanation import explain


def register_with_torch() -> None:
    """Loads the compiled libraries now if torch is imported, else when it will be.

    Where they cannot be loaded, the first use of torch.ops.pyflash raises AttributeError, and that
    of `pyflash.attention` ImportError, with the reason and what to do.
    """
    if not sys.modules.get("torch"):
        if _torch_registers() or not find_spec("torch"):
            return
        try:
            import_module("torch")
        except (ImportError, OSError):  # a torch that lacks a library: its first use says so
            return
    try:
        import_module("pyflash.op.library")
    except ImportError as error:
        explain(str(error))


def _torch_registers() -> bool:
    """Whether torch calls the entry point: a checkout that is on the path without being installed
    may have none, and users can switch all entry points of torch off."""
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        return False
    try:
        entry_points = distribution("pyflash").entry_points
    except PackageNotFoundError:
        return False
    return any(entry.group == "torch.backends" for entry in entry_points)
