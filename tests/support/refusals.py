"""Calls that attention and attention_varlen refuse, each with the sentence."""

import torch

from pyflash import attention, attention_varlen

CONFIG = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"


def half(*size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.float16)


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def qkv(**changes):
    """Arguments of attention that are right, but for `changes`."""
    right = {"q": half(2, 33, 4, 128), "k": half(2, 17, 4, 128), "v": half(2, 17, 4, 128)}
    return right | changes


def packed(**changes):
    """Arguments of attention_varlen that are right, but for `changes`."""
    right = {
        "q": half(33, 4, 128),
        "k": half(17, 4, 128),
        "v": half(17, 4, 128),
        "cu_seqlens_q": int32(0, 20, 33),
        "cu_seqlens_k": int32(0, 0, 17),
        "max_seqlen_q": 20,
        "max_seqlen_k": 17,
    }
    return right | changes


# name -> (arguments, sentence), of attention
REFUSED = {
    "q of a dtype that is not supported": (
        qkv(q=torch.zeros(2, 33, 4, 128)),
        "q is float32: expected float16 or bfloat16",
    ),
    "k of another dtype than q": (
        qkv(k=half(2, 17, 4, 128).bfloat16()),
        "k is bfloat16: expected float16 as q",
    ),
    "v of another dtype than q": (
        qkv(v=half(2, 17, 4, 128).double()),
        "v is float64: expected float16 as q",
    ),
    "q of rank 3": (
        qkv(q=half(33, 4, 128)),
        "q has shape (33, 4, 128): expected 4 dimensions, (batch, seqlen, heads, d_head)",
    ),
    "v of rank 5": (
        qkv(v=half(1, 2, 17, 4, 128)),
        "v has shape (1, 2, 17, 4, 128): expected 4 dimensions, (batch, seqlen, heads, d_head)",
    ),
    "k of another batch than q": (
        qkv(k=half(3, 17, 4, 128)),
        "k has shape (3, 17, 4, 128): expected batch 2 as q",
    ),
    "heads of k that do not divide those of q": (
        qkv(k=half(2, 17, 3, 128), v=half(2, 17, 3, 128)),
        "k has shape (2, 17, 3, 128): expected a number of heads that divides the 4 of q",
    ),
    "more heads of k than of q": (
        qkv(k=half(2, 17, 8, 128), v=half(2, 17, 8, 128)),
        "k has shape (2, 17, 8, 128): expected a number of heads that divides the 4 of q",
    ),
    "no heads of k": (
        qkv(k=half(2, 17, 0, 128), v=half(2, 17, 0, 128)),
        "k has shape (2, 17, 0, 128): expected a number of heads that divides the 4 of q",
    ),
    "k of another d_head than q": (
        qkv(k=half(2, 17, 4, 64)),
        "k has shape (2, 17, 4, 64): expected d_head 128 as q",
    ),
    "v of another length than k": (
        qkv(v=half(2, 18, 4, 128)),
        "v has shape (2, 18, 4, 128): expected seqlen 17 as k",
    ),
    "v of other heads than k": (
        qkv(v=half(2, 17, 2, 128)),
        "v has shape (2, 17, 2, 128): expected heads 4 as k",
    ),
    "v of another d_head than k": (
        qkv(v=half(2, 17, 4, 64)),
        "v has shape (2, 17, 4, 64): expected d_head 128 as k",
    ),
    "a d_head that is no multiple of 8": (
        {name: half(2, 17, 4, 100) for name in "qkv"},
        "q has d_head 100: expected a multiple of 8 from 8 to 256",
    ),
    "a d_head above 256": (
        {name: half(2, 17, 4, 264) for name in "qkv"},
        "q has d_head 264: expected a multiple of 8 from 8 to 256",
    ),
    "no d_head": (
        {name: half(2, 17, 4, 0) for name in "qkv"},
        "q has d_head 0: expected a multiple of 8 from 8 to 256",
    ),
    "last dimension not contiguous": (
        qkv(q=half(2, 33, 4, 256)[..., ::2]),
        "q has stride 2 in its last dimension: expected 1, call .contiguous()",
    ),
    "batches that are not 16-byte aligned": (
        qkv(k=half(2, 17, 4 * 128 + 1)[..., :-1].unflatten(-1, (4, 128))),
        "k has a batch stride of 8721 elements: expected a multiple of 8 (16 bytes), "
        "call .contiguous()",
    ),
    "heads that are not 16-byte aligned": (
        qkv(v=half(2, 17, 4, 132)[..., :128]),
        "v has a head stride of 132 elements: expected a multiple of 8 (16 bytes), "
        "call .contiguous()",
    ),
    "d_head above the config's": (
        {name: half(2, 17, 4, 136) for name in "qkv"} | {"config": CONFIG},
        f"config '{CONFIG}' is for d_head up to 128, q has d_head 136",
    ),
    "dtype other than the config's": (
        {name: half(2, 17, 4, 128).bfloat16() for name in "qkv"} | {"config": CONFIG},
        f"config '{CONFIG}' is for FP16, q is BF16",
    ),
}

# name -> (arguments, sentence), of attention_varlen
REFUSED_PACKED = {
    "q of a dtype that is not supported": (
        packed(q=torch.zeros(33, 4, 128)),
        "q is float32: expected float16 or bfloat16",
    ),
    "v of another dtype than q": (
        packed(v=half(17, 4, 128).bfloat16()),
        "v is bfloat16: expected float16 as q",
    ),
    "q of rank 4": (
        packed(q=half(1, 33, 4, 128)),
        "q has shape (1, 33, 4, 128): expected 3 dimensions, (total, heads, d_head)",
    ),
    "heads of k that do not divide those of q": (
        packed(k=half(17, 3, 128), v=half(17, 3, 128)),
        "k has shape (17, 3, 128): expected a number of heads that divides the 4 of q",
    ),
    "k of another d_head than q": (
        packed(k=half(17, 4, 64)),
        "k has shape (17, 4, 64): expected d_head 128 as q",
    ),
    "v of another total than k": (
        packed(v=half(18, 4, 128)),
        "v has shape (18, 4, 128): expected total 17 as k",
    ),
    "v of another d_head than k": (
        packed(v=half(17, 4, 64)),
        "v has shape (17, 4, 64): expected d_head 128 as k",
    ),
    "a d_head that is no multiple of 8": (
        packed(q=half(33, 4, 12), k=half(17, 4, 12), v=half(17, 4, 12)),
        "q has d_head 12: expected a multiple of 8 from 8 to 256",
    ),
    "last dimension not contiguous": (
        packed(v=half(17, 4, 256)[..., ::2]),
        "v has stride 2 in its last dimension: expected 1, call .contiguous()",
    ),
    "rows that are not 16-byte aligned": (
        packed(q=half(33, 4 * 128 + 1)[..., :-1].unflatten(-1, (4, 128))),
        "q has a row stride of 513 elements: expected a multiple of 8 (16 bytes), "
        "call .contiguous()",
    ),
    "cu_seqlens of 64 bits": (
        packed(cu_seqlens_q=int32(0, 20, 33).long()),
        "cu_seqlens_q is int64: expected int32",
    ),
    "cu_seqlens of rank 2": (
        packed(cu_seqlens_k=int32(0, 0, 17)[None]),
        "cu_seqlens_k has shape (1, 3): expected (batch + 1,)",
    ),
    "cu_seqlens without elements": (
        packed(cu_seqlens_q=int32()),
        "cu_seqlens_q has shape (0,): expected (batch + 1,)",
    ),
    "cu_seqlens that are not contiguous": (
        packed(cu_seqlens_q=int32(0, 0, 20, 0, 33)[::2]),
        "cu_seqlens_q has stride 2: expected 1, call .contiguous()",
    ),
    "cu_seqlens of different lengths": (
        packed(cu_seqlens_k=int32(0, 0, 10, 17)),
        "cu_seqlens_k has shape (4,): expected (3,) as cu_seqlens_q",
    ),
    "a negative max_seqlen": (
        packed(max_seqlen_q=-1),
        "max_seqlen_q = -1: expected a number from 0 to 536870912",
    ),
    "a max_seqlen beyond the kernels' integers": (
        packed(max_seqlen_k=2**29 + 1),
        "max_seqlen_k = 536870913: expected a number from 0 to 536870912",
    ),
    "a max_seqlen_q that leaves rows over": (
        packed(max_seqlen_q=16),
        "max_seqlen_q = 16 for 2 sequences: expected room for the 33 rows of q",
    ),
    "a max_seqlen_k that leaves rows over": (
        packed(max_seqlen_k=8),
        "max_seqlen_k = 8 for 2 sequences: expected room for the 17 rows of k",
    ),
    "rows without a sequence": (
        packed(cu_seqlens_q=int32(0), cu_seqlens_k=int32(0)),
        "max_seqlen_q = 20 for 0 sequences: expected room for the 33 rows of q",
    ),
    "d_head above the config's": (
        packed(q=half(33, 4, 136), k=half(17, 4, 136), v=half(17, 4, 136), config=CONFIG),
        f"config '{CONFIG}' is for d_head up to 128, q has d_head 136",
    ),
}

# name -> (arguments, sentence), of both
REFUSED_OPTIONS = {
    "a window_left below -1": (
        {"window_left": -2},
        "window_left = -2: expected a number of keys, or -1 for no limit",
    ),
    "a window_right below -1": (
        {"window_right": -5},
        "window_right = -5: expected a number of keys, or -1 for no limit",
    ),
    "causal with a window_right": (
        {"causal": True, "window_right": 3},
        "causal = True sets window_right = 0, which came as 3: expected -1 or 0",
    ),
    "a negative softcap": (
        {"softcap": -1.5},
        "softcap = -1.5: expected a finite number above 0, or 0 for no cap",
    ),
    "an infinite softcap": (
        {"softcap": torch.inf},
        "softcap = inf: expected a finite number above 0, or 0 for no cap",
    ),
    "a softcap that is not a number": (
        {"softcap": torch.nan},
        "softcap = nan: expected a finite number above 0, or 0 for no cap",
    ),
    "negative num_splits": (
        {"num_splits": -3},
        "num_splits = -3: expected a number from 1 to 128, 0 to have it chosen, or -1 for as many "
        "as each sequence's length asks for",
    ),
    "too many num_splits": (
        {"num_splits": 129},
        "num_splits = 129: expected a number from 1 to 128, 0 to have it chosen, or -1 for as many "
        "as each sequence's length asks for",
    ),
    "scale of zero": (
        {"softmax_scale": 0.0},
        "softmax_scale = 0: expected a finite number above 0",
    ),
    "negative scale": (
        {"softmax_scale": -0.5},
        "softmax_scale = -0.5: expected a finite number above 0",
    ),
    "infinite scale": (
        {"softmax_scale": torch.inf},
        "softmax_scale = inf: expected a finite number above 0",
    ),
    "scale that is not a number": (
        {"softmax_scale": torch.nan},
        "softmax_scale = nan: expected a finite number above 0",
    ),
}

# name -> (arguments, sentence), of attention_varlen: what only the data tells
REFUSED_VALUES = {
    "not from 0": (
        packed(cu_seqlens_q=int32(1, 20, 33)),
        "cu_seqlens_q starts with 1: expected 0",
    ),
    "not ascending": (
        packed(cu_seqlens_k=int32(0, 18, 17), max_seqlen_k=18),
        "cu_seqlens_k goes down from 18 to 17: expected ascending numbers",
    ),
    "not to the total": (
        packed(cu_seqlens_k=int32(0, 10, 16)),
        "cu_seqlens_k ends with 16: expected 17, the rows of k",
    ),
    "past the total": (
        packed(cu_seqlens_q=int32(0, 20, 34)),
        "cu_seqlens_q ends with 34: expected 33, the rows of q",
    ),
    "a sequence longer than max_seqlen": (
        packed(max_seqlen_q=19),
        "cu_seqlens_q has a sequence of 20 rows: expected at most max_seqlen_q = 19",
    ),
    "a difference beyond 32 bits": (
        packed(cu_seqlens_q=int32(0, -(2**31), 2**31 - 1)),
        "cu_seqlens_q goes down from 0 to -2147483648: expected ascending numbers",
    ),
}

# name -> (function, arguments, sentence): what the arguments tell without their data
CASES = {
    **{f"padded: {name}": (attention, *case) for name, case in REFUSED.items()},
    **{f"packed: {name}": (attention_varlen, *case) for name, case in REFUSED_PACKED.items()},
}
for name, (options, sentence) in REFUSED_OPTIONS.items():
    CASES[f"padded: {name}"] = (attention, qkv(**options), sentence)
    CASES[f"packed: {name}"] = (attention_varlen, packed(**options), sentence)
