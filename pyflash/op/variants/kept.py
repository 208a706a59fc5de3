"""What variants have made before their kernels, kept from call to call."""

from __future__ import annotations

import torch

from pyflash.op.errors import call, check_type


def keep_masks(most_bytes: int) -> None:
    """Sets how many bytes each GPU holds, at most, of what kernels with a variant take beside q, k
    and v: lists of blocks, bits of masks, tables. 0 keeps nothing; 256 MiB are held where this is
    not called. A GPU that holds more frees it in its next call with a variant.

    Raises TypeError for what is no int, ValueError for a negative one.
    """
    check_type("most_bytes", most_bytes, "int")
    call(torch.ops.pyflash.keep_made, most_bytes)
