"""Calls of attention on a GPU, and what is built for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.problems import Inputs, new_memory_is_nan
from support.refused import call_or_fall_back
from torch import Tensor

from pyflash import Features, attention, attention_varlen, built_configs
from pyflash.config import KernelConfig
from pyflash.config.op import KernelFeatures
from pyflash.op.reference import Expected


def built_for(features: KernelFeatures, op: str = "forward") -> list[KernelConfig]:
    """The configs of an op that are built for a problem that needs `features`."""
    built = built_configs(op).items()
    return [config for config, row in built if any(f.covers(features) for f in row.features)]


CONFIGS = built_for(Features())  # others take dropout alone


def attend(inputs: Inputs, **options: Any) -> tuple[Tensor, Tensor]:
    """(out, lse) in memory that held NaN, of the named config or, where it rightly refuses, of the
    selected one. Skips the test where no code is built for this GPU."""
    with new_memory_is_nan("cuda"), _skipping_other_gpus():
        return call_or_fall_back(attention, tuple(inputs), return_lse=True, **options)


def attend_packed(arguments: tuple[Any, ...], **options: Any) -> tuple[Tensor, Tensor]:
    """As `attend`, of packed sequences."""
    with new_memory_is_nan("cuda"), _skipping_other_gpus():
        return call_or_fall_back(attention_varlen, arguments, return_lse=True, **options)


def check(expected: Expected, results: tuple[Tensor, Tensor], *facts: Any) -> None:
    """`facts` say what was asked, in the message of a failure."""
    try:
        expected.check(*results)
    except AssertionError as error:
        raise AssertionError(f"{', '.join(map(str, facts))}: {error}") from error


@contextmanager
def _skipping_other_gpus() -> Iterator[None]:
    try:
        yield
    except RuntimeError as refusal:
        if "is not built for this GPU" not in str(refusal):
            raise
        pytest.skip(str(refusal))
