"""Registers torch.ops.pyflash as soon as both torch and pyflash are imported, in either order.

Imports torch only where torch would not call `pyflash.op.autoload`.
"""

import os
import sys
from importlib import import_module
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
    """Whether torch calls the installed entry point: in a checkout that is on the path without
    being installed there is none, and users can switch all entry points of torch off."""
    is_on = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1"
    return is_on and find_spec("pyflash_autoload") is not None
