"""Kernels of batch_invariant for tests on a GPU."""

from __future__ import annotations

import itertools

import torch

import pyflash
from pyflash.op.invariant import invariant_config


def build_invariant() -> None:
    """Loads those for d_head 64 and 128; takes minutes where they are not cached."""
    major, minor = torch.cuda.get_device_capability()
    chosen = itertools.product(("FP16", "BF16"), (64, 128), (10 * major + minor,), (False, True))
    masks = ("", "right_window", "right_window+left_window+sinks")
    paged = ("", "paged_kv", "paged_kv+gathered_kv")
    features = [f"{mask}+{pages}".strip("+") for mask in masks for pages in paged]
    configs = dict.fromkeys(itertools.starmap(invariant_config, chosen))
    pyflash.build(list(configs), features=[f"{name}+fixed_splits".lstrip("+") for name in features])
