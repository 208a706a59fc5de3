"""flex_attention and attention with a variant inside torch.compile and torch.export: no graph
break, the values of eager mode, and no compilation for another slope, window or layout."""

from __future__ import annotations

import math

import pytest
import torch
from support.variants import values_of
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import and_masks, create_block_mask

import pyflash
from pyflash.variant.library import named, names
from pyflash.variant.tiles import Problem

LENGTH = 90
HEADS = 4


def inputs(seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, HEADS, LENGTH, 16, generator=generator).half() for _ in range(3)]


def mask_of(mask_mod) -> object:
    return create_block_mask(mask_mod, None, None, LENGTH, LENGTH, "cpu", BLOCK_SIZE=32)


class Compiled:
    def __init__(self, function, backend: str = "aot_eager", **options) -> None:
        torch._dynamo.reset()
        self.eager, self.counter = function, CompileCounterWithBackend(backend)
        self.compiled = torch.compile(function, fullgraph=True, backend=self.counter, **options)

    def check(self, *args) -> None:
        found, expected = self.compiled(*args), self.eager(*args)
        assert torch.equal(found, expected)

    @property
    def compilations(self) -> int:
        return self.counter.frame_count


def test_captured_tensors_are_inputs_of_the_graph():
    """Slopes in a closure, a table, document ids of a mask made outside."""

    def run(q, k, v, slopes, table, mask):
        def alibi(s, b, h, i, j):
            def offset(i, j):
                return j - i

            return s + slopes[h] * offset(i, j) + table[h][j % 4] + table[h, j % 4]

        return pyflash.flex_attention(q, k, v, alibi, mask)

    compiled = Compiled(run)
    for seed in range(3):
        torch.manual_seed(seed)
        documents = torch.arange(LENGTH) // (20 + 7 * seed)
        mask = mask_of(lambda b, h, i, j, ids=documents: (ids[i] == ids[j]) & (i >= j))
        compiled.check(*inputs(seed), torch.rand(HEADS), torch.rand(HEADS, 4), mask)
    assert compiled.compilations == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_another_number_compiles_once_more_and_then_never(backend):
    """torch.compile takes a Python number for a constant until it has seen a second one."""

    def run(q, k, v, window: int, factor: float):
        def near(s, b, h, i, j):
            return torch.where(abs(i - j) < window, s * factor, -math.inf)

        return pyflash.flex_attention(q, k, v, near)

    compiled = Compiled(run, backend)
    known = []
    for window, factor in ((7, 0.5), (8, 0.25), (9, 0.75), (2**31 - 1, 3.0)):
        compiled.check(*inputs(), window, factor)
        known.append(compiled.compilations)
    assert known[0] < known[1] == known[2] == known[3]


class Bias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(HEADS))

    def forward(self, s, b, h, i, j):
        return s + self.weight[h]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = Bias()
        self.register_buffer("ids", torch.arange(LENGTH) // 25)
        self.mask = mask_of(lambda b, h, i, j: self.ids[i] == self.ids[j])

    def capped(self, s, b, h, i, j):
        return 5 * torch.tanh(self.bias(s, b, h, i, j) / 5)

    def forward(self, q, k, v):
        out = pyflash.flex_attention(q, k, v, self.bias, self.mask)
        return out + pyflash.flex_attention(q, k, v, self.capped)


def test_modules_and_methods_and_their_gradients():
    layer, (q, k, v) = Layer(), inputs()
    q.requires_grad_()
    wanted = (q, layer.bias.weight)
    grad = torch.randn(q.shape).half()
    expected = torch.autograd.grad(layer(q, k, v), wanted, grad)
    torch._dynamo.reset()
    run = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for one, other in zip(torch.autograd.grad(run(q, k, v), wanted, grad), expected, strict=True):
        assert torch.equal(one, other)


def causal(b, h, i, j):
    return i >= j


def documents(b, h, i, j):
    return IDS[i] == IDS[j]


IDS = torch.arange(LENGTH) // 30
SLOPES = torch.rand(HEADS)
SCORES = {
    "none": None,
    "global": lambda s, b, h, i, j: s + SLOPES[h] * (j - i),
    "tanh": lambda s, b, h, i, j: 5 * torch.tanh(s / 5),
    "computed": lambda s, b, h, i, j: s + SLOPES.exp()[h],  # of captured tensors alone
    "loads": lambda s, b, h, i, j: s + SLOPES[IDS[j] % HEADS],
    "constant": lambda s, b, h, i, j: s * torch.tensor(2.0),
}
MASKS = {
    "none": None,
    "causal": causal,
    "both": and_masks(causal, documents),
    "window": lambda b, h, i, j: (i - j).abs() < 9,
}


@pytest.mark.parametrize(
    ("score", "mask"),
    list(zip(SCORES, ["both", "none", "causal", "window", "both", "none"], strict=True)),
)
def test_it_is_eager_mode(score, mask):
    def run(q, k, v, block_mask):
        out, lse = pyflash.flex_attention(
            q, k, v, SCORES[score], block_mask, scale=0.3, return_lse=True
        )
        return torch.cat([out, lse[..., None].to(out.dtype)], -1)

    Compiled(run, "eager").check(*inputs(), None if mask == "none" else mask_of(MASKS[mask]))


@pytest.mark.parametrize(("score", "strict"), [("global", False), ("computed", True)])
def test_it_exports(score, strict):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask = mask_of(MASKS["both"])

        def forward(self, q, k, v):
            return pyflash.flex_attention(q, k, v, SCORES[score], self.mask)

    exported = torch.export.export(Model(), tuple(inputs()), strict=strict)
    exported = exported.run_decompositions({})
    called = [str(node.target) for node in exported.graph.nodes]
    assert sum("pyflash.fwd_variant" in name for name in called) == 1
    given = inputs(1)
    assert torch.equal(exported.module()(*given), Model()(*given))


def test_what_no_variant_has_is_said_with_its_line():
    def sorts(s, b, h, i, j):
        return torch.sinc(s)

    torch._dynamo.reset()
    run = torch.compile(
        lambda q, k, v: pyflash.flex_attention(q, k, v, sorts), fullgraph=True, backend="eager"
    )
    with pytest.raises(Exception, match=r"sinc has no form here[\s\S]*in sorts"):
        run(*inputs())


@pytest.mark.parametrize("name", names()[::6])
def test_named_variants_take_other_values_without_a_compilation(name):
    """Tensors and numbers of `attention`, padded, and a graph for all their values."""
    problem = Problem(20, 24, 2, 2)
    values = values_of(name, problem)

    def run(q, k, v, tensors):
        return pyflash.attention(q, k, v, variant=name, tensors=tensors)

    compiled = Compiled(run, "eager")
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        q, k, v = (torch.randn(2, n, 2, 16, generator=generator).half() for n in (20, 24, 24))
        changed = {
            key: x * 0.5 if isinstance(x, Tensor) and x.is_floating_point() else x
            for key, x in values.items()
        }
        compiled.check(q, k, v, changed if seed else values)
    assert compiled.compilations == 1
    assert named(name).variant.portable
