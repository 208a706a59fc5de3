"""The entry point of the group torch.backends, which torch calls at the end of its own import.

It is a module of its own: a process that imports torch and never pyflash imports this file alone.
NOTE: it stays beside pyflash/ in a checkout. Where pip has left pyflash.egg-info there and the
checkout is on the path, torch finds the entry point, and `import torch` fails if it names nothing.
"""

import sys


def register() -> None:
    """Registers torch.ops.pyflash if pyflash is imported already; else `import pyflash` will."""
    if sys.modules.get("pyflash"):
        from pyflash.op.registration import register_with_torch

        register_with_torch()
