"""Registers torch.ops.pyflash as soon as both torch and pyflash are imported, in either order,
without importing torch."""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from pyflash.op.explanation import explain


def register_with_torch() -> None:
    """Loads the compiled libraries now if torch is imported, else when it will be.

    Where they cannot be loaded, the first use of torch.ops.pyflash raises AttributeError, and that
    of `pyflash.attention` ImportError, with the reason and what to do.
    """
    if sys.modules.get("torch"):
        _register()
    elif not any(isinstance(finder, _AfterTorch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterTorch())


class _AfterTorch:
    """A finder that finds nothing itself: it has torch's loader call `_register` at the end."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the loader is again what it was
            execute(module)
            _register()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _register() -> None:
    try:
        import_module("pyflash.op.library")
    except ImportError as error:
        explain(str(error))
