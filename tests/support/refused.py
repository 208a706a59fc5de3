"""Calls with a named config that may refuse the problem, and what is selected then."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import Tensor

from pyflash import Features, built_configs
from pyflash.config import as_config


def call_or_fall_back(
    function: Callable[..., Any], arguments: tuple[Any, ...], **options: Any
) -> Any:
    """`function(*arguments, **options)`; where the named config refuses it for a feature that it is
    not built with, or a stride that its family cannot load, the same with `config=""`, which has to
    find another. Raises AssertionError for a refusal without reason."""
    try:
        return function(*arguments, **options)
    except RuntimeError as error:
        if not options.get("config") or not is_right(str(error), options["config"], arguments):
            raise
    return function(*arguments, **options | {"config": ""})


def is_right(refusal: str, config: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether the refusal is one of those above, and says the truth."""
    if match := re.search(r"is built without ([\w+]+);", refusal):
        built = built_configs()[as_config(config)].features
        return not any(features.covers(Features.parse(match[1])) for features in built)
    if "cannot run this problem: q, k or v has a stride of 0" in refusal:
        return any(has_stride_0(x) for x in arguments[:3])
    if "cannot run this problem: it has sinks and no keys" in refusal:
        return arguments[1].numel() == 0
    return False


def has_stride_0(x: Tensor) -> bool:
    return any(n > 1 and stride == 0 for n, stride in zip(x.shape, x.stride(), strict=True))
