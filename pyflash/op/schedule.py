"""How the CTAs of a GPU share the keys of sequences of different lengths: `schedule` makes it once
for all calls of `attention_paged` that share lengths, such as the layers of a model in a step.

A schedule is a list that the device makes of the lengths it reads there: cute_kernels/common/
shares.h. Its size follows from shapes, so that a CUDA graph that fills it and attends by it serves
any lengths.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyflash.op.arguments import arguments_of
from pyflash.op.autograd.formulas import VMAP, refusal
from pyflash.op.errors import call, check_type, check_types, require
from pyflash.op.options import AttentionOptions, shows_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

# num_splits of calls in which the device finds them by the lengths.
BY_LENGTH = -1


@dataclass(frozen=True, eq=False)
class Schedule:
    """The work of calls of `attention_paged` that share lengths; `schedule` makes it.

    `work` is a list on the device, int32, which `update` fills; `config` the config that it is for,
    "" on the CPU; `heads` those of q.
    """

    work: Tensor
    config: str
    heads: int
    max_seqlen_q: int
    _options: Mapping[str, Any] = dataclasses.field(repr=False)

    def update(
        self,
        k_cache: Tensor,
        block_table: Tensor,
        seqlens_k: Tensor,
        cu_seqlens_q: Tensor | None = None,
    ) -> Schedule:
        """Fills it for other lengths of the same shapes, in place, by one kernel and without
        synchronizing; returns it. A CUDA graph may have captured both this and the calls.

        Raises ValueError for tensors of other shapes than those that it was made for.
        """
        tensors = {"k_cache": k_cache, "block_table": block_table, "seqlens_k": seqlens_k}
        check_types(tensors, {})
        inputs = (self.heads, *tensors.values(), cu_seqlens_q, self.max_seqlen_q)
        call(torch.ops.pyflash.fill_schedule, self.work, *inputs, **self._options)
        return self


@shows_options
def schedule(
    heads: int,
    k_cache: Tensor,
    block_table: Tensor,
    seqlens_k: Tensor,
    *,
    cu_seqlens_q: Tensor | None = None,
    max_seqlen_q: int = 1,
    **options: Unpack[AttentionOptions],
) -> Schedule:
    """The work of `attention_paged` with q of so many heads, for all calls that share lengths: the
    layers of a model in a step. They get it as `schedule`, and the same options.

    Each CTA gets an equal number of blocks of keys, whatever the lengths of sequences are; where
    that cuts a sequence, its parts are merged in order. A kernel makes the list of lengths that it
    reads on the device: nothing waits for the GPU. Without a schedule, calls with num_splits = -1
    make one each. Calls of at most 256 sequences whose heads that share a head of the caches have
    16 queries or fewer do not read the list: there CTAs find their share of lengths themselves.

    k_cache is (num_pages, page_size, heads_kv, d_head), of any layer. block_table, (batch,
    max_pages), seqlens_k, (batch,), and cu_seqlens_q, (batch + 1,), are those of the calls.
    max_seqlen_q is that of cu_seqlens_q, or the seqlen_q of q, (batch, seqlen_q, heads, d_head);
    on a GPU the queries of the heads that share a head of the caches are 64 at most. Masks of
    different sizes make different schedules.

    {options}

    Raises what `attention_paged` raises; RuntimeError where no kernel that runs on the GPU shares
    keys, as those of the SM90 family with pack_gqa and persistent do.
    """
    arguments = arguments_of("schedule", options)
    tensors = {"k_cache": k_cache, "block_table": block_table, "seqlens_k": seqlens_k}
    check_types(tensors, {"heads": heads, "max_seqlen_q": max_seqlen_q})
    check_type("cu_seqlens_q", cu_seqlens_q, "tensor or None")
    num_splits = arguments.get("num_splits", 0)
    require(
        num_splits in (0, BY_LENGTH),
        f"num_splits = {num_splits} came with a schedule: expected {BY_LENGTH}, or 0",
    )
    arguments["num_splits"] = BY_LENGTH
    inputs = (heads, *tensors.values(), cu_seqlens_q, max_seqlen_q)
    config, size = call(torch.ops.pyflash.plan_schedule, *inputs, **arguments)
    if config:
        arguments["config"] = config
    work = torch.empty(size, dtype=torch.int32, device=k_cache.device)
    made = Schedule(work, config, heads, max_seqlen_q, arguments)
    return made.update(k_cache, block_table, seqlens_k, cu_seqlens_q)


def scheduled_arguments(
    schedule: Schedule | None, arguments: dict[str, Any], q: Tensor
) -> tuple[Tensor | None, dict[str, Any]]:
    """The list of a schedule, and the op's keyword arguments with it. Raises ValueError for
    arguments that are not those of the schedule, TypeError for another type."""
    if schedule is None:
        return None, arguments
    if not isinstance(schedule, Schedule):
        raise TypeError(
            f"pyflash: schedule is {type(schedule).__name__}: expected a Schedule, as "
            "pyflash.schedule makes them, or None"
        )
    num_splits = arguments.get("num_splits", 0)
    require(
        num_splits in (0, BY_LENGTH),
        f"num_splits = {num_splits} came with a schedule: expected {BY_LENGTH}, or 0",
    )
    require(
        q.shape[-2] == schedule.heads,
        f"q has {q.shape[-2]} heads: expected {schedule.heads}, as schedule",
    )
    config = arguments.get("config", "")
    require(
        not (config and schedule.config) or config == schedule.config,
        f"config = '{config}': expected '{schedule.config}', as schedule",
    )
    arguments = {**arguments, "num_splits": BY_LENGTH}
    if schedule.config:
        arguments["config"] = schedule.config
    return schedule.work, arguments


@torch.library.register_fake("pyflash::fill_schedule")
def _fill_schedule(schedule: Tensor, *inputs: Any, **options: Any) -> None:
    require(
        schedule.dtype == torch.int32 and schedule.dim() == 1,
        f"schedule has shape {tuple(schedule.shape)}: expected one dimension of int32",
    )


def _register(library: torch.library.Library) -> None:
    library.impl("fill_schedule", refusal(VMAP), "FuncTorchBatched")


_library = torch.library.Library("pyflash", "FRAGMENT")
_register(_library)
