"""What is refused: one sentence that names the argument, what was expected and what came. The CPU
and the Meta implementation say the same; the CUDA one shares its checks with the CPU's."""

import re

import pytest
import torch

from pyflash import attention, library

CONFIG = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"


def half(*size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.float16)


def qkv(**changes):
    """Arguments that are right, but for `changes`."""
    right = {"q": half(2, 33, 4, 128), "k": half(2, 17, 4, 128), "v": half(2, 17, 4, 128)}
    return right | changes


# name -> (arguments, sentence)
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
    "fewer heads of k than of q": (
        qkv(k=half(2, 17, 2, 128), v=half(2, 17, 2, 128)),
        "k has shape (2, 17, 2, 128): expected heads 4 as q; "
        "fewer heads of k and v than of q are not supported yet",
    ),
    "k of another d_head than q": (
        qkv(k=half(2, 17, 4, 64)),
        "k has shape (2, 17, 4, 64): expected d_head 128 as q",
    ),
    "v of another length than k": (
        qkv(v=half(2, 18, 4, 128)),
        "v has shape (2, 18, 4, 128): expected seqlen 17 as k",
    ),
    "v of another d_head than k": (
        qkv(v=half(2, 17, 4, 64)),
        "v has shape (2, 17, 4, 64): expected d_head 128 as k",
    ),
    "last dimension not contiguous": (
        qkv(q=half(2, 33, 4, 256)[..., ::2]),
        "q has stride 2 in its last dimension: expected 1, call .contiguous()",
    ),
    "rows that are not 16-byte aligned": (
        qkv(k=half(2, 17, 4 * 128 + 1)[..., :-1].unflatten(-1, (4, 128))),
        "k has a batch stride of 8721 elements: expected a multiple of 8 (16 bytes), "
        "call .contiguous()",
    ),
    "heads that are not 16-byte aligned": (
        qkv(v=half(2, 17, 4, 132)[..., :128]),
        "v has a head stride of 132 elements: expected a multiple of 8 (16 bytes), "
        "call .contiguous()",
    ),
    "causal": (qkv(causal=True), "causal = True is not supported yet: expected False"),
    "a window to the left": (
        qkv(window_left=128),
        "window_left = 128 is not supported yet: expected -1, no window",
    ),
    "a window to the right": (
        qkv(window_right=0),
        "window_right = 0 is not supported yet: expected -1, no window",
    ),
    "softcap": (qkv(softcap=30.0), "softcap = 30 is not supported yet: expected 0, no cap"),
    "scale of zero": (
        qkv(softmax_scale=0.0),
        "softmax_scale = 0: expected a finite number above 0",
    ),
    "negative scale": (
        qkv(softmax_scale=-0.5),
        "softmax_scale = -0.5: expected a finite number above 0",
    ),
    "infinite scale": (
        qkv(softmax_scale=torch.inf),
        "softmax_scale = inf: expected a finite number above 0",
    ),
    "scale that is not a number": (
        qkv(softmax_scale=torch.nan),
        "softmax_scale = nan: expected a finite number above 0",
    ),
    "d_head other than the config's": (
        {name: half(2, 17, 4, 64) for name in "qkv"} | {"config": CONFIG},
        f"config '{CONFIG}' is for d_head 128, q has d_head 64",
    ),
    "dtype other than the config's": (
        {name: half(2, 17, 4, 128).bfloat16() for name in "qkv"} | {"config": CONFIG},
        f"config '{CONFIG}' is for FP16, q is BF16",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_cpu_refuses(case):
    arguments, sentence = REFUSED[case]
    with pytest.raises(RuntimeError, match=f"^pyflash: {re.escape(sentence)}$"):
        attention(**arguments)


def moved(arguments: dict, device: str) -> dict:
    """The arguments with the tensors on another device, with the same strides and no data."""

    def move(value):
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)

    return {name: move(value) for name, value in arguments.items()}


@pytest.mark.parametrize("case", REFUSED)
def test_meta_refuses_in_the_same_words(case):
    arguments, sentence = REFUSED[case]
    with pytest.raises(RuntimeError, match=f"^pyflash: {re.escape(sentence)}$"):
        attention(**moved(arguments, "meta"))


@pytest.mark.parametrize("name", ["k", "v"])
def test_tensors_on_two_devices_are_refused(name):
    arguments = qkv()
    arguments[name] = arguments[name].to("meta")
    with pytest.raises(RuntimeError, match=f"pyflash: {name} is on meta: expected cpu, where q is"):
        attention(**arguments)


@pytest.mark.parametrize("offset", range(1, 8))
def test_misaligned_addresses_are_refused(offset):
    q = half(2 * 33 * 4 * 128 + 8)[offset : offset - 8].view(2, 33, 4, 128)
    sentence = f"q starts {2 * offset} bytes after a multiple of 16 bytes: expected a multiple"
    with pytest.raises(RuntimeError, match=re.escape(sentence)):
        attention(**qkv(q=q))


def test_extents_beyond_the_kernels_integers_are_refused():
    k = half(1, 1, 1, 128).expand(1, 2**30 + 1, 1, 128)
    with pytest.raises(RuntimeError, match="k has seqlen 1073741825: expected at most 1073741824"):
        attention(half(1, 1, 1, 128), k, k)
    q = half(1, 1, 1, 128).expand(2**16, 1, 2**16, 128)
    with pytest.raises(RuntimeError, match="expected at most 1073741824 for batch times heads"):
        attention(q, q, q)


def test_outputs_too_large_for_the_memory_are_named():
    q = half(1, 1, 1, 128).expand(2**14, 2**16, 2**14, 128)
    with pytest.raises(RuntimeError, match=r"torch could not allocate out, 4\.5036e\+15 bytes"):
        attention(q, q, q)


def test_a_head_dimension_without_config_is_refused():
    x = half(2, 17, 4, 96)
    with pytest.raises(RuntimeError, match="q has d_head 96: expected 64 or 128"):
        attention(x, x, x)
    # Named, it runs: on the CPU a config need not be built.
    assert attention(x, x, x, config="(FP16, 96, 64, 64, 4): load_0_0_0_tiles").shape == x.shape


MALFORMED = {
    "fast": "'(' at 'fast'",
    "(FP32, 128, 64, 64, 4): load_0_0_0_tiles": "FP16 or BF16 at 'FP32, 128",
    "(FP16, 128, 64, 64): load_0_0_0_tiles": "',' at '): load",
    "(FP16, 128, 64, 64, 4, 1): load_0_0_0_tiles": "')' at ', 1)",
    "(FP16, 128, 0, 64, 4): load_0_0_0_tiles": "a number not below 1 at '0, 64",
    "(FP16, 128, -64, 64, 4): load_0_0_0_tiles": "a number not below 1 at '-64",
    "(FP16, 128, 99999999999, 64, 4): load_0_0_0_tiles": "a number not below 1 at '99999999999",
    "(FP16, 128, 64, 64, 4) async+load_0_0_0_tiles": "':' at 'async",
    "(FP16, 128, 64, 64, 4): async+": "'load' at ''",
    "(FP16, 128, 64, 64, 4): eager+async+load_0_0_0_tiles": "'load' at 'async",
    "(FP16, 128, 64, 64, 4): asinc+load_0_0_0_tiles": "'load' at 'asinc",
    "(FP16, 128, 64, 64, 4): load_0_0_tiles": "a number not below 0 at 'tiles'",
    "(FP16, 128, 64, 64, 4): load_0_0_0": "'_tiles' at ''",
    "(FP16, 128, 64, 64, 4): load_0_0_0_tiles+opt_softmax+buffer": "the end at '+buffer'",
    "(FP16, 128, 64, 64, 4): load_0_0_0_tiles+bufer": "the end at '+bufer'",
}


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_configs_are_refused_by_the_part_not_understood(text):
    sentence = f"config '{text}' is not a short form: expected {MALFORMED[text]}"
    with pytest.raises(RuntimeError, match=re.escape(sentence)):
        attention(**qkv(config=text))


def test_nothing_runs_on_a_torch_that_is_too_old(monkeypatch):
    """Undefined symbols after a change of torch: the version is looked at first."""
    monkeypatch.setattr(torch, "__version__", "2.9.1+cu128")
    with pytest.raises(ImportError, match=r"needs torch >= 2\.10, this is 2\.9\.1"):
        library._load_libraries()


def test_a_missing_op_library_says_how_to_build_it(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "LIB_DIR", tmp_path)
    with pytest.raises(ImportError, match="python -m codegen --ops"):
        library._load_libraries()
