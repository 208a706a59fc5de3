"""The op among streams, graphs, devices and compilers; what it refuses on a GPU."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fake_library import build_fake_library
from problems import NON_CONTIGUOUS, Shape, inputs_and_expected, make_inputs
from test_op_errors import REFUSED, moved

import pyflash
from pyflash import DType, Problem, attention
from pyflash.reference import expect

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parent.parent
DTYPE = torch.float16
RAGGED = Shape("ragged", 2, 131, 197, 3)


def on_gpu(shape, d_head=128):
    return inputs_and_expected(shape, DTYPE, d_head, "cuda")


def delay():
    """Keeps the current stream busy for tens of milliseconds."""
    torch.cuda._sleep(100_000_000)


# Streams and graphs.


def test_runs_on_the_current_stream():
    """Wrong or default stream: the inputs arrive late, and only on the side stream."""
    inputs, expected = on_gpu(RAGGED)
    late = [torch.full_like(x, torch.nan) for x in inputs]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        delay()
        for target, source in zip(late, inputs, strict=True):
            target.copy_(source)
        out, lse = attention(*late, return_lse=True)
        out, lse = out.clone(), lse.clone()
    side.synchronize()
    expected.check(out, lse)


def test_does_not_wait_for_the_gpu():
    inputs, expected = on_gpu(RAGGED)
    attention(*inputs)
    torch.cuda.synchronize()
    delay()
    out = attention(*inputs)
    assert not torch.cuda.current_stream().query(), "the op returned after the stream was done"
    expected.check(out)


FIRST_CALL_IN_A_CAPTURE = """
import torch
from pyflash import attention
from pyflash.reference import check
q, k, v = (torch.randn(2, 131, 3, 128, device="cuda", dtype=torch.float16) for _ in range(3))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out, lse = attention(q, k, v, return_lse=True)
for _ in range(3):
    q.normal_(), k.normal_(), v.normal_()
    graph.replay()
    check(out, q, k, v, lse=lse)
print("right three times")
"""


def test_the_first_call_of_a_process_may_be_captured_in_a_graph():
    command = [sys.executable, "-c", FIRST_CALL_IN_A_CAPTURE]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "right three times" in result.stdout, result.stderr


def test_graphs_replay_with_new_inputs():
    q, k, v = (x.clone() for x in make_inputs(RAGGED, DTYPE, 128, "cuda"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = attention(q, k, v, return_lse=True)
    for seed in (1, 2):
        new = make_inputs(RAGGED, DTYPE, 128, "cuda", seed)
        for target, source in zip((q, k, v), new, strict=True):
            target.copy_(source)
        graph.replay()
        expect(q, k, v).check(out, lse)


# Large tensors, other devices.


@pytest.mark.parametrize("long", ["q", "kv"])
def test_offsets_beyond_32_bits(long):
    """More than 2^31 elements in a tensor: the first and the last rows are right."""
    if torch.cuda.mem_get_info()[0] < 60 << 30:
        pytest.skip("needs 60 GB of free GPU memory")
    seqlen, heads, d_head = 2**18 + 70, 64, 128
    assert seqlen * heads * d_head > 2**31
    lengths = (seqlen, 70) if long == "q" else (70, seqlen)
    q, k, v = (
        torch.randn(1, n, heads, d_head, device="cuda", dtype=DTYPE)
        for n in (lengths[0], lengths[1], lengths[1])
    )
    out, lse = attention(q, k, v, return_lse=True)
    for rows in (slice(0, 70), slice(lengths[0] - 70, lengths[0])):
        expect(q[:, rows], k, v).check(out[:, rows], lse[:, :, rows])


def test_the_device_is_that_of_q():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    inputs, expected = inputs_and_expected(RAGGED, DTYPE, 128, "cuda:1")
    assert torch.cuda.current_device() == 0
    out, lse = attention(*inputs, return_lse=True)
    assert out.device == torch.device("cuda:1")
    assert torch.cuda.current_device() == 0
    expected.check(out, lse)


@pytest.mark.parametrize("on_cpu", ["q", "k", "v"])
def test_tensors_on_two_devices_are_refused(on_cpu):
    tensors = dict(zip("qkv", make_inputs(RAGGED, DTYPE, 128, "cuda"), strict=True))
    tensors[on_cpu] = tensors[on_cpu].cpu()
    wrong, came, expected = ("k", "cuda:0", "cpu") if on_cpu == "q" else (on_cpu, "cpu", "cuda:0")
    sentence = f"pyflash: {wrong} is on {came}: expected {expected}, where q is"
    with pytest.raises(RuntimeError, match=sentence):
        attention(**tensors)


# Refusals.


@pytest.mark.parametrize("case", REFUSED)
def test_cuda_refuses_in_the_same_words_as_the_cpu(case):
    arguments, sentence = REFUSED[case]
    with pytest.raises(RuntimeError, match=f"^pyflash: {re.escape(sentence)}$"):
        attention(**moved(arguments, "cuda"))


def test_misaligned_addresses_are_refused():
    x = torch.zeros(131 * 128 + 1, device="cuda", dtype=DTYPE)[1:].view(1, 131, 1, 128)
    with pytest.raises(RuntimeError, match="q starts 2 bytes after a multiple of 16 bytes"):
        attention(x, x, x)


def test_a_config_that_is_not_built_is_refused_with_how_to_build_it():
    inputs, _ = on_gpu(RAGGED)
    config = "(FP16, 128, 192, 64, 4): async+load_0_0_0_tiles"
    with pytest.raises(RuntimeError, match=re.escape(f"config '{config}' is not built")) as refusal:
        attention(*inputs, config=config)
    assert "built for FP16 with d_head 128 are '(FP16, 128, " in str(refusal.value)
    assert f"python -m codegen --config '{config}'" in str(refusal.value)


def test_a_head_dimension_that_is_not_built_is_refused_with_what_is():
    x = torch.zeros(1, 5, 1, 96, device="cuda", dtype=DTYPE)
    with pytest.raises(RuntimeError, match="no config is built for FP16 with d_head 96") as refusal:
        attention(x, x, x)
    assert "FP16 with d_head 128" in str(refusal.value)


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_a_launch_that_fails_is_an_error(tmp_path):
    """Stale memory returned as success: the launcher's code is looked at."""
    pyflash.load(build_fake_library(tmp_path))
    x = torch.zeros(1, 5, 1, 512, device="cuda", dtype=DTYPE)
    with pytest.raises(RuntimeError, match=r"launching .* failed: fake"):
        attention(x, x, x)


# Selection.


@pytest.mark.parametrize("shape", [RAGGED, Shape("large", 4, 2048, 2048, 16)], ids=str)
def test_select_tells_what_runs(shape):
    inputs, expected = on_gpu(shape)
    problem = Problem(
        batch=shape.batch,
        heads_q=shape.heads,
        heads_kv=shape.heads,
        seqlen_q=shape.seqlen_q,
        seqlen_k=shape.seqlen_k,
        d_head=128,
        dtype=DType.FP16,
    )
    selection = pyflash.select(problem)
    assert selection.config in pyflash.built_configs()
    assert f"fills the {torch.cuda.get_device_properties(0).multi_processor_count} SMs" in (
        selection.reason
    )
    out = attention(*inputs)
    expected.check(out)
    assert torch.equal(out, attention(*inputs, config=selection.config))


# What torch asks of an op.


@pytest.mark.parametrize("shape", [RAGGED, *NON_CONTIGUOUS], ids=str)
def test_opcheck(shape):
    inputs = make_inputs(shape, DTYPE, 128, "cuda")
    torch.library.opcheck(torch.ops.pyflash.fwd.default, inputs)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_without_a_graph_break(backend):
    def model(q, k, v):
        out, lse = attention(q * 2, k, v, return_lse=True)
        return out + 1, lse

    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for shape in (RAGGED, *NON_CONTIGUOUS[:3]):
        inputs = make_inputs(shape, DTYPE, 128, "cuda")
        for actual, eager in zip(compiled(*inputs), model(*inputs), strict=True):
            torch.testing.assert_close(actual, eager)
