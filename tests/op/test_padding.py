"""Padded attention by itself. tests/gpu/test_gpu_transformers.py runs it on a GPU, too."""

import pytest
import torch

from pyflash.integrations.packing import packing_of
from pyflash.integrations.padding import padded_attention
from pyflash.op.reference import attention_ref, tolerance


@pytest.fixture
def device() -> str:
    return "cpu"


def masked_reference(q, k, v, mask, dtype, causal):
    """Each query by itself, over the keys that it attends."""
    out = torch.zeros(q.shape, dtype=dtype, device=q.device)
    numbered = mask.dtype != torch.bool
    for b, row in enumerate(mask.tolist()):
        for i in range(q.shape[1]):
            own = i + len(row) - q.shape[1]
            keys = [j for j, number in enumerate(row) if number]
            if causal:
                keys = [j for j in keys if j <= own and row[own]]
            if numbered:
                keys = [j for j in keys if row[j] == row[own]]
            query = q[b : b + 1, i : i + 1]
            out[b, i] = attention_ref(query, k[b : b + 1, keys], v[b : b + 1, keys], dtype=dtype)[0]
    return out


MASKS = {
    "left": [[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]],
    "right": [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]],
    "holes": [[1, 0, 0, 1, 1, 0], [0, 1, 0, 1, 0, 1]],
    "a row of padding": [[0, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]],
    "nothing but padding": [[0] * 6, [0] * 6],
    "numbered": [[1, 1, 1, 2, 2, 3], [1, 2, 2, 2, 2, 2]],
    "numbered and padded": [[0, 1, 1, 2, 2, 0], [3, 3, 0, 0, 1, 1]],
    "no padding": [[1] * 6, [1] * 6],
}


# Where sequences are numbered, each token is a query and a key.
CASES = [(case, n) for case in MASKS for n in (6, 4, 1) if n == 6 or "numbered" not in case]


@pytest.mark.parametrize("in_cache", [False, True], ids=["rows", "cache"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize(("case", "seqlen_q"), CASES)
def test_padded_attention(case, seqlen_q, causal, in_cache, device):
    mask = torch.tensor(MASKS[case], device=device)
    if "numbered" not in case:
        mask = mask.bool()
    generator = torch.Generator().manual_seed(0)
    # Two keys more than the mask has columns: slots of a static cache.
    q, k, v = (
        torch.randn(2, seqlen, heads, 16, generator=generator).to(device, torch.float16)
        for seqlen, heads in ((seqlen_q, 4), (8, 2), (8, 2))
    )
    k[:, 6:], v[:, 6:] = torch.nan, torch.nan
    if in_cache:  # the keys of a head lie one after the other
        k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    options = {"causal": causal, "window_left": -1, "window_right": -1}
    out = padded_attention(q, k, v, mask, **options)
    ref, pt16 = (masked_reference(q, k, v, mask, x, causal) for x in (torch.float64, q.dtype))
    assert (out - ref).abs().max().item() <= tolerance(ref, pt16)
    assert torch.equal(out[ref == 0], torch.zeros_like(out[ref == 0]))
    packing = packing_of(mask, seqlen_q, in_order=causal)
    if packing is not None:
        stays = in_cache and seqlen_q == 1 and packing.queries is None and not packing.holes
        assert bool(packing.in_place) == stays


OPTIONS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window_left": 2},
    "softcap": {"causal": True, "softcap": 1.5},
    "scale": {"softmax_scale": 0.7},
    "slopes": {"causal": True, "alibi_slopes": [0.5, 0.25, 0.1, 0.7]},
    "sinks": {"causal": True, "sinks": [0.3, -1.0, 0.0, 2.0]},
}


@pytest.mark.parametrize("n_columns", [6, 8])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("heads_kv", [1, 2, 4])
def test_keys_in_a_cache_are_attended_as_gathered_ones(heads_kv, options, n_columns, device):
    """Of one query a row; n_columns: of the mask, the cache has eight rows."""
    padded = [[0, 0, 1, 1, 1, 1, 1, 1], [1] * 8, [0, 0, 0, 0, 0, 0, 0, 1]]
    mask = torch.tensor(padded, device=device)[:, 8 - n_columns :].bool()
    generator = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(3, seqlen, heads, 16, generator=generator).to(device, torch.float16)
        for seqlen, heads in ((1, 4), (8, heads_kv), (8, heads_kv))
    )
    k[:, n_columns:], v[:, n_columns:] = torch.nan, torch.nan
    given = {
        name: torch.tensor(x, device=device) if isinstance(x, list) else x
        for name, x in OPTIONS[options].items()
    }
    # A row more in memory, so that one head of keys does not lie in a row, either.
    apart = (torch.cat([x, x[:, :1]], 1)[:, :8] for x in (k, v))
    gathered = padded_attention(q, *apart, mask.clone(), **given)
    in_cache = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    out = padded_attention(q, *in_cache, mask, **given)
    in_order = options not in ("full", "scale")
    of_heads = any(isinstance(x, torch.Tensor) for x in given.values())
    assert bool(packing_of(mask, 1, in_order).in_place) == (not of_heads)
    torch.testing.assert_close(out, gathered, rtol=2e-3, atol=2e-3)


def test_keys_in_a_cache_that_have_gradients_are_gathered(device):
    mask = torch.tensor([[0, 1, 1, 1], [1] * 4], device=device).bool()
    q, k, v = (torch.randn(2, n, 4, 16, device=device).half() for n in (1, 4, 4))
    k, v = (x.transpose(1, 2).contiguous().requires_grad_() for x in (k, v))
    out = padded_attention(q, k.transpose(1, 2), v.transpose(1, 2), mask, causal=True)
    assert not packing_of(mask, 1, True).in_place
    of_k, of_v = torch.autograd.grad(out.float().sum(), (k, v))
    assert (of_k[0, :, 0] == 0).all()
    assert (of_v[0, :, 0] == 0).all()
    assert of_v[0, :, 1:].any()


def test_a_step_over_a_cache_reads_the_mask_once(monkeypatch, device):
    """What is read waits for the GPU; what is on the host is read there."""
    reads = []
    for name in ("nonzero", "tolist", "item", "__bool__", "__int__", "cpu"):
        method = getattr(torch.Tensor, name)

        def counted(x, *a, method=method, name=name, **k):
            if name == "cpu" or x.device.type != "cpu":
                reads.append(name)
            return method(x, *a, **k)

        monkeypatch.setattr(torch.Tensor, name, counted)
    q = torch.randn(2, 1, 4, 64, dtype=torch.float16, device=device)
    k, v = torch.randn(2, 2, 2, 9, 64, dtype=torch.float16, device=device).transpose(2, 3)
    mask = torch.ones(2, 9, dtype=torch.bool, device=device)
    mask[0, :3] = False
    for _ in range(3):  # layers
        padded_attention(q, k, v, mask, causal=True)
    assert reads == ["cpu"]


@pytest.mark.parametrize("case", [case for case in MASKS if "numbered" not in case])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int64], ids=str)
def test_what_is_found_out_about_a_mask(case, dtype):
    mask = (torch.tensor(MASKS[case]) * (1 if dtype == torch.bool else 3)).to(dtype)
    packing = packing_of(mask, 1, False)
    if case == "no padding":
        assert packing is None
        return
    rows = MASKS[case]
    assert packing.of_rows.tolist() == [sum(row) for row in rows]
    assert packing.max_seqlen_k == max(sum(row) for row in rows)
    runs = ["".join(map(str, row)).strip("0") for row in rows]
    assert packing.holes == any("0" in run for run in runs)
    for begin, row in zip(packing.begins.tolist(), rows, strict=True):
        if 1 in row:
            assert begin == row.index(1)


def test_a_mask_that_was_changed_is_looked_at_again():
    mask = torch.tensor(MASKS["left"]) > 0
    packing = packing_of(mask, 6, True)
    assert packing.cu_seqlens[0].tolist() == [0, 4, 10]
    assert packing_of(mask, 6, True) is packing
    mask[0] = True
    assert packing_of(mask, 6, True) is None
    mask[1, :5] = False
    assert packing_of(mask, 6, True).cu_seqlens[0].tolist() == [0, 6, 7]
