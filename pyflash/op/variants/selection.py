"""The config that runs a problem with a variant, and why."""

from __future__ import annotations

import torch

from pyflash.config import Arch, DType, parse
from pyflash.config.variant_needs import FEW_KEYS, FEW_ROWS
from pyflash.op.errors import call
from pyflash.op.options import OPTIONS
from pyflash.op.selection import (
    Problem,
    Selection,
    architecture_of,
    problem_arguments,
)
from pyflash.op.variants.arguments import as_variant
from pyflash.op.variants.gradients import select as select_gradients
from pyflash.op.variants.jit import default_config
from pyflash.variant import Variant
from pyflash.variant.needs import needs_of


def select(problem: Problem, variant: Variant | str) -> Selection:
    """`pyflash.select` of a call with a variant. Raises what the call would raise, and names the
    config that `compile=True` compiles."""
    sm_arch, n_sms = architecture_of(problem.device)
    try:
        short_form, num_splits, reason = call(
            torch.ops.pyflash.select_variant,
            **problem_arguments(problem),
            text=as_variant(variant).portable,
            sm_arch=sm_arch,
            n_sms=n_sms,
        )
    except RuntimeError as error:
        if "compile=True" not in str(error):
            raise
        config = default_config(
            problem.dtype,
            problem.d_head,
            Arch.of(sm_arch),
            needs_of(as_variant(variant)),
            few_keys=problem.seqlen_k <= FEW_KEYS,
            few_queries=problem.seqlen_q * problem.heads_q <= FEW_ROWS * problem.heads_kv,
        )
        raise RuntimeError(f"{error}, which compiles it for '{config}'") from None
    backward = _backward(problem, variant, sm_arch) if sm_arch else "the formula in float32"
    return Selection(parse(short_form), num_splits, reason, backward)


def _backward(problem: Problem, variant: Variant | str, sm_arch: int) -> str:
    options = {name: x for name, x in problem.options.items() if OPTIONS[name].in_backward}
    try:
        config, reason = select_gradients(
            as_variant(variant).portable,
            DType.of(problem.dtype),
            problem.d_head,
            divmod(sm_arch, 10),
            problem.packed,
            **options,
        )
    except RuntimeError as error:
        return f"none: {str(error).removeprefix('pyflash: ')}"
    return f"pyflash's own kernels: {config}: {reason}"
