"""FlexAttention's functions as torch's graphs of them, which it makes inside of its own: a variant
of `torch.fx.GraphModule`s, whose last inputs are what the functions capture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from pyflash.config.words import type_name
from pyflash.variant.bound import Bound, is_symbol
from pyflash.variant.expr import load
from pyflash.variant.proxies import Proxy
from pyflash.variant.scalars import F32, I32
from pyflash.variant.tracing import PAIR, TraceError, Tracer, checked_mask, checked_score


def trace_graphs(
    score_mod: GraphModule,
    score_captures: Sequence[Any],
    mask_mod: GraphModule,
    mask_captures: Sequence[Any],
) -> Bound:
    """Raises TraceError, a ValueError, with the line of what no variant has."""
    tracer = Tracer()
    score = _run(tracer, "score_mod", score_mod, score_captures, PAIR)
    mask = _run(tracer, "mask_mod", mask_mod, mask_captures, PAIR[1:])
    places = (_line_of(list(graph.graph.nodes)[-2]) for graph in (score_mod, mask_mod))
    return tracer.bound(
        "traced", checked_score(score, next(places)), checked_mask(mask, next(places))
    )


def _run(
    tracer: Tracer, role: str, graph: GraphModule, captures: Sequence[Any], pair: Sequence[Proxy]
) -> Any:
    names = [node.name for node in graph.graph.nodes if node.op == "placeholder"][len(pair) :]
    given = [_given(tracer, *each) for each in zip(names, captures, strict=True)]
    steps = _Steps(graph, tracer)
    return tracer.result_of(role, lambda: steps.run(*pair, *given, enable_io_processing=False))


def _given(tracer: Tracer, name: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        tracer.see(value, name)
        return value
    if is_symbol(value) or (isinstance(value, int) and not isinstance(value, bool)):
        return Proxy(load(tracer.number(name, I32, value)))
    if isinstance(value, float):
        return Proxy(load(tracer.number(name, F32, value)))
    raise TypeError(f"{name} is {type_name(value)}: expected a tensor or a number")


class _Steps(Interpreter):
    def __init__(self, graph: GraphModule, tracer: Tracer) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.tracer = tracer
        self.extra_traceback = False

    def run_node(self, node: Node) -> Any:
        try:
            return super().run_node(node)
        except TraceError:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            raise TraceError(f"{error}\n  {_line_of(node)}") from error

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0]
        if target == "item" and isinstance(x, torch.Tensor) and not x.dim():
            # NOTE: how torch hands a captured float over whose value may be another.
            return Proxy(self.tracer.of_tensor(x.float()))
        return super().call_method(target, args, kwargs)


def _line_of(node: Node) -> str:
    """The file and the line of the user's function, or else the node's target."""
    lines = [line.strip() for line in (node.stack_trace or "").splitlines()]
    places = [i for i, line in enumerate(lines) if line.startswith("File ")]
    return "\n  ".join(lines[places[-1] :][:2]) if places else str(node.target)
