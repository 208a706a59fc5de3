"""Caches in e4m3 on the CPU: beside fp64 of what their elements stand for."""

from __future__ import annotations

import math

import pytest
import torch
from support.paged import Cache

import pyflash
from pyflash.op.reference import attention_ref

FP16, BF16, E4M3 = torch.float16, torch.bfloat16, torch.float8_e4m3fn
MASKS = {
    "full": {},
    "causal": {"causal": True},
    "softcap": {"softcap": 2.0, "causal": True},
    "sinks": {"sinks": torch.linspace(-2, 3, 4), "causal": True},
    "alibi": {"alibi_slopes": torch.rand(3, 4), "window_left": 20},
}


def scales(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    if kind == "of all":
        return torch.tensor(0.37), torch.tensor(1.7)
    return torch.tensor([0.02, 0.6]), torch.tensor([3.0, 0.1])


def fp8_cache(lengths, dtype, kind, page_size=16):
    """A cache whose keys are those that the quantised ones stand for, and what is given."""
    cache = Cache(lengths, page_size, dtype=dtype)
    k_scale, v_scale = scales(kind)
    k8, v8 = (torch.full(cache.k.shape, math.nan).to(E4M3) for _ in "kv")
    for b in range(len(lengths)):
        page, row = cache.place(b)
        new = (cache.keys[b], cache.values[b])
        slots = page * page_size + row
        pyflash.append_kv(*new, k8, v8, slots, k_scale=k_scale, v_scale=v_scale)
        for x, scale, into in ((k8, k_scale, cache.keys), (v8, v_scale, cache.values)):
            into[b] = x[page, row].double() * scale.double().reshape(-1, 1)
    given = {"k_scale": k_scale, "v_scale": v_scale}
    return cache, (k8, v8, cache.table, cache.seqlens), given


@pytest.mark.parametrize("kind", ["of all", "of each head"])
@pytest.mark.parametrize("dtype", [FP16, BF16])
@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("packed", [False, True])
def test_right_in_fp64(kind, dtype, options, packed):
    torch.manual_seed(0)
    cache, tensors, given = fp8_cache((37, 0, 64), dtype, kind)
    q = torch.randn(3, 3, 4, 64).to(dtype)
    options = {**options, **given, "return_lse": True}
    if packed:
        options |= {"cu_seqlens_q": torch.arange(4).int() * 3, "max_seqlen_q": 3}
        q = q.flatten(0, 1)
    into = torch.empty_like(q)
    out, lse = pyflash.attention_paged(q, *tensors, out=into, **options)
    assert out is into
    q, out = q.view(3, 3, 4, 64), out.view(3, 3, 4, 64)
    for b in range(3):
        of_b = {name: x for name, x in options.items() if name in MASKS["causal"] or name in (
            "softcap", "window_left", "sinks")}  # fmt: skip
        if "alibi_slopes" in options:
            of_b["alibi_slopes"] = options["alibi_slopes"][b]
        check(q[b], cache.keys[b], cache.values[b], out[b], lse[:, 3 * b : 3 * b + 3] if packed
              else lse[b], of_b)  # fmt: skip


def check(q, k, v, out, lse, options) -> None:
    """Beside the formula in fp64 over the dequantised cache, within rounding of 16 bit."""
    exact = attention_ref(q[None], k[None], v[None], dtype=torch.float64, **options)
    size = exact[0].abs().max().clamp(min=1e-30)
    epsilon = torch.finfo(out.dtype).eps
    assert ((out - exact[0][0]).abs().max() / size) < 3 * epsilon
    torch.testing.assert_close(lse.double(), exact[1][0], rtol=1e-4, atol=1e-4)


def test_pitfall_36_long_contexts():
    """The error over 32,768 keys is that of 16 bit: sums are fp32."""
    torch.manual_seed(0)
    cache, tensors, given = fp8_cache((32768,), FP16, "of each head", page_size=256)
    q = torch.randn(1, 1, 4, 64).half()
    out, lse = pyflash.attention_paged(q, *tensors, return_lse=True, **given)
    check(q[0], cache.keys[0], cache.values[0], out[0], lse[0], {})


def test_what_exceeds_the_range_is_the_largest():
    k8, v8 = (torch.zeros(2, 4, 2, 8).to(E4M3) for _ in "kv")
    k = torch.full((2, 2, 8), 3000.0).half()
    one = torch.tensor(1.0)
    pyflash.append_kv(k, -k, k8, v8, torch.tensor([5, -1]), k_scale=one, v_scale=one / 2)
    assert (k8[1, 1].float() == 448).all()
    assert (v8[1, 1].float() == -448).all()
    assert k8.float().count_nonzero() == 16


def test_opcheck():
    k8, v8 = (torch.zeros(2, 4, 2, 8).to(E4M3) for _ in "kv")
    k = torch.randn(2, 2, 8).half()
    given = {"k_scale": torch.ones(2), "v_scale": torch.tensor(1.0)}
    tests = ("test_faketensor",)  # others compare e4m3 by what torch lacks for it
    torch.library.opcheck(
        torch.ops.pyflash.append_kv.default, (k, k, k8, v8, torch.tensor([5, -1])), given,
        test_utils=tests,
    )  # fmt: skip


ONE = torch.tensor(1.0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"k_scale": ONE}, "v_scale is None: expected it with caches of float8_e4m3fn"),
        ({"k_scale": ONE.half(), "v_scale": ONE}, r"k_scale is float16 of shape \(\): expected fl"),
        ({"k_scale": torch.ones(3), "v_scale": ONE}, r"k_scale is float32 of shape \(3,\): expe"),
        ({"k_scale": ONE.to("meta"), "v_scale": ONE}, "k_scale is on meta: expected cpu"),
    ],
)
def test_wrong_scales_are_refused_in_words(given, said):
    _, tensors, _ = fp8_cache((37,), FP16, "of all")
    q, k = torch.randn(1, 1, 4, 64).half(), torch.randn(1, 2, 64).half()
    with pytest.raises(ValueError, match=f"^pyflash: {said}"):
        pyflash.attention_paged(q, *tensors, **given)
    with pytest.raises(ValueError, match=f"^pyflash: {said}"):
        pyflash.append_kv(k, k, *tensors[:2], torch.tensor([0]), **given)


def test_missing_and_idle_scales_are_refused_in_words():
    cache, tensors, given = fp8_cache((37,), FP16, "of all")
    q, k = torch.randn(1, 1, 4, 64).half(), torch.randn(1, 2, 64).half()
    with pytest.raises(ValueError, match="k_scale is None: expected it with caches of float8"):
        pyflash.attention_paged(q, *tensors)
    with pytest.raises(ValueError, match="k_scale is None: expected it with caches of float8"):
        pyflash.append_kv(k, k, *tensors[:2], torch.tensor([0]))
    with pytest.raises(ValueError, match="k_scale came with a cache of float16: expected it wit"):
        pyflash.attention_paged(q, *cache.tensors, **given)


def test_the_op_itself_refuses_in_words():
    _, tensors, given = fp8_cache((37,), FP16, "of all")
    q = torch.randn(1, 1, 4, 64).half()
    op = torch.ops.pyflash.fwd_paged
    with pytest.raises(RuntimeError, match="k_cache is float8_e4m3fn: expected float16 as q"):
        op(q, *tensors)
    with pytest.raises(RuntimeError, match="k_scale came without v_scale: expected both, or"):
        op(q, *tensors, k_scale=ONE)
    with pytest.raises(RuntimeError, match=r"v_scale is float32 of shape \(3,\): expected float32"):
        op(q, *tensors, k_scale=ONE, v_scale=torch.ones(3))
    with pytest.raises(RuntimeError, match="k_scale and v_scale came with a k_cache of float16"):
        op(q, *(x.half() for x in tensors[:2]), *tensors[2:], **given)
    narrow = [x[..., :24] for x in tensors[:2]]
    with pytest.raises(RuntimeError, match="d_head 24: expected a multiple of 16 with caches of"):
        op(q[..., :24].contiguous(), *narrow, *tensors[2:], **given)


def test_fakes_take_them():
    _, tensors, given = fp8_cache((37,), FP16, "of each head")
    q = torch.randn(1, 1, 4, 64).half()
    arguments = (q, *tensors, None, None, *given.values())
    torch.library.opcheck(
        torch.ops.pyflash.fwd_paged.default, arguments, test_utils=("test_faketensor",)
    )


def test_scales_of_any_strides_and_views():
    """Those of several layers may lie in one tensor."""
    _, tensors, given = fp8_cache((37, 3), FP16, "of each head")
    q = torch.randn(2, 1, 4, 64).half()
    expected = pyflash.attention_paged(q, *tensors, **given)
    strided = {name: torch.stack([x, x + 1], -1)[:, 0] for name, x in given.items()}
    assert strided["k_scale"].stride() == (2,)
    assert torch.equal(pyflash.attention_paged(q, *tensors, **strided), expected)
