"""Gradients of the SM80 family where the sums of all heads would take more memory than they may:
slices of heads run one after another in the same memory, or two at a time in two streams, each in
memory of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from support.gpu_kernels import forbid_borrowed, sm80_backward_configs, with_workspace
from support.graphs import captured
from support.problems import new_memory_is_nan
from torch import Tensor

import pyflash
from pyflash.codegen.build import build_with_variants, nearest_archs
from pyflash.config import DType, parse
from pyflash.op import library
from pyflash.op.backward import kernels
from pyflash.op.reference_gradients import expect_gradients
from pyflash.op.variants import call as variant_call
from pyflash.op.variants.jit import default_config
from pyflash.variant import parse as parse_variant

pytestmark = pytest.mark.gpu

MIB = 1 << 20
STATE = (2**40 + 17, 2**32 - 70)


@pytest.fixture(autouse=True)
def memory_is_given_back():
    """Sums of more than 64 MB, and fp64 beside them: other processes need theirs."""
    yield
    torch.cuda.empty_cache()


class Sizes(NamedTuple):
    """Those of more than 64 MB of sums."""

    batch: int
    seqlen_q: int
    seqlen_k: int
    heads: int
    heads_kv: int
    d_head: int = 128
    lengths: tuple[int, ...] = ()  # of packed sequences

    @property
    def bytes_of_sums(self) -> int:
        rows = sum(self.lengths) or self.batch * -(-self.seqlen_q // 64) * 64
        return 4 * self.d_head * rows * self.heads


SIZES = {
    "many_short": Sizes(40, 200, 200, 24, 24),
    "fewer_keys": Sizes(60, 150, 70, 24, 24),
    "narrow_heads": Sizes(40, 200, 220, 30, 30, 104),
    "groups_of_8": Sizes(40, 300, 260, 24, 3),
    "pairs": Sizes(20, 400, 400, 24, 12),
    "d_64": Sizes(60, 250, 250, 36, 12, 64),
    "d_96": Sizes(30, 300, 300, 24, 8, 96),
    "d_256": Sizes(20, 300, 300, 16, 16, 256),
    "packed": Sizes(1, 0, 0, 48, 48, 128, (700, 3, 1500, 0, 900, 1000)),
    "packed_groups": Sizes(1, 0, 0, 96, 12, 128, (700, 3, 1500, 0, 900, 1000)),
}
LONG = {"long": Sizes(1, 8200, 8200, 24, 24), "long_groups": Sizes(1, 8200, 8200, 64, 8)}
OPTIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_left": 70, "window_right": 9},
    "softcap": {"causal": True, "softcap": 5.0},
    "slopes": {"alibi_slopes": True},
    "slopes_and_sinks": {"causal": True, "alibi_slopes": True, "sinks": True},
    "dropout": {"causal": True, "dropout_p": 0.2},
}


class Call(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    grad_out: Tensor
    options: dict[str, Any]
    starts: Tensor | None = None

    @property
    def packing(self) -> tuple[Any, ...]:
        if self.starts is None:
            return ()
        longest = int(self.starts.diff().max())
        return (self.starts, self.starts, longest, longest)

    def gradients(self, config: str, results: tuple[Tensor, Tensor], in_order: bool = True):
        """`results`: out and lse."""
        options = {n: x for n, x in self.options.items() if n != "sinks"}
        return kernels.bwd(
            self.grad_out, *results, self.q, self.k, self.v, packing=self.packing, config=config,
            deterministic=in_order, **options,
        )  # fmt: skip

    def forward(self) -> tuple[Tensor, Tensor]:
        run = torch.ops.pyflash.fwd_varlen if self.packing else torch.ops.pyflash.fwd
        return run(self.q, self.k, self.v, *self.packing, **self.options)

    def parts(self) -> Iterator[tuple[Call, tuple[Any, Any]]]:
        """Calls of fewer heads, and where their rows of q and k are: each sequence, and of one
        sequence each head of K."""
        heads, group = self.q.shape[-2], self.q.shape[-2] // self.k.shape[-2]
        if self.starts is not None:
            for i, (begin, end) in enumerate(itertools.pairwise(self.starts.tolist())):
                if end > begin:
                    starts = torch.tensor([0, end - begin], device="cuda", dtype=torch.int32)
                    yield self._part((slice(begin, end),) * 2, i * heads, starts)
        elif len(self.q) > 1:
            for i in range(len(self.q)):
                yield self._part((slice(i, i + 1),) * 2, i * heads, None, i)
        else:
            for i in range(self.k.shape[-2]):
                of_q = (..., slice(i * group, (i + 1) * group), slice(None))
                of_k = (..., slice(i, i + 1), slice(None))
                yield self._part((of_q, of_k), i * group, None, 0, of_q[1])

    def _part(self, at, heads_before: int, starts, sequence: int | None = None, heads=slice(None)):
        options = dict(self.options)
        for name in ("alibi_slopes", "sinks"):
            if name in options:
                options[name] = options[name][..., heads].contiguous()
        if "dropout_state" in options:  # numbers of lanes go through all heads
            shift = torch.tensor([0, 32 * heads_before], device="cuda")
            options["dropout_state"] = options["dropout_state"] + shift
        of_q, of_k = at
        tensors = (self.q[of_q], self.k[of_k], self.v[of_k], self.grad_out[of_q])
        return Call(*(x.contiguous() for x in tensors), options, starts), at


def make(sizes: Sizes, options: str) -> Call:
    torch.manual_seed(sum(sizes[:6]))
    chosen = dict(OPTIONS[options])
    for name in ("alibi_slopes", "sinks"):
        if name in chosen:
            chosen[name] = torch.rand(sizes.heads, device="cuda")
    if "dropout_p" in chosen:
        chosen["dropout_state"] = torch.tensor(STATE, device="cuda")
    rows_q, rows_k = (sizes.batch, sizes.seqlen_q), (sizes.batch, sizes.seqlen_k)
    starts = None
    if sizes.lengths:
        rows_q = rows_k = (sum(sizes.lengths),)
        starts = torch.tensor((0, *sizes.lengths), device="cuda").cumsum(0).to(torch.int32)
    of_q, of_k = (*rows_q, sizes.heads), (*rows_k, sizes.heads_kv)
    tensors = (
        torch.randn(*of, sizes.d_head, device="cuda", dtype=torch.bfloat16)
        for of in (of_q, of_k, of_k, of_q)
    )
    return Call(*tensors, chosen, starts)


def configs_for(sizes: Sizes, options: str) -> list[str]:
    assert sizes.bytes_of_sums > 64 * MIB
    columns = next(d for d in (64, 96, 128, 256) if d >= sizes.d_head)
    return sm80_backward_configs(columns, **({"dropout": True} if options == "dropout" else {}))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", [*SIZES, *LONG])
def test_deterministic_bits_are_those_of_calls_without_slices(name, options):
    sizes = (SIZES | LONG)[name]
    configs = configs_for(sizes, options)
    call = make(sizes, options)
    results = call.forward()
    for config in configs:
        with new_memory_is_nan("cuda"):
            dq, dk, dv = call.gradients(config, results)
        for part, (of_q, of_k) in call.parts():
            out, lse = results
            if part.starts is not None:
                of_part = (out[of_q], lse[:, of_q])
            elif len(call.q) > 1:
                of_part = (out[of_q], lse[of_q])
            else:
                of_part = (out[of_q], lse[:, of_q[1]])
            expected = part.gradients(config, tuple(x.contiguous() for x in of_part))
            for one, other in zip((dq[of_q], dk[of_k], dv[of_k]), expected, strict=True):
                assert torch.equal(one, other), config


@pytest.mark.parametrize("in_order", [False, True], ids=["any_order", "in_order"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", SIZES)
def test_gradients_beside_float64(name, options, in_order):
    configs = configs_for(SIZES[name], options)
    call = make(SIZES[name], options)
    results = call.forward()
    expected = expect_gradients(
        call.q, call.k, call.v, call.grad_out, cu_seqlens=call.packing[:2], **call.options
    )
    torch.full((128 * MIB,), torch.nan, device="cuda")  # what the workspace holds before
    for config in configs:
        expected.check(call.gradients(config, results, in_order))


@pytest.mark.parametrize("in_order", [False, True], ids=["any_order", "in_order"])
@pytest.mark.parametrize("name", [n for n in (*SIZES, *LONG) if n != "packed_groups"])
def test_bytes_of_the_workspace(name, in_order):
    sizes = (SIZES | LONG)[name]
    # Groups are sliced where their tiles are alike.
    options = "causal" if sizes.heads == sizes.heads_kv else "full"
    call = make(sizes, options)
    results = call.forward()
    for config in configs_for(sizes, options):
        _, workspace = with_workspace(partial(call.gradients, config, results, in_order))
        # lse and delta, turns and the order of blocks of keys.
        beside = sizes.bytes_of_sums * 9 / (4 * sizes.d_head) * 1.2
        most = max(64 * MIB, bytes_of_two_tiles_a_cta(sizes, parse(config).B_c, in_order))
        assert workspace <= most + beside + 2 * MIB, config
        assert workspace < 0.9 * sizes.bytes_of_sums, config


def bytes_of_two_tiles_a_cta(sizes: Sizes, B_c: int, in_order: bool) -> int:
    """The sums of as many heads of K as have two tiles for each of 132 CTAs, if CTAs may divide the
    heads of a group, or of two."""
    padded, n_blocks = -(-sizes.seqlen_q // 64) * 64, -(-sizes.seqlen_k // B_c)
    if sizes.lengths:
        total, n = sum(sizes.lengths), len(sizes.lengths)
        padded, n_blocks = total + 64 * n, total // B_c + n
    group = sizes.heads // sizes.heads_kv
    n_heads = max(264 // (1 if in_order else group) // n_blocks, 2)  # two of one head side by side
    rows = group * padded + (0 if in_order else 2 * n_blocks * B_c)
    return 4 * sizes.d_head * n_heads * rows


VARIANT_CONFIGS = {
    "sm80": "(FP16, 64, 64, 64, 4): sm80_bwd+stages_2",
    "sm90": "(FP16, 64, 128, 128, 2): sm90_bwd+stages_2+overlap",
}


@pytest.fixture(scope="module", params=VARIANT_CONFIGS)
def variant_config(request) -> str:
    """A config of each family that is built with the variant below, and a forward one."""
    major, minor = torch.cuda.get_device_capability()
    archs = nearest_archs([10 * major + minor])
    variants = [parse_variant(VARIANT)]
    library.load(build_with_variants(variants, [default_config(DType.FP16, 64, archs[0])], archs))
    config = parse(VARIANT_CONFIGS[request.param])
    if config.violations(archs[0]):
        pytest.skip("; ".join(text for _, text in config.violations(archs[0])))
    features = ["plain", "deterministic"]
    library.load(build_with_variants(variants, [config], archs, features))
    return config.canonical().short_form()


@pytest.mark.parametrize("name", ["pairs", "long", "packed"])
def test_slices_come_behind_what_is_before_and_before_what_is_behind(name):
    """Tensors are written just before a call, or the replay of its graph, and its gradients are
    read just behind it."""
    sizes = (SIZES | LONG)[name]
    call, config = make(sizes, "full"), configs_for(sizes, "full")[0]
    tensors = (call.grad_out, *call.forward(), call.q, call.k, call.v)
    packing = call.packing  # which waits for the longest length
    gradients = partial(
        kernels.bwd, *tensors, packing=packing, config=config, deterministic=True, **call.options
    )
    expected = [x.clone() for x in gradients()]
    graph, of_graph = captured(gradients)
    kept = [x.clone() for x in tensors]
    for i in range(6):
        for x in tensors:
            x.zero_()
        torch.cuda._sleep(2_000_000)
        for x, y in zip(tensors, kept, strict=True):
            x.copy_(y)
        if i % 2:
            graph.replay()
        found = of_graph if i % 2 else gradients()
        copies = [x.clone() for x in found]
        for x in found:
            x.zero_()
        assert all(torch.equal(a, b) for a, b in zip(copies, expected, strict=True))


# Numbers of sequences and heads decide scores and a mask, and one is captured with a gradient.
VARIANT = (
    "slices(gain: f32[2], first: i32[2]): gain[b, h] * s + 0.01 * h * (k - q)"
    " where k >= first[b, h]"
)


@pytest.mark.parametrize(
    ("batch", "heads", "seqlen"), [(40, 36, 200), (3, 20, 8200)], ids=["short", "long"]
)
@pytest.mark.parametrize("in_order", [False, True], ids=["any_order", "in_order"])
def test_a_variant_sees_the_numbers_of_all_heads(
    variant_config, monkeypatch, in_order, batch, heads, seqlen
):
    monkeypatch.setattr(variant_call, "config_for", lambda *_: variant_config)
    forbid_borrowed(monkeypatch)
    torch.manual_seed(0)
    assert 4 * 64 * batch * heads * seqlen > 64 * MIB
    sizes = ((heads,), (heads // 2,), (heads // 2,), (heads,))
    q, k, v, grad_out = (
        torch.randn(batch, seqlen, *of, 64, device="cuda", dtype=torch.half) for of in sizes
    )
    gain = torch.rand(batch, heads, device="cuda") + 0.5
    first = torch.randint(0, 100, (batch, heads), device="cuda", dtype=torch.int32)

    def gradients(of: slice):
        leaves = [x[of].clone().requires_grad_() for x in (q, k, v)]
        tensors = {"gain": gain[of].contiguous(), "first": first[of].contiguous()}
        out = pyflash.attention(
            *leaves, variant=VARIANT, tensors=tensors, num_splits=1, deterministic=in_order
        )
        return torch.autograd.grad(out, leaves, grad_out[of])

    found = gradients(slice(None))
    if in_order:
        again = gradients(slice(None))
        assert all(torch.equal(x, y) for x, y in zip(found, again, strict=True))
    for i in range(batch):
        one = slice(i, i + 1)
        for of_all, of_one in zip(found, gradients(one), strict=True):
            assert (of_all[one] - of_one).float().norm() <= 2e-3 * of_one.float().norm()
