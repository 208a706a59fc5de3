"""Refusals: one sentence that names the argument, what was expected and what came. CUDA and CPU
share their checks; the Meta implementation refuses less, in the same words."""

import re

import pytest
import torch
from support.refusals import CASES, REFUSED_VALUES, half, packed, qkv
from torch.nested import nested_tensor as nested

from pyflash import attention, attention_varlen
from pyflash.codegen.seal import seal
from pyflash.op import library
from pyflash.op.options import BACKWARD_TENSORS


def assert_refused(function, arguments: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^pyflash: {re.escape(sentence)}$"):
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


# What the meta implementation, and so a trace, refuses itself.
REFUSED_AT_TRACE_TIME = [
    case
    for case, (_, _, sentence) in CASES.items()
    if re.search(r"is (float32|float64|bfloat16): |dimensions, \(|^config ", sentence)
]


@pytest.mark.parametrize("case", CASES)
def test_meta_refuses_in_the_same_words_or_leaves_it_to_the_op(case):
    function, arguments, sentence = CASES[case]
    arguments = moved(arguments, "meta")
    if case in REFUSED_AT_TRACE_TIME:
        assert_refused(function, arguments, sentence)
    else:
        q = arguments["q"]
        out = function(**arguments)
        assert (out.shape, out.dtype, out.device) == (q.shape, q.dtype, q.device)


def test_the_meta_implementation_refuses_ranks_dtypes_and_configs():
    assert len(REFUSED_AT_TRACE_TIME) == 11


@pytest.mark.parametrize("case", REFUSED_VALUES)
def test_cpu_refuses_what_cu_seqlens_hold(case):
    """Nothing is read out of bounds: a GPU, which is not waited for, clamps them instead."""
    assert_refused(attention_varlen, *REFUSED_VALUES[case])


NOT_DENSE = {
    "has layout sparse_coo: expected strided tensors": lambda x: x.to_sparse(),
    "is nested: expected dense tensors; sequences of several": lambda x: nested([x[0], x[0]]),
    "is nested: expected dense tensors": lambda x: nested([x[0], x[0]], layout=torch.jagged),
    "is quantized: expected float16 or bfloat16": lambda x: torch.quantize_per_tensor(
        x.float(), 0.1, 0, torch.qint8
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", NOT_DENSE)
def test_tensors_that_are_not_dense_are_refused_in_one_sentence(words):
    q = NOT_DENSE[words](half(2, 33, 4, 128))
    with pytest.raises(ValueError, match=re.escape(f"pyflash: a tensor {words}")) as refusal:
        attention(q, q, q)
    assert len(str(refusal.value)) < 160


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
    sentence = r"torch could not allocate out, 4\.5036e\+15 bytes"
    with pytest.raises(torch.OutOfMemoryError, match=sentence):
        attention(q, q, q)
    lse = torch.zeros(1, 1, 1).expand(2**14, 2**14, 2**16)
    with pytest.raises(torch.OutOfMemoryError, match="torch could not allocate a copy"):
        torch.ops.pyflash.bwd(q, q, lse, None, *[None] * len(BACKWARD_TENSORS), q, q, q)


MALFORMED = {
    "fast": "'(' at 'fast'",
    "(FP32, 128, 64, 64, 4): load_0_0_0_tiles": "FP16 or BF16 at 'FP32, 128",
    "(FP16, 128, 64, 64): load_0_0_0_tiles": "',' at '): load",
    "(FP16, 128, 64, 64, 4, 1): load_0_0_0_tiles": "')' at ', 1)",
    "(FP16, 128, 0, 64, 4): load_0_0_0_tiles": "a number from 1 to 2147483647 at '0, 64",
    "(FP16, 128, -64, 64, 4): load_0_0_0_tiles": "a number from 1 to 2147483647 at '-64",
    "(FP16, 128, 99999999999, 64, 4): load_0_0_0_tiles": (
        "a number from 1 to 2147483647 at '99999999999"
    ),
    "(FP16, 128, 64, 64, 4) async+load_0_0_0_tiles": "':' at 'async",
    "(FP16, 128, 64, 64, 4): async+": "load_Q_K_V_tiles at ''",
    "(FP16, 128, 64, 64, 4): eager+async+load_0_0_0_tiles": "load_Q_K_V_tiles at 'async",
    "(FP16, 128, 64, 64, 4): asinc+load_0_0_0_tiles": "load_Q_K_V_tiles at 'asinc",
    "(FP16, 128, 64, 64, 4): load_0_0_tiles": "a number from 0 to 2147483647 at 'tiles'",
    "(FP16, 128, 64, 64, 4): load_0_0_0": "'_tiles' at ''",
    "(FP16, 128, 64, 64, 4): load_0_0_0_tiles+opt_softmax+buffer": (
        "a word of the form, in its order at 'buffer'"
    ),
    "(FP16, 128, 64, 64, 4): load_0_0_0_tiles+bufer": "a word of the form, in its order at 'bufer'",
}


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_configs_are_refused_by_the_part_not_understood(text):
    sentence = f"config '{text}' is not a short form: expected {MALFORMED[text]}"
    with pytest.raises(RuntimeError, match=re.escape(sentence)):
        torch.ops.pyflash.fwd(**qkv(config=text))
    for device in ("cpu", "meta"):
        with pytest.raises(ValueError, match=r"^pyflash: config: [^\n]{1,490}$"):
            attention(**moved(qkv(config=text), device))


def test_nothing_runs_on_a_torch_that_is_too_old(monkeypatch):
    """Pitfall 3: undefined symbol after a torch upgrade. The version is checked first."""
    monkeypatch.setattr(torch, "__version__", "2.9.1+cu128")
    with pytest.raises(ImportError, match=r"needs torch >= 2\.10, this is 2\.9\.1"):
        library._load_ops()


def test_a_missing_op_library_says_how_to_build_it(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "LIB_DIR", tmp_path)
    with pytest.raises(ImportError, match="is missing; to build it: pyflash build --ops"):
        library._load_ops()


def test_an_op_library_that_cannot_be_loaded_says_how_to_build_it(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "LIB_DIR", tmp_path)
    (tmp_path / "libpyflash_ops.so").write_bytes(b"not a library")
    with pytest.raises(ImportError, match="to build it again: pyflash build --ops"):
        library._load_ops()


def test_an_op_library_of_another_version_says_how_to_build_it(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "LIB_DIR", tmp_path)
    (tmp_path / "libpyflash_ops.so").write_bytes(b"never mapped")
    seal(tmp_path / "libpyflash_ops.so", {"version": "0.0.1"})
    with pytest.raises(ImportError, match=r"for version 0\.0\.1, expected .*pyflash build --ops"):
        library._load_ops()


def test_a_kernel_library_that_cannot_be_loaded_is_skipped(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "LIB_DIR", tmp_path)
    (tmp_path / "libpyflash_kernels-bad.so").write_bytes(b"not a library")
    with pytest.warns(UserWarning, match=r"skipped a library: .*kernels-bad\.so' is cut off"):
        library._load_kernels()


# Python's part


@pytest.mark.parametrize(
    ("function", "arguments"), [(attention, qkv()), (attention_varlen, packed())]
)
def test_names_that_are_no_options_are_refused(function, arguments):
    start = f"^pyflash: {function.__name__} got an unexpected keyword argument"
    for name, meant in {
        "casual": "causal",
        "is_causal": "causal",
        "scale": "softmax_scale",
    }.items():
        sentence = rf"{start} '{name}': expected softmax_scale, .*; did you mean {meant}\?$"
        with pytest.raises(TypeError, match=sentence):
            function(**arguments, **{name: True})
    with pytest.raises(TypeError, match=rf"{start} 'page_size': expected .* dropout_state$"):
        function(**arguments, page_size=16)


@pytest.mark.parametrize("name", ["softmax_scale", "softcap", "window_left", "causal"])
def test_tensors_in_place_of_numbers_are_refused(name):
    """They would lose their gradients, and make the host wait for a GPU."""
    with pytest.raises(TypeError, match=f"^pyflash: {name} is a tensor: expected an? "):
        attention(**qkv(**{name: torch.tensor(1.0, requires_grad=True)}))
