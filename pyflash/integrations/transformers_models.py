"""Which models of transformers may be made with attn_implementation="pyflash"."""

from __future__ import annotations

import functools
from typing import Any

NAME = "pyflash"
# The implementation while continuous batching runs a model.
PAGED = "pyflash_paged"
NAMES = (NAME, PAGED)


def allow_pyflash(modeling_utils: Any) -> None:
    """Makes transformers accept pyflash when it creates a model; a second call changes nothing."""
    _skip_lookup_of_kernels(modeling_utils)
    _refuse_other_models(modeling_utils.PreTrainedModel)
    _allow_in_models_with_sinks(modeling_utils.PreTrainedModel)


def _skip_lookup_of_kernels(modeling_utils: Any) -> None:
    """For an attn_implementation with "flash" in its name, a registered one too, transformers loads
    a FlashAttention package, or a kernel of that name from the hub, when it creates a model.

    NOTE: "flash" in the name has effects which are wanted: packed sequences for image encoders,
    refusal of chunked attention, and 2-D masks beside static caches.
    """
    load = modeling_utils.lazy_import_flash_attention
    if getattr(load, "_skips_pyflash", False):
        return

    @functools.wraps(load)
    def load_unless_pyflash(implementation: str | None, *args: Any, **kwargs: Any) -> Any:
        return None if implementation in NAMES else load(implementation, *args, **kwargs)

    load_unless_pyflash._skips_pyflash = True
    modeling_utils.lazy_import_flash_attention = load_unless_pyflash


def _refuse_other_models(model_class: Any) -> None:
    """transformers takes a registered name for any model. One that does not declare flash attention
    may run its own attention without a mask."""
    check = model_class.get_correct_attn_implementation
    if getattr(check, "_knows_pyflash", False):
        return

    @functools.wraps(check)
    def check_with_pyflash(self: Any, implementation: str | None, *args: Any, **kwargs: Any) -> Any:
        if implementation in NAMES:
            name = type(self).__name__
            if not self._supports_flash_attn:
                raise ValueError(
                    f"pyflash: {name} does not declare support of flash attention: expected "
                    "attn_implementation='eager' or 'sdpa' for it"
                )
            if not self._can_set_attn_implementation():
                raise ValueError(
                    f"pyflash: {name} does not take its attention from transformers' "
                    "AttentionInterface: expected attn_implementation='eager' or 'sdpa' for it"
                )
        return check(self, implementation, *args, **kwargs)

    check_with_pyflash._knows_pyflash = True
    model_class.get_correct_attn_implementation = check_with_pyflash


# FlashAttention-3 with sinks and FlashAttention-4: a model that lists one of them as compatible
# needs flash attention with sinks.
_WITH_SINKS = {"kernels-community/vllm-flash-attn3", "flash_attention_4"}


def _allow_in_models_with_sinks(model_class: Any) -> None:
    """A model with sinks lists the flash implementations that have them, and transformers replaces
    others, with no more than a log line. pyflash joins the lists that it satisfies; for other lists
    it raises ValueError instead of being replaced."""
    check = model_class._check_and_adjust_attn_implementation
    if getattr(check, "_knows_pyflash", False):
        return

    @functools.wraps(check)
    def check_with_pyflash(self: Any, implementation: str | None, *args: Any, **kwargs: Any) -> Any:
        listed = getattr(self, "_compatible_flash_implementations", None)
        if implementation not in NAMES or not listed or implementation in listed:
            return check(self, implementation, *args, **kwargs)
        if not _WITH_SINKS.intersection(listed):
            raise ValueError(
                f"pyflash: {type(self).__name__} is compatible with {', '.join(listed)} only: "
                "expected one of these, or 'eager', as attn_implementation"
            )
        self._compatible_flash_implementations = [*listed, implementation]
        return check(self, implementation, *args, **kwargs)

    check_with_pyflash._knows_pyflash = True
    model_class._check_and_adjust_attn_implementation = check_with_pyflash
