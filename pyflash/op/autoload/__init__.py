"""The entry point of the group torch.backends, which torch calls at the end of its own import.

It is installed as a package of its own, pyflash_autoload: a process that imports torch and never
pyflash imports this file alone.
"""

import sys


def register() -> None:
    """Registers torch.ops.pyflash if pyflash is imported already; else `import pyflash` will."""
    if sys.modules.get("pyflash"):
        from pyflash.op.registration import register_with_torch

        register_with_torch()
