"""Kernels that a call has compiled. GPU and nvcc are played here; tests/gpu has the real ones."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_library import build_fake_library

import pyflash
from pyflash.codegen import build, kernels
from pyflash.config import Features
from pyflash.config.arch import Arch
from pyflash.op import on_demand
from pyflash.op.on_demand import ensure_built
from pyflash.op.options import given as given_options

# The fake library has it for sm_80 and sm_90, with and without windows and a predicated head_dim.
CONFIG = "(FP16, 512, 128, 64, 4): async+load_0_0_0_tiles"
D_HEAD_64 = "(FP16, 64, 64, 32, 4): async+load_0_0_0_tiles"
ARCH_80_ONLY = "(FP16, 8, 64, 32, 4): async+load_0_0_0_tiles"


@pytest.fixture
def fake(tmp_path) -> Path:
    return build_fake_library(tmp_path)


@pytest.fixture
def builds(monkeypatch, fake):
    """What is asked of the compiler, on a machine with an H100."""
    asked = []
    pyflash.load(fake)  # the largest d_head that problems may have is that of what is loaded

    def build_on_demand(configs, archs, more_features):
        asked.append((list(map(str, configs)), archs, [str(f) for f in more_features]))
        return fake

    monkeypatch.setattr(build, "build_on_demand", build_on_demand)
    monkeypatch.setattr(on_demand, "_is_on_gpu", lambda q: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(pyflash.op.library, "built_configs", lambda: {})
    on_demand._built.clear()
    on_demand._environment.cache_clear()
    yield asked
    on_demand._built.clear()
    on_demand._environment.cache_clear()


def ensure(arguments: dict[str, Any], d_head: int = 512, compile: bool = True) -> None:
    q = torch.zeros(1, 9, 2, d_head, dtype=torch.float16)
    ensure_built(arguments, q, q, (), compile)


def test_a_config_is_compiled_once_for_the_gpu_and_what_the_call_needs(builds):
    ensure({"config": CONFIG})
    ensure({"config": CONFIG})
    assert builds == [([CONFIG], [Arch.of(90)], ["plain"])]
    ensure({"config": CONFIG, "causal": True, "softcap": 2.0})
    assert builds[1:] == [([CONFIG], [Arch.of(90)], ["right_window+softcap"])]
    ensure({"config": CONFIG}, 504)
    assert builds[2:] == [([CONFIG], [Arch.of(90)], ["predicated_head_dim"])]


def test_what_is_built_is_not_compiled(builds, monkeypatch, fake):
    monkeypatch.undo()
    monkeypatch.setattr(on_demand, "_is_on_gpu", lambda q: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(
        build, "build_on_demand", lambda configs, *_, **__: builds.append(configs) or fake
    )
    pyflash.load(fake)
    ensure({"config": CONFIG, "window_left": 3})
    assert builds == []
    ensure({"config": CONFIG, "softcap": 2.0})  # built without
    ensure({"config": ARCH_80_ONLY}, 8)  # built for another GPU
    assert len(builds) == 2


@pytest.mark.parametrize("n_gpus", [1, 2])
def test_one_kernel_is_compiled_where_a_library_can_launch_it(builds, monkeypatch, fake, n_gpus):
    """Two GPUs here differ: a config with cubins runs on one architecture."""
    monkeypatch.undo()
    monkeypatch.setattr(on_demand, "_is_on_gpu", lambda q: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: [(9, 0), (8, 0)][i or 0])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    loaded = []
    monkeypatch.setattr(kernels, "compile_kernel", lambda *arguments: arguments)
    monkeypatch.setattr(pyflash.op.library, "load_cubin", loaded.append)
    monkeypatch.setattr(build, "build_on_demand", lambda *_, **__: builds.append(1) or fake)
    pyflash.load(fake)
    ensure({"config": CONFIG, "softcap": 2.0, "causal": True})
    if n_gpus == 2:
        assert builds == [1]
    else:
        ((config, features, arch),) = loaded
        assert (str(config), arch) == (CONFIG, Arch.of(90))
        assert features in config.family.built_features(config)
        assert features.covers(Features(softcap=True, right_window=True))
        assert builds == []


@pytest.mark.parametrize(
    ("value", "compile", "n_builds"),
    [("", False, 0), ("0", False, 0), ("1", False, 1), ("0", True, 1), ("", True, 1)],
)
def test_who_asks(builds, monkeypatch, value, compile, n_builds):
    monkeypatch.setenv("PYFLASH_JIT", value)
    ensure({"config": CONFIG}, compile=compile)
    assert len(builds) == n_builds


def test_another_value_of_the_variable_is_refused(builds, monkeypatch):
    monkeypatch.setenv("PYFLASH_JIT", "yes")
    with pytest.raises(ValueError, match=r"^pyflash: PYFLASH_JIT is 'yes': expected 0 or 1$"):
        ensure({"config": CONFIG}, compile=False)


def test_the_call_then_names_the_canonical_form(builds):
    arguments = {"config": CONFIG.replace("load_0_0_0_tiles", "load_0_0_0_tiles+buffer")}
    ensure(arguments)
    assert arguments == {"config": CONFIG}
    assert builds[0][0] == [CONFIG]


def test_without_a_config_nothing_is_compiled(builds):
    ensure({})
    assert builds == []


def test_threads_compile_once(builds):
    threads = [threading.Thread(target=ensure, args=({"config": CONFIG},)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1


def test_what_is_built_is_found_while_another_config_is_compiled(builds):
    ensure({"config": CONFIG})
    with on_demand._lock:  # as long as a compiler takes
        thread = threading.Thread(target=ensure, args=({"config": CONFIG},), daemon=True)
        thread.start()
        thread.join(timeout=60)
        assert not thread.is_alive()


def test_a_decode_asks_once_what_its_steps_need(builds, monkeypatch):
    """Each step has one more key, and other sequences."""
    asked = []
    monkeypatch.setattr(
        on_demand, "features_needed", lambda *problem: asked.append(problem) or Features()
    )
    on_demand._features_needed.cache_clear()
    q = torch.zeros(1, 1, 2, 512, dtype=torch.float16)
    for n_keys in range(40, 60):
        k = torch.zeros(1 + n_keys % 3, n_keys, 2, 512, dtype=torch.float16)
        ensure_built({"config": CONFIG, "window_left": 7}, q.expand(len(k), 1, 2, 512), k, (), True)
    on_demand._features_needed.cache_clear()
    assert len(asked) == 1


LENGTHS = st.integers(0, 12)
WINDOWS = st.sampled_from([-1, 0, 1, 2, 5, 9])


@given(
    packed=st.booleans(),
    seqlen_q=LENGTHS,
    seqlen_k=LENGTHS,
    heads=st.sampled_from([(2, 2), (2, 1)]),
    windows=st.tuples(st.booleans(), WINDOWS, WINDOWS),
    chunk=st.sampled_from([0, 1, 4, 9]),
    more=st.sets(st.sampled_from(["softcap", "sinks"])),
    num_splits=st.sampled_from([0, 1, 3]),
)
@settings(max_examples=200, deadline=None)
def test_lengths_that_are_taken_for_others_need_the_same_features(
    packed, seqlen_q, seqlen_k, heads, windows, chunk, more, num_splits
):
    causal, left, right = windows
    options = {"causal": causal, "window_left": left, "attention_chunk": chunk}
    options |= {"window_right": -1 if causal else right, "num_splits": num_splits}
    if chunk:  # a chunk is a window of its own
        options |= {"causal": True, "window_left": -1, "window_right": -1}
    options |= {"softcap": 2.0} if "softcap" in more else {}
    options = given_options(options)
    tensors = ("sinks",) if "sinks" in more else ()
    extents = (3, *heads, seqlen_q, seqlen_k, 64, 3 * seqlen_q, 3 * seqlen_k)
    told = on_demand._telling(extents, tuple(options.items()))

    def needed(extents: tuple[int, ...]) -> str | None:
        numbers = tuple(options.items())
        return on_demand._features_needed(D_HEAD_64, packed, extents, tensors, numbers)

    assert needed(told) == needed(extents)


def test_a_failure_names_the_config_and_is_tried_again(builds, monkeypatch, fake):
    attempts = []

    def fail(*_, **__):
        attempts.append(1)
        raise RuntimeError("no CUDA compiler found; `pip install nvidia-cuda-nvcc` installs one")

    monkeypatch.setattr(build, "build_on_demand", fail)
    sentence = r"^pyflash: config '.*' is not built, and cannot be compiled: no CUDA compiler.*pip"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=sentence):
            ensure({"config": CONFIG})
    assert len(attempts) == 2


@pytest.mark.parametrize("backend", [None, "eager"])
def test_on_the_cpu_nothing_is_compiled(monkeypatch, backend):
    monkeypatch.setattr(build, "build_on_demand", lambda *_, **__: pytest.fail("compiled"))
    q = torch.randn(1, 9, 2, 64, dtype=torch.float16)
    config = "(FP16, 64, 64, 32, 4): async+load_0_0_0_tiles"

    def call(q):
        return pyflash.attention(q, q, q, config=config, compile=True)

    expected = pyflash.attention(q, q, q, config=config)
    function = call if backend is None else torch.compile(call, backend=backend, fullgraph=True)
    assert torch.equal(function(q), expected)
    transposed = q.transpose(1, 2)
    out = pyflash.sdpa(transposed, transposed, transposed, config=config, compile=True)
    assert torch.equal(out.transpose(1, 2), expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_under_torch_compile_it_is_compiled_while_the_graph_is_made(monkeypatch, dynamic):
    asked = []
    config = "(FP16, 64, 64, 32, 4): async+load_0_0_0_tiles"

    def ensure_once(*arguments):
        asked.append(arguments)
        return config

    monkeypatch.setattr(on_demand, "_is_on_gpu", lambda q: True)
    monkeypatch.setattr(on_demand, "_ensure_once", ensure_once)
    monkeypatch.setattr(on_demand, "_built", {})
    torch._dynamo.reset()

    @torch.compile(backend="eager", fullgraph=True, dynamic=dynamic)
    def call(q, window):
        options = {"config": config + "+buffer", "window_left": window, "compile": True}
        return pyflash.attention(q, q, q, causal=True, **options)

    for batch in (2, 2, 3):
        q = torch.randn(batch, 9, 2, 64, dtype=torch.float16)
        expected = pyflash.attention(q, q, q, config=config, causal=True, window_left=5)
        assert torch.equal(call(q, 5), expected)
    # By the canonical form: where every operand is loaded whole there is nothing to buffer.
    assert set(asked) == {(config, "right_window+left_window", None)}
    assert len(asked) <= 2


@pytest.mark.parametrize(
    ("sm_archs", "ptx_arch", "runs_on"),
    [
        (("80",), 0, {80, 86, 89}),
        (("86",), 0, {86, 89}),
        (("90a",), 0, {90}),
        (("80",), 90, {80, 86, 89, 90, 100, 120}),
        ((), 0, set()),
    ],
)
def test_where_a_built_config_runs(sm_archs, ptx_arch, runs_on):
    config = pyflash.config.parse(CONFIG)
    built = pyflash.BuiltConfig(
        config, (Features(), Features(right_window=True)), sm_archs, ptx_arch, 128, 1024, 0
    )
    found = {sm for sm in (80, 86, 89, 90, 100, 120) if built.covers(Features(), sm)}
    assert found == runs_on
    assert not any(built.covers(Features(softcap=True), sm) for sm in runs_on)
