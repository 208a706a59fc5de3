"""Answers about calls are kept, and only for calls that have the same answer."""

import itertools
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

import pyflash
from pyflash.op import answers, library
from pyflash.op.backward import cuda, kernels
from pyflash.op.backward.choice import By, Choice


@pytest.fixture
def count():
    """A kept function that says how often it was asked."""
    numbers = itertools.count(1)
    return answers.kept(lambda *_: next(numbers))


def q_of(*shape, dtype=torch.float16):
    return torch.empty(shape or (2, 9, 4, 16), dtype=dtype)


STARTS = torch.zeros(3, dtype=torch.int32)
CALLS = {
    "plain": (q_of(), q_of(), (), {}),
    "other dtype": (q_of(dtype=torch.bfloat16), q_of(), (), {}),
    "other q": (q_of(2, 10, 4, 16), q_of(), (), {}),
    "other k": (q_of(), q_of(2, 9, 2, 16), (), {}),
    "no k": (q_of(), None, (), {}),
    "other device": (q_of().to("meta"), q_of(), (), {}),
    "causal": (q_of(), q_of(), (), {"causal": True}),
    "softcap": (q_of(), q_of(), (), {"softcap": 20.0}),
    "other softcap": (q_of(), q_of(), (), {"softcap": 30.0}),
    "slopes": (q_of(), q_of(), (), {"alibi_slopes": torch.ones(4)}),
    "slopes of batches": (q_of(), q_of(), (), {"alibi_slopes": torch.ones(2, 4)}),
    "sinks": (q_of(), q_of(), (), {"sinks": torch.ones(4)}),
    "sinks in 16 bits": (q_of(), q_of(), (), {"sinks": torch.ones(4, dtype=torch.float16)}),
    "packed": (q_of(18, 4, 16), q_of(18, 4, 16), (STARTS, STARTS, 9, 9), {}),
    "longer": (q_of(18, 4, 16), q_of(18, 4, 16), (STARTS, STARTS, 10, 9), {}),
    "two sequences more": (q_of(18, 4, 16), q_of(18, 4, 16), (torch.zeros(5), STARTS, 9, 9), {}),
    "gradient of lse": (q_of(), q_of(), (), {}, True),
}


def test_each_call_has_its_answer(count):
    found = {name: count(*call) for name, call in CALLS.items()}
    assert len({*found.values()}) == len(CALLS)
    assert {name: count(*call) for name, call in CALLS.items()} == found


def test_values_of_tensors_do_not_count(count):
    first = count(q_of(), q_of(), (), {"sinks": torch.ones(4)})
    assert count(q_of(), q_of(), (), {"sinks": torch.zeros(4)}) == first


def test_functions_have_answers_of_their_own(count):
    count(*CALLS["plain"])
    assert answers.kept(lambda *_: "another")(*CALLS["plain"]) == "another"


def test_the_switch_is_asked(count):
    found = [count(*CALLS["plain"])]
    torch.use_deterministic_algorithms(True)
    try:
        found.append(count(*CALLS["plain"]))
        torch.use_deterministic_algorithms(True, warn_only=True)
        found.append(count(*CALLS["plain"]))
    finally:
        torch.use_deterministic_algorithms(False)
    found.append(count(*CALLS["plain"]))
    assert found == [1, 2, 3, 1]


def test_what_else_the_choice_on_a_gpu_follows_from_is_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(cuda, "choose", lambda *_: asked.append(1) or Choice(By.OWN, "a config"))
    monkeypatch.setattr(kernels, "bwd", lambda *_, **__: "own")
    q = q_of()
    lse = torch.empty(2, 4, 9)

    def n_asked() -> int:
        for _ in range(2):
            assert cuda.bwd(q, q, lse, q, q, q) == "own"
        return len(asked)

    assert n_asked() == 1
    monkeypatch.setenv("PYFLASH_BACKWARD", "own")
    assert n_asked() == 2
    monkeypatch.setattr(torch.backends.cuda, "cudnn_sdp_enabled", lambda: "other")
    assert n_asked() == 3


def test_loading_kernels_forgets(count, monkeypatch, tmp_path):
    count(*CALLS["plain"])
    with pytest.raises(RuntimeError):
        pyflash.load(tmp_path / "none.so")
    assert count(*CALLS["plain"]) == 1  # nothing was loaded
    monkeypatch.setattr(library.kernel_libraries, "checked", lambda *_: nullcontext("a library"))
    monkeypatch.setattr(torch.ops.pyflash, "load_kernels", lambda _: 7)
    assert pyflash.load(tmp_path / "some.so") == 7
    assert count(*CALLS["plain"]) == 2


def test_what_is_raised_is_not_kept():
    raised = []

    @answers.kept
    def refuse(*_):
        raised.append(1)
        raise RuntimeError("no")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="no"):
            refuse(*CALLS["plain"])
    assert len(raised) == 2


def test_extents_that_are_unknown_are_asked_each_time(count):
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    shape_env = ShapeEnv()
    with FakeTensorMode(shape_env=shape_env):
        q = torch.empty(shape_env.create_unbacked_symint(), 9, 4, 16)
        assert [count(q, q, (), {}) for _ in range(2)] == [1, 2]
    assert not answers._of_calls


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(answers, "_AT_MOST", 5)
    asked = answers.kept(lambda q, *_: q.shape[0])
    for n in range(23):
        q = SimpleNamespace(device="cpu", dtype="fp16", shape=(n,))
        assert asked(q, q, (), {}) == n
        assert len(answers._of_calls) <= 5
