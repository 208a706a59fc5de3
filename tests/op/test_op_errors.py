"""What is refused: one sentence that names the argument, what was expected and what came. The CPU
and the Meta implementation say the same; the CUDA one shares its checks with the CPU's."""

import re

import pytest
import torch
from support.refusals import CASES, REFUSED_VALUES, half, packed, qkv

from pyflash import attention, attention_varlen
from pyflash.op import library


def assert_refused(function, arguments: dict, sentence: str) -> None:
    with pytest.raises(RuntimeError, match=f"^pyflash: {re.escape(sentence)}$"):
        function(**arguments)


def test_the_arguments_that_are_changed_are_right():
    assert attention(**qkv()).shape == (2, 33, 4, 128)
    assert attention_varlen(**packed()).shape == (33, 4, 128)


@pytest.mark.parametrize("case", CASES)
def test_cpu_refuses(case):
    assert_refused(*CASES[case])


def moved(arguments: dict, device: str) -> dict:
    """The arguments with the tensors on another device, with the same strides and no data."""

    def move(value):
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)

    return {name: move(value) for name, value in arguments.items()}


@pytest.mark.parametrize("case", CASES)
def test_meta_refuses_in_the_same_words(case):
    function, arguments, sentence = CASES[case]
    assert_refused(function, moved(arguments, "meta"), sentence)


@pytest.mark.parametrize("case", REFUSED_VALUES)
def test_cpu_refuses_what_cu_seqlens_hold(case):
    """Nothing is read out of bounds: a GPU, which is not waited for, clamps them instead."""
    assert_refused(attention_varlen, *REFUSED_VALUES[case])


@pytest.mark.parametrize("name", ["k", "v"])
def test_tensors_on_two_devices_are_refused(name):
    arguments = qkv()
    arguments[name] = arguments[name].to("meta")
    assert_refused(attention, arguments, f"{name} is on meta: expected cpu, where q is")


@pytest.mark.parametrize("name", ["k", "v", "cu_seqlens_q", "cu_seqlens_k"])
def test_packed_tensors_on_two_devices_are_refused(name):
    arguments = packed()
    arguments[name] = arguments[name].to("meta")
    assert_refused(attention_varlen, arguments, f"{name} is on meta: expected cpu, where q is")


@pytest.mark.parametrize("offset", range(1, 8))
def test_misaligned_addresses_are_refused(offset):
    sentence = (
        f"q starts {2 * offset} bytes after a multiple of 16 bytes: expected a multiple, "
        "call .clone()"
    )
    q = half(2 * 33 * 4 * 128 + 8)[offset : offset - 8].view(2, 33, 4, 128)
    assert_refused(attention, qkv(q=q), sentence)
    q = half(33 * 4 * 128 + 8)[offset : offset - 8].view(33, 4, 128)
    assert_refused(attention_varlen, packed(q=q), sentence)


def test_extents_beyond_the_kernels_integers_are_refused():
    k = half(1, 1, 1, 128).expand(1, 2**29 + 1, 1, 128)
    sentence = "k has seqlen 536870913: expected at most 536870912"
    assert_refused(attention, {"q": half(1, 1, 1, 128), "k": k, "v": k}, sentence)
    sentence = "k has total 536870913: expected at most 536870912"
    arguments = packed(q=half(33, 1, 128), k=k[0], v=k[0])
    assert_refused(attention_varlen, arguments, sentence)
    q = half(1, 1, 1, 128).expand(2**16, 1, 2**16, 128)
    sentence = (
        "q has 65536 heads in 65536 batches: expected at most 536870912 for batch times heads"
    )
    assert_refused(attention, {"q": q, "k": q, "v": q}, sentence)


def test_outputs_too_large_for_the_memory_are_named():
    q = half(1, 1, 1, 128).expand(2**14, 2**16, 2**14, 128)
    with pytest.raises(RuntimeError, match=r"torch could not allocate out, 4\.5036e\+15 bytes"):
        attention(q, q, q)


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
    """Pitfall 3: undefined symbol after a torch upgrade. The version is looked at first."""
    monkeypatch.setattr(torch, "__version__", "2.9.1+cu128")
    with pytest.raises(ImportError, match=r"needs torch >= 2\.10, this is 2\.9\.1"):
        library._load_libraries()


def test_a_missing_op_library_says_how_to_build_it(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "LIB_DIR", tmp_path)
    with pytest.raises(ImportError, match="python -m codegen --ops"):
        library._load_libraries()
