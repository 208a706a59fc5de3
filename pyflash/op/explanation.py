"""What stands in the place of torch.ops.pyflash where the compiled libraries cannot be loaded."""

import sys
from types import ModuleType
from typing import Any


def explain(reason: str) -> None:
    """Every use of torch.ops.pyflash then raises AttributeError with the reason."""
    sys.modules["torch"].ops.pyflash = _NotLoaded(reason)


def undo_explanation() -> None:
    """Gives torch.ops.pyflash back, once the ops are registered."""
    torch = sys.modules["torch"]
    if isinstance(vars(torch.ops).get("pyflash"), _NotLoaded):
        del torch.ops.pyflash


class _NotLoaded(ModuleType):
    """In the place of the namespace torch.ops.pyflash."""

    def __init__(self, reason: str) -> None:
        super().__init__("torch.ops.pyflash")
        self._reason = reason

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"torch.ops.pyflash.{name} is not registered: {self._reason}")
