"""`flex_attention` in graphs of torch.compile: an operator with functions, which becomes
`torch.ops.pyflash.fwd_variant` when the graph runs or is compiled."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch._ops import HigherOrderOperator

from pyflash.op.flex_call import flex_call, listed
from pyflash.variant.graphs import trace_graphs


class _FlexInGraph(HigherOrderOperator):
    """flex_in_graph(query, key, value, score_mod, (present, full, sizes, mask_mod), 0.0, options):
    torch.compile puts graphs for the functions, and what they capture behind."""

    def __init__(self) -> None:
        super().__init__("pyflash_flex_attention", cacheable=True)
        # NOTE: torch.compile looks up by this name how functions and what they capture get into its
        # graph, and calls this object there. The module keeps it from torch's own operator.
        self.__name__ = "flex_attention"
        self.__module__ = __name__

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score_mod: Any,
        block_mask: tuple[Any, ...],
        unused: float,
        options: dict[str, Any],
        score_captures: tuple[Any, ...] = (),
        mask_captures: tuple[Any, ...] = (),
    ) -> tuple[Tensor, Tensor]:
        *blocks, mask_mod = block_mask
        traced = trace_graphs(score_mod, score_captures, mask_mod, mask_captures)
        variant = traced if blocks[0] is None else listed(traced, tuple(blocks))  # type: ignore[arg-type]
        return flex_call(query, key, value, variant, options)


flex_in_graph = _FlexInGraph()
