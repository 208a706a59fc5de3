"""Dropout on a GPU: the mask of PyTorch's flash attention bit for bit, values and gradients beside
float64, graphs and checkpoints. Needs `pyflash build --set dropout`."""

from __future__ import annotations

import pytest
import torch
from support.gpu_kernels import dropout_is_built
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import pyflash
from pyflash import Problem, attention, attention_varlen, select
from pyflash.op.dropout import draw_state, kept
from pyflash.op.reference import expect, expect_varlen
from pyflash.op.reference_gradients import expect_gradients

pytestmark = pytest.mark.gpu

STATE = torch.tensor([2**40 + 17, 2**32 - 70])
PROBLEMS = {
    "ragged": (128, 4, 300, 333, {}),
    "causal": (128, 2, 512, 512, {"causal": True}),
    "narrow": (64, 4, 257, 511, {"causal": True, "p": 0.5}),
    "window": (64, 2, 400, 400, {"window_left": 100, "window_right": 10}),
    "softcap": (128, 1, 200, 300, {"softcap": 3.0, "causal": True}),
    "slopes": (128, 4, 200, 200, {"alibi_slopes": torch.rand(4)}),
    "d_head 40": (40, 4, 200, 130, {}),
    "d_head 256": (256, 4, 200, 130, {"causal": True}),
    "one query": (128, 1, 1, 700, {"p": 0.7}),
}


@pytest.fixture(autouse=True, scope="module")
def _kernels_are_built():
    if not dropout_is_built():
        pytest.skip("the kernels with dropout are not built: pyflash build --set dropout")


def make(name: str) -> tuple[list[torch.Tensor], dict]:
    d_head, heads_kv, seqlen_q, seqlen_k, options = PROBLEMS[name]
    options = dict(options)
    torch.manual_seed(1)
    q = torch.randn(2, seqlen_q, 4, d_head, device="cuda").bfloat16()
    k, v = (torch.randn(2, seqlen_k, heads_kv, d_head, device="cuda").bfloat16() for _ in range(2))
    p = options.pop("p", 0.2)
    options = {n: x.cuda() if isinstance(x, torch.Tensor) else x for n, x in options.items()}
    return [q, k, v], {"dropout_p": p, "dropout_state": STATE.cuda(), **options}


@pytest.mark.parametrize("name", PROBLEMS)
def test_values_and_gradients(name):
    tensors, options = make(name)
    leaves = [x.requires_grad_() for x in tensors]
    out, lse = attention(*leaves, return_lse=True, **options)
    detached = [x.detach() for x in tensors]
    expect(*detached, **options).check(out, lse)
    grad_out = torch.randn_like(out)
    found = torch.autograd.grad(out, leaves, grad_out)
    expect_gradients(*detached, grad_out, **options).check(found)


@pytest.mark.parametrize("splits", [2, 5])
def test_splits(splits):
    (q, k, v), options = make("ragged")
    expect(q, k, v, **options).check(attention(q, k, v, num_splits=splits, **options))


@pytest.mark.parametrize("deterministic", [False, True])
def test_packed(deterministic):
    torch.manual_seed(2)
    lengths = torch.tensor([0, 300, 0, 70, 513, 1], device="cuda")
    starts = lengths.cumsum(0).int()
    n = int(starts[-1])
    q = torch.randn(n, 4, 128, device="cuda").half().requires_grad_()
    k, v = (torch.randn(n, 2, 128, device="cuda").half().requires_grad_() for _ in range(2))
    options = {"dropout_p": 0.3, "dropout_state": STATE.cuda(), "causal": True}
    arguments = (starts, starts, 513, 513)
    out = attention_varlen(q, k, v, *arguments, deterministic=deterministic, **options)
    detached = [x.detach() for x in (q, k, v)]
    expect_varlen(*detached, starts, starts, **options).check(out)
    grad_out = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v), grad_out)
    leaves = [x.double().requires_grad_() for x in detached]
    exact, _ = pyflash.op.reference.attention_varlen_ref(
        *leaves, starts, starts, dtype=torch.float64, **options
    )
    for a, b in zip(found, torch.autograd.grad(exact, leaves, grad_out.double()), strict=True):
        assert (a.double() - b).norm() < 1e-3 * b.norm()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(128, 128), (70, 128), (300, 100)])
def test_the_mask_is_that_of_pytorchs_flash_attention(p, seqlen_q, seqlen_k):
    """Equal scores and V = 1 show it. The generators of both move on alike."""
    q = torch.zeros(2, 3, seqlen_q, 128, device="cuda", dtype=torch.float16)
    k = torch.zeros(2, 3, seqlen_k, 128, device="cuda", dtype=torch.float16)
    v = torch.eye(seqlen_k, 128, device="cuda", dtype=torch.float16).expand(2, 3, -1, -1)
    v = v.contiguous()
    masks, places = [], []
    for call in (torch.nn.functional.scaled_dot_product_attention, pyflash.sdpa):
        torch.manual_seed(5)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            call(q, k, v, dropout_p=p)
            masks.append(call(q, k, v, dropout_p=p) != 0)
        places.append(torch.cuda.default_generators[0].get_offset())
    assert torch.equal(masks[0], masks[1])
    assert places[0] == places[1]
    torch.manual_seed(5)
    draw_state(q.device, 2, 3)
    options = {"dropout_p": p, "dropout_state": draw_state(q.device, 2, 3)}
    defined = kept(options, 2, 3, torch.arange(seqlen_q, device="cuda"), seqlen_k)
    assert torch.equal(masks[1][..., :seqlen_k], defined)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_beside_pytorchs_flash_attention(causal):
    leaves = [
        torch.randn(2, 3, 256, 64, device="cuda").bfloat16().requires_grad_() for _ in range(3)
    ]
    grad_out = torch.randn(2, 3, 256, 64, device="cuda").bfloat16()
    found = []
    for call in (torch.nn.functional.scaled_dot_product_attention, pyflash.sdpa):
        torch.manual_seed(5)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = call(*leaves, dropout_p=0.25, is_causal=causal)
        found.append((out, *torch.autograd.grad(out, leaves, grad_out)))
    for a, b in zip(*found, strict=True):
        assert (a.double() - b.double()).norm() < 1.5e-2 * b.double().norm()


def test_checkpoints():
    tensors, _ = make("causal")
    leaves = [x.requires_grad_() for x in tensors]

    def layer(q, k, v):
        out = attention(q, k, v, causal=True, dropout_p=0.4, deterministic=True)
        return out.float().square().sum()

    torch.manual_seed(11)
    expected = torch.autograd.grad(layer(*leaves), leaves)
    torch.manual_seed(11)
    found = torch.autograd.grad(checkpoint(layer, *leaves, use_reentrant=False), leaves)
    assert all(map(torch.equal, found, expected))


def test_graphs_draw_anew_in_each_replay():
    (q, k, v), _ = make("causal")
    attention(q, k, v, causal=True, dropout_p=0.4)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention(q, k, v, causal=True, dropout_p=0.4)
    replayed = []
    for seed in (3, None, 3):
        if seed is not None:
            torch.manual_seed(seed)
        graph.replay()
        replayed.append(out.clone())
    assert torch.equal(replayed[0], replayed[2])
    assert not torch.equal(replayed[0], replayed[1])
    torch.manual_seed(3)
    assert torch.equal(replayed[0], attention(q, k, v, causal=True, dropout_p=0.4))


def test_compiled():
    tensors, _ = make("causal")
    leaves = [x.requires_grad_() for x in tensors]

    def loss(q, k, v):
        return attention(q, k, v, causal=True, dropout_p=0.3).float().square().sum()

    compiled = torch.compile(loss, fullgraph=True)
    values = []
    for _ in range(2):
        torch.manual_seed(3)
        values.append(torch.autograd.grad(compiled(*leaves), leaves))
    torch.testing.assert_close(values[0], values[1], rtol=2e-2, atol=2e-2)


def test_selection_names_kernels_with_dropout():
    options = {"dropout_p": 0.1, "causal": True}
    problem = Problem(
        batch=2, heads_q=4, heads_kv=4, seqlen_q=512, seqlen_k=512, d_head=128, dtype="BF16",
        options=options,
    )  # fmt: skip
    found = select(problem)
    features = pyflash.built_configs()[found.config].features
    assert any(f.dropout for f in features)
    assert "_bwd" in found.backward
