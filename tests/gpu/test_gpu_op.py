"""What the op refuses on a GPU, and which config it takes."""

import re
import shutil
import subprocess
import sys

import pytest
import torch
from support.fake_library import ROOT, build_fake_library
from support.graphs import names_of_kernels
from support.problems import NO_MASK, Mask, Shape, inputs_and_expected, make_inputs
from support.refusals import CASES
from test_op_errors import assert_refused, moved

import pyflash
from pyflash import DType, Features, Problem, attention

pytestmark = pytest.mark.gpu

DTYPE = torch.float16
RAGGED = Shape("ragged", 2, 131, 197, 3)


def on_gpu(shape, mask=NO_MASK):
    return inputs_and_expected(shape, DTYPE, 128, "cuda", mask)


# Refusals.


@pytest.mark.parametrize("on_cpu", ["q", "k", "v"])
def test_tensors_on_two_devices_are_refused(on_cpu):
    """Pitfall 5: wrong GPU, default stream."""
    tensors = dict(zip("qkv", make_inputs(RAGGED, DTYPE, 128, "cuda"), strict=True))
    tensors[on_cpu] = tensors[on_cpu].cpu()
    wrong, came, expected = ("k", "cuda:0", "cpu") if on_cpu == "q" else (on_cpu, "cpu", "cuda:0")
    sentence = f"pyflash: {wrong} is on {came}: expected {expected}, where q is"
    with pytest.raises(ValueError, match=sentence):
        attention(**tensors)


@pytest.mark.parametrize("case", CASES)
def test_cuda_refuses_in_the_same_words_as_the_cpu(case):
    """Pitfall 14: 16-byte alignment, strides of dimensions of size 1."""
    function, arguments, sentence = CASES[case]
    assert_refused(function, moved(arguments, "cuda"), sentence)


def test_misaligned_addresses_are_refused():
    """Pitfall 14: 16-byte alignment, strides of dimensions of size 1."""
    x = torch.zeros(131 * 128 + 1, device="cuda", dtype=DTYPE)[1:].view(1, 131, 1, 128)
    with pytest.raises(ValueError, match="q starts 2 bytes after a multiple of 16 bytes"):
        attention(x, x, x)


def test_a_config_that_is_not_built_is_refused_with_how_to_build_it():
    """Pitfall 20: silent fallback to another kernel."""
    inputs, _ = on_gpu(RAGGED)
    config = "(FP16, 128, 128, 128, 8): load_0_0_0_tiles"
    with pytest.raises(RuntimeError, match=re.escape(f"config '{config}' is not built")) as refusal:
        attention(*inputs, config=config)
    assert "built for FP16 with d_head 128 are '(FP16, 128, " in str(refusal.value)
    assert f"pyflash build '{config}'" in str(refusal.value)


def test_a_head_dimension_that_is_not_built_is_refused_with_what_is():
    """Pitfall 15: head dimensions that are not built."""
    if max(config.d_head for config in pyflash.built_configs()) >= 256:
        pytest.skip("configs for every head dimension are built")
    x = torch.zeros(1, 5, 1, 256, device="cuda", dtype=DTYPE)
    sentence = "no config is built for FP16 with d_head 256 or more"
    with pytest.raises(RuntimeError, match=sentence) as refusal:
        attention(x, x, x)
    assert "FP16 with d_head 128" in str(refusal.value)


FAILING_LAUNCHES = """
import sys, torch, pyflash
pyflash.load(sys.argv[1])
x = torch.zeros(1, 5, 1, 64, device="cuda", dtype=torch.float16)
config = "(FP16, 512, 128, 64, 4): async+load_0_0_0_tiles"
for options in ({}, {"causal": True}, {"num_splits": 2}):
    try:
        pyflash.attention(x, x, x, config=config, **options)
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_a_launch_that_fails_is_an_error(tmp_path):
    """In a process of its own, whose config map holds kernels that fail.
    Pitfall 9: unchecked launch returns stale memory as success."""
    library = build_fake_library(tmp_path)
    errors = subprocess.run(
        [sys.executable, "-c", FAILING_LAUNCHES, str(library)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert len(errors) == 3
    for error in errors:
        assert re.search(r"launching .* failed: fake", error)


# Selection.


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shape",
    [
        RAGGED,
        Shape("large", 4, 2048, 2048, 16),
        Shape("decode", 2, 1, 8192, 32, heads_kv=8),
        Shape("few_queries", 1, 70, 8192, 8, heads_kv=2),
    ],
    ids=str,
)
def test_select_tells_what_runs(shape, causal):
    """Pitfall 20: silent fallback to another kernel."""
    inputs, expected = on_gpu(shape, mask=Mask("causal", causal=causal))
    problem = Problem(
        batch=shape.batch,
        heads_q=shape.heads,
        heads_kv=shape.kv,
        seqlen_q=shape.seqlen_q,
        seqlen_k=shape.seqlen_k,
        d_head=128,
        dtype=DType.FP16,
        options={"causal": causal},
    )
    selection = pyflash.select(problem)
    assert selection.config in pyflash.built_configs()
    check_reason(selection, shape, causal)
    out = attention(*inputs, causal=causal)
    expected.check(out)
    named = {"config": selection.config, "num_splits": selection.num_splits}
    assert torch.equal(out, attention(*inputs, causal=causal, **named))
    if names := names_of_kernels(lambda: attention(*inputs, causal=causal)):
        ran = [pyflash.config.parse(name) for name in names if "flash_forward" in name]
        assert ran == [selection.config.canonical()]


def check_reason(selection, shape, causal):
    """The figures of the sentence, whichever rule or table chose."""
    config, needed = selection.config, Features(right_window=causal)
    major, minor = torch.cuda.get_device_capability()
    able = [
        other
        for other, built in pyflash.built_configs().items()
        if (other.dtype, other.d_head) == (config.dtype, config.d_head)
        and built.covers(needed, 10 * major + minor)
    ]
    n_blocks = -(-shape.seqlen_k // config.B_c)
    passes = "in one pass"
    if selection.num_splits > 1:
        passes = f"in {selection.num_splits} splits, "
    start = f"of {len(able)} configs built for FP16 with d_head 128 that run on sm_{major}{minor} "
    assert selection.reason.startswith(start)
    assert f"; its {n_blocks} blocks of keys {passes}" in selection.reason
