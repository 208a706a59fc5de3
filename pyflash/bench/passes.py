"""The timed passes of attention: forward, backward, or both."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from enum import Enum

import torch
from torch import Tensor

from pyflash.bench.contenders import Contender
from pyflash.bench.timing import Calls
from pyflash.bench.variants import Given
from pyflash.config import BACKWARD as BACKWARD_OP
from pyflash.config import FORWARD as FORWARD_OP
from pyflash.op.options import AttentionOptions
from pyflash.op.reference import expect
from pyflash.op.reference_gradients import expect_gradients

Inputs = tuple[Tensor, Tensor, Tensor]
Errors = tuple[float, float]  # error, bound


class Pass(str, Enum):
    """FLOPs are those of FlashAttention's papers: 2 GEMMs forward, 5 backward."""

    FORWARD = FORWARD_OP.name
    BACKWARD = BACKWARD_OP.name
    BOTH = "both"

    @property
    def flops_of_forward(self) -> float:
        """How many times the FLOPs of the forward pass."""
        return {Pass.FORWARD: 1.0, Pass.BACKWARD: 2.5, Pass.BOTH: 3.5}[self]


def checker(
    what: Pass, inputs: Inputs, options: AttentionOptions, given: Given | None = None
) -> Callable[[Contender], Errors]:
    """A function that gives the error of a contender, and its bound.

    Forward: max|out - reference|. Else: of the gradient of q, k or v that is worst against its own
    bound, over the first batch and the first head of k and v, which depend on no other.
    """
    if what is Pass.FORWARD:
        expected = given.expect(*inputs) if given else expect(*inputs, **options)

        def forward(contender: Contender) -> Errors:
            with contender.context():
                return expected.error(contender.run(*inputs)), expected.bound

        return forward

    first = _first_group(*inputs)
    upstream = _upstream(inputs[0])
    (up,) = _first_group(upstream, group=first[0].shape[2])
    expected = expect_gradients(*first, up, dtype=torch.float32, **options)

    def backward(contender: Contender) -> Errors:
        with contender.context():
            gradients = _gradients(contender.run, inputs, upstream, inputs[0].dtype)
        _, error, bound = expected.worst(_first_group(*gradients))
        return error, bound

    return backward


def calls(what: Pass, contender: Contender, buffers: Sequence[Inputs]) -> Calls:
    """The timed call, over the buffers in turn."""
    if what is Pass.FORWARD:
        return _forward_calls(contender, buffers)
    leaves = [tuple(x.detach().requires_grad_() for x in inputs) for inputs in buffers]
    upstreams = [_upstream(inputs[0]) for inputs in buffers]
    if what is Pass.BOTH:
        return _calls(
            contender,
            [
                lambda x=x, up=up: torch.autograd.grad(contender.run(*x), x, up)
                for x, up in zip(leaves, upstreams, strict=True)
            ],
        )
    with contender.context():
        outs = [contender.run(*x) for x in leaves]
    return _calls(
        contender,
        [
            lambda out=out, x=x, up=up: torch.autograd.grad(out, x, up, retain_graph=True)
            for out, x, up in zip(outs, leaves, upstreams, strict=True)
        ],
    )


def _forward_calls(contender: Contender, buffers: Sequence[Inputs]) -> Calls:
    return _calls(contender, [lambda x=x: contender.run(*x) for x in buffers])


def _calls(contender: Contender, of_buffers: Sequence[Callable[[], object]]) -> Calls:
    in_turn = itertools.cycle(of_buffers)

    def run(n: int) -> None:
        with contender.context():
            for _ in range(n):
                next(in_turn)()

    return run


def _upstream(q: Tensor) -> Tensor:
    """The gradient of out, the same for every contender."""
    generator = torch.Generator(q.device).manual_seed(1)
    return torch.randn(q.shape, generator=generator, device=q.device, dtype=q.dtype)


def _gradients(
    run: Callable[..., Tensor], inputs: Sequence[Tensor], upstream: Tensor, dtype: torch.dtype
) -> list[Tensor]:
    leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
    return list(torch.autograd.grad(run(*leaves), leaves, upstream.to(dtype)))


def _first_group(*tensors: Tensor, group: int | None = None) -> list[Tensor]:
    """The first batch and head of k and v with the heads of q that attend it, from q, k and v or
    tensors of their shapes."""
    if group is None:
        group = tensors[0].shape[2] // tensors[1].shape[2]
    return [x[:1, :, : group if i == 0 else 1] for i, x in enumerate(tensors)]
