"""Dropout on the CPU: what is kept, values and gradients beside the formula in float64 with the
same mask, the generator, graphs and checkpoints, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import pyflash
from pyflash.op.dropout import draw_state, kept, largest_kept, philox4x32
from pyflash.op.reference import expect, expect_varlen
from pyflash.op.reference_gradients import expect_gradients

# Known answers of Random123: rounds, counter, key, result.
KNOWN = (
    (7, "00000000 00000000 00000000 00000000", "00000000 00000000",
     "5f6fb709 0d893f64 4f121f81 4f730a48"),
    (7, "ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "5207ddc2 45165e59 4d8ee751 8c52f662"),
    (7, "243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "4dfccaba 190a87f0 c47362ba b6b5242a"),
    (10, "00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (10, "ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (10, "243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
)  # fmt: skip

PROBLEMS = (
    {},
    {"causal": True, "p": 0.5},
    {"window_left": 20, "window_right": 5, "heads_kv": 2},
    {"causal": True, "softcap": 3.0, "heads_kv": 1},
    {"sinks": True, "p": 0.9},
    {"alibi": True, "seqlen_q": 33, "seqlen_k": 130},
    {"attention_chunk": 48, "seqlen_q": 1, "heads_kv": 2},
    {"d_head": 40, "p": 1 / 1024},
)


def problem_of(
    p: float = 0.17, seqlen_q: int = 83, seqlen_k: int = 101, heads_kv: int = 4, d_head: int = 64,
    sinks: bool = False, alibi: bool = False, **options,
) -> tuple[list[torch.Tensor], dict]:  # fmt: skip
    torch.manual_seed(1)
    q = torch.randn(2, seqlen_q, 4, d_head).bfloat16()
    k, v = (torch.randn(2, seqlen_k, heads_kv, d_head).bfloat16() for _ in range(2))
    if sinks:
        options["sinks"] = torch.randn(4)
    if alibi:
        options["alibi_slopes"] = torch.rand(2, 4)
    state = torch.tensor([-(2**62) - 12345, 2**32 - 40])  # a sum that carries
    return [q, k, v], {"dropout_p": p, "dropout_state": state, **options}


@pytest.mark.parametrize(("rounds", "counter", "key", "result"), KNOWN)
def test_philox(rounds, counter, key, result):
    words = tuple(torch.tensor(int(x, 16)) for x in counter.split())
    low, high = (int(x, 16) for x in key.split())
    found = philox4x32(words, high << 32 | low, rounds)
    assert [f"{int(x):08x}" for x in found] == result.split()


def mask_by_attention(options: dict, config: str = "") -> torch.Tensor:
    """(batch, heads, queries, keys): with equal scores and V = 1, out is the mask."""
    q = torch.zeros(2, 70, 3, 128, dtype=torch.float16)
    v = torch.eye(128, dtype=torch.float16)[:, None].expand(2, 128, 3, 128).contiguous()
    out = pyflash.attention(q, torch.zeros_like(v), v, config=config, **options)
    return out.transpose(1, 2) > 0


@pytest.mark.parametrize("p", [0.003, 0.1, 0.5, 0.77, 0.999])
def test_the_mask_is_that_of_the_definition_whatever_the_config(p):
    options = {"dropout_p": p, "dropout_state": torch.tensor([77, 2**32 - 33])}
    expected = kept(options, 2, 3, torch.arange(70), 128)
    masks = [mask_by_attention(options)]
    for tile in ("64, 32, 4", "128, 64, 4", "128, 128, 8"):
        config = f"(FP16, 128, {tile}): async+eager+swizzled+load_0_0_0_tiles+opt_softmax"
        masks.append(mask_by_attention(options, config))
    assert all(torch.equal(mask, expected) for mask in masks)
    unsigned = {**options, "dropout_state": options["dropout_state"].to(torch.uint64)}
    assert torch.equal(mask_by_attention(unsigned), expected)


def test_bytes_are_equally_frequent_and_neighbours_independent():
    """Chi-square of the kept pairs of neighbouring queries, keys, heads and sequences."""
    options = {"dropout_p": 0.5, "dropout_state": torch.tensor([3, 0])}
    mask = kept(options, 2, 4, torch.arange(128), 256)
    n = mask.numel()
    assert abs(mask.double().mean().item() - 0.5) < 4 * 0.5 / math.sqrt(n)
    for axis in range(4):
        first, second = (mask.narrow(axis, i, mask.shape[axis] - 1).flatten() for i in (0, 1))
        counts = torch.bincount(2 * first.int() + second.int(), minlength=4).double()
        chi_square = ((counts - counts.sum() / 4) ** 2 / (counts.sum() / 4)).sum().item()
        assert chi_square < 16.3, axis  # of three degrees of freedom: 1 in 1000
    for p in (0.1, 0.25, 0.9):
        of_p = kept({**options, "dropout_p": p}, 2, 4, torch.arange(128), 256).double().mean()
        share = (largest_kept(p) + 1) / 256
        assert abs(of_p.item() - share) < 4 * math.sqrt(share * (1 - share) / n)
        assert abs(share - (1 - p)) < 1 / 256


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_values_and_gradients(problem):
    tensors, options = problem_of(**problem)
    leaves = [x.requires_grad_() for x in tensors]
    out, lse = pyflash.attention(*leaves, return_lse=True, **options)
    expect(*(x.detach() for x in tensors), **options).check(out, lse)
    grad_out = torch.randn(out.shape).bfloat16()
    expected = expect_gradients(*(x.detach() for x in tensors), grad_out, **options)
    expected.check(torch.autograd.grad(out, leaves, grad_out))


def test_gradients_of_lse_and_sinks():
    """lse is that of what is not dropped; out has no part of the sink."""
    tensors, options = problem_of(sinks=True)
    options["sinks"].requires_grad_()
    leaves = [x.double().requires_grad_() for x in tensors] + [options["sinks"]]
    out, lse = pyflash.op.reference.attention_ref(*leaves[:3], dtype=torch.float64, **options)
    upstream = torch.randn(out.shape), torch.randn(lse.shape)
    expected = torch.autograd.grad((out, lse), leaves, upstream)
    own = [x.requires_grad_() for x in tensors] + [options["sinks"]]
    results = pyflash.attention(*own[:3], return_lse=True, **options)
    found = torch.autograd.grad(results, own, (upstream[0].bfloat16(), upstream[1]))
    for a, b in zip(found, expected, strict=True):
        assert (a.double() - b).abs().max() < 2e-2 * b.abs().max()


def test_packed_sequences_lose_what_padded_ones_lose():
    (q, k, v), options = problem_of(causal=True, heads_kv=2)
    out, lse = pyflash.attention(q, k, v, return_lse=True, **options)
    lengths = (q.shape[1], k.shape[1])
    starts = [torch.tensor([0, n, 2 * n], dtype=torch.int32) for n in lengths]
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    got, got_lse = pyflash.attention_varlen(*packed, *starts, *lengths, return_lse=True, **options)
    assert torch.equal(got, out.flatten(0, 1))
    assert torch.equal(got_lse.unflatten(1, (2, -1)).transpose(0, 1), lse)


def test_packed_values_and_gradients():
    """The lengths differ, and one is 0."""
    torch.manual_seed(2)
    lengths_q, lengths_k = (37, 0, 70, 5), (60, 3, 70, 90)
    starts = [
        torch.tensor([0, *torch.tensor(x).cumsum(0)], dtype=torch.int32)
        for x in (lengths_q, lengths_k)
    ]
    q = torch.randn(sum(lengths_q), 4, 64).half().requires_grad_()
    k, v = (torch.randn(sum(lengths_k), 2, 64).half().requires_grad_() for _ in range(2))
    options = {"dropout_p": 0.3, "dropout_state": torch.tensor([5, 96]), "causal": True}
    out, lse = pyflash.attention_varlen(q, k, v, *starts, 70, 90, return_lse=True, **options)
    detached = [x.detach() for x in (q, k, v)]
    expect_varlen(*detached, *starts, **options).check(out, lse)
    grad_out = torch.randn(out.shape).half()
    found = torch.autograd.grad(out, (q, k, v), grad_out)
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    exact, _ = pyflash.op.reference.attention_varlen_ref(
        *leaves, *starts, dtype=torch.float64, **options
    )
    for a, b in zip(found, torch.autograd.grad(exact, leaves, grad_out.double()), strict=True):
        assert (a.double() - b).abs().max() < 2e-3 * b.abs().max() + 1e-3


def test_nothing_is_dropped_with_p_0():
    """The same bits, and the generator stays where it was."""
    tensors, options = problem_of()
    before = torch.get_rng_state()
    plain = pyflash.attention(*tensors)
    given = pyflash.attention(*tensors, dropout_p=0, dropout_state=options["dropout_state"])
    assert torch.equal(plain, given)
    assert torch.equal(torch.get_rng_state(), before)


def test_calls_draw_from_the_generator():
    tensors, _ = problem_of()
    call = lambda: pyflash.attention(*tensors, dropout_p=0.5)  # noqa: E731
    torch.manual_seed(7)
    first, second = call(), call()
    torch.manual_seed(7)
    assert torch.equal(call(), first)
    assert not torch.equal(first, second)
    torch.manual_seed(7)
    state = draw_state(torch.device("cpu"), 2, 4)
    assert torch.equal(pyflash.attention(*tensors, dropout_p=0.5, dropout_state=state), first)


def test_a_gpu_draws_as_flash_attention_does():
    """A fake GPU: PyTorch's op makes the state, of one key and one query in each head."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    calls = []

    class Recorded(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if "flash_attention" in str(function):
                calls.append((args[0].shape, args[3]))
            return function(*args, **kwargs or {})

    with FakeTensorMode(), Recorded():
        state = draw_state(torch.device("cuda"), 3, 5)
    assert (state.shape, state.dtype) == ((2,), torch.uint64)
    ((shape, p),) = calls
    assert tuple(shape) == (3, 5, 1, 8)
    assert p > 0


def test_checkpointed_layers_drop_the_same():
    tensors, _ = problem_of(causal=True)
    leaves = [x.requires_grad_() for x in tensors]

    def layer(q, k, v):
        return pyflash.attention(q, k, v, causal=True, dropout_p=0.4).float().square().sum()

    torch.manual_seed(11)
    expected = torch.autograd.grad(layer(*leaves), leaves)
    torch.manual_seed(11)
    found = torch.autograd.grad(checkpoint(layer, *leaves, use_reentrant=False), leaves)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("draws", [False, True])
def test_compiled(draws):
    tensors, options = problem_of(causal=True)
    leaves = [x.requires_grad_() for x in tensors]
    if draws:
        del options["dropout_state"]

    def loss(q, k, v):
        return pyflash.attention(q, k, v, **options).float().square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.manual_seed(3)
    value = compiled(*leaves)
    found = torch.autograd.grad(value, leaves)
    torch.manual_seed(3)
    expected = torch.autograd.grad(loss(*leaves), leaves)
    assert all(map(torch.equal, found, expected))


def test_opcheck():
    tensors, options = problem_of(seqlen_q=20, seqlen_k=24)
    leaves = [x.requires_grad_() for x in tensors]
    torch.library.opcheck(torch.ops.pyflash.fwd, leaves, options)


def test_sdpa_and_flash_attn():
    from pyflash.compat import flash_attn

    (q, k, v), _ = problem_of()
    results = []
    for call in (
        lambda: pyflash.attention(q, k, v, dropout_p=0.25),
        lambda: flash_attn.flash_attn_func(q, k, v, 0.25),
        lambda: pyflash.sdpa(
            *(x.transpose(1, 2) for x in (q, k, v)), dropout_p=0.25
        ).mT.mT.transpose(1, 2),
    ):
        torch.manual_seed(9)
        results.append(call())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    with pytest.raises(ValueError, match=r"return_attn_probs is True with dropout_p = 0\.25"):
        flash_attn.flash_attn_func(q, k, v, 0.25, return_attn_probs=True)


def test_autocast_leaves_the_state():
    tensors, options = problem_of()
    with torch.autocast("cpu", torch.bfloat16):
        out = pyflash.attention(*(x.float() for x in tensors), **options)
    assert torch.equal(out, pyflash.attention(*tensors, **options))


REFUSED = {
    "p of 1": ({"dropout_p": 1.0}, r"dropout_p = 1: expected a number from 0 on and below 1"),
    "p below 0": ({"dropout_p": -0.1}, r"dropout_p = -0\.1: expected a number from 0"),
    "p that is no number": ({"dropout_p": math.nan}, r"dropout_p = nan: expected a number"),
    "p that float32 rounds to 1": ({"dropout_p": 1 - 1e-12}, r"dropout_p = 1: expected"),
    "a state of one number": (
        {"dropout_state": torch.zeros(1, dtype=torch.int64)},
        r"dropout_state has shape \(1,\): expected \(2,\), contiguous: seed and offset",
    ),
    "a state of int32": (
        {"dropout_state": torch.zeros(2, dtype=torch.int32)},
        "dropout_state is int32: expected int64 or uint64",
    ),
    "used rows": (
        {"seqlens_k": torch.tensor([5, 5], dtype=torch.int32)},
        r"dropout_p = 0\.2 came with seqlens_q or seqlens_k: expected one of them",
    ),
    "a variant": ({"variant": "causal"}, r"dropout_p = 0\.2 came with variant"),
    "batch_invariant": (
        {"batch_invariant": True}, r"batch_invariant came with dropout_p = 0\.2: expected 0",
    ),
    "shares": ({"num_splits": -1}, r"dropout_p = 0\.2 came with num_splits = -1: expected a"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    given, words = REFUSED[case]
    tensors, options = problem_of(p=0.2)
    with pytest.raises(ValueError, match=words):
        pyflash.attention(*tensors, **{**options, **given})


def test_pages_and_the_bare_op_are_refused():
    (q, k, v), options = problem_of(p=0.2)
    table = torch.zeros(2, 1, dtype=torch.int32)
    lengths = torch.full((2,), k.shape[1], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"dropout_p = 0\.2 came with pages of keys: expected 0"):
        pyflash.attention_paged(q, k, v, table, lengths, **options)
    with pytest.raises(RuntimeError, match=r"dropout_p = 0\.2 came without dropout_state"):
        torch.ops.pyflash.fwd(q, k, v, dropout_p=0.2)


def test_ranks_refuse():
    """Slices of a sequence, and DTensors."""
    from types import SimpleNamespace

    from pyflash.distributed.options import check_positional
    from pyflash.op.dropout import with_state

    (q, k, _), _ = problem_of()
    for method in ("ring", "all_to_all"):
        with pytest.raises(ValueError, match=r"dropout_p depends on the places of sequences and"):
            check_positional(q, k, 2, method, {"dropout_p": 0.1})
    sharded = SimpleNamespace(placements=())
    with pytest.raises(ValueError, match=r"dropout_p = 0\.1 came with a DTensor: expected 0"):
        with_state({"dropout_p": 0.1}, sharded)


def test_a_gpu_has_no_state_for_more_heads_than_its_grid():
    with pytest.raises(ValueError, match=r"dropout_p came with 65536 heads: expected at most 655"):
        draw_state(torch.device("cuda"), 1, 65536)
