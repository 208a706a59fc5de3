"""Attention of sequences that are longer than one GPU, on torch.distributed. See
docs/guides/distributed.md.

    from pyflash import distributed

    q, k, v = (distributed.shard(x) for x in (q, k, v))  # this rank's rows
    out = distributed.attention(q, k, v, causal=True)

Importing this also registers how DTensor shards the ops.
"""

from pyflash.distributed import dtensor  # noqa: F401  (registers sharding rules)
from pyflash.distributed.attention import (
    all_to_all_attention,
    attention,
    ring_attention,
    sdpa,
)
from pyflash.distributed.context import context_parallel
from pyflash.distributed.dtensor import repeat_kv_heads
from pyflash.distributed.model import MACHINES, Machine, Plan, plan
from pyflash.distributed.sharding import positions, shard, unshard

__all__ = [
    "MACHINES",
    "Machine",
    "Plan",
    "all_to_all_attention",
    "attention",
    "context_parallel",
    "plan",
    "positions",
    "repeat_kv_heads",
    "ring_attention",
    "sdpa",
    "shard",
    "unshard",
]
