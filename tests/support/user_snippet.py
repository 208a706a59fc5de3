"""A user's program that uses the whole public API; tests/op/test_typing.py has mypy check it, and
that it leaves out no name."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import assert_type

import pyflash
from pyflash import (
    Arch,
    BuiltConfig,
    DType,
    Features,
    FlashForwardKernelConfig,
    FlashForwardSm90Config,
    KernelConfig,
    Problem,
    Selection,
    Space,
    Violation,
)


def attend(q: Tensor, k: Tensor, v: Tensor, config: KernelConfig | str, with_lse: bool) -> Tensor:
    out = pyflash.attention(q, k, v)
    assert_type(out, Tensor)
    assert_type(pyflash.attention(q, k, v, causal=True, return_lse=False), Tensor)
    pair = pyflash.attention(q, k, v, config=config, softcap=30.0, return_lse=True)
    assert_type(pair, tuple[Tensor, Tensor])
    lengths = torch.ones(2, dtype=torch.int32)
    assert_type(pyflash.attention(q, k, v, seqlens_q=lengths, seqlens_k=lengths), Tensor)
    either = pyflash.attention(q, k, v, num_splits=2, sinks=None, return_lse=with_lse)
    assert_type(either, Tensor | tuple[Tensor, Tensor])
    return pyflash.sdpa(q, k, v, None, 0.0, True, scale=0.5, enable_gqa=True)


def attend_packed(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
    out = pyflash.attention_varlen(q, k, v, starts, starts, 64, 64, window_left=5)
    assert_type(out, Tensor)
    out, lse = pyflash.attention_varlen(
        q, k, v, starts, starts, max_seqlen_q=64, max_seqlen_k=64, softmax_scale=1, return_lse=True
    )
    assert_type(lse, Tensor)
    return out


def attend_paged(q: Tensor, k: Tensor, cache: Tensor, table: Tensor, ints: Tensor) -> Tensor:
    slots = pyflash.slots_of(table, ints, ints, page_size=16, total_q=4)
    assert_type(slots, Tensor)
    pyflash.append_kv(k, k, cache, cache, slots)
    out = pyflash.attention_paged(q, cache, cache, table, ints, causal=True)
    assert_type(out, Tensor)
    state = pyflash.attention_paged(
        q, cache, cache, table, ints, cu_seqlens_q=ints, max_seqlen_q=4, return_lse=True
    )
    assert_type(state, tuple[Tensor, Tensor])
    assert_type(pyflash.attention_cached(q, cache, cache, ints, ints, causal=True), Tensor)
    assert_type(pyflash.attention_paged(q, cache, cache, table, ints, out=out), Tensor)
    made = pyflash.schedule(8, cache, table, ints, cu_seqlens_q=ints, max_seqlen_q=4, causal=True)
    assert_type(made, pyflash.Schedule)
    assert_type(made.update(cache, table, ints), pyflash.Schedule)
    assert_type(pyflash.attention_paged(q, cache, cache, table, ints, schedule=made), Tensor)
    levels = [(table, ints, ints, 3), (table, ints, ints, 1)]
    assert_type(pyflash.attention_cascade(q[0], cache, cache, levels, causal=True), Tensor)
    assert_type(pyflash.merge_states(*state, *state), tuple[Tensor, Tensor])
    pyflash.keep_masks(1 << 20)
    return pyflash.merge_states([state, state], out=out)[0]


def choose(dtype: DType | str) -> tuple[KernelConfig, str]:
    problem = Problem(
        batch=1,
        heads_q=8,
        heads_kv=2,
        seqlen_q=128,
        seqlen_k=128,
        d_head=64,
        dtype=dtype,
        device="cpu",
        options={"causal": True, "window_left": 64},
    )
    selection: Selection = pyflash.select(problem)
    assert_type(selection.num_splits, int)
    assert_type(selection.backward, str)
    return selection.config, selection.reason


def tuned(space: Space, problem: Problem) -> list[KernelConfig]:
    result = pyflash.tune(space, [problem, "bf16,seqlen=4096,causal"], effort="quick", budget=60)
    return [winner.config for winner in result.winners.values()]


def build(path: str) -> int:
    n_kernels = pyflash.build("(FP16, 64, 64, 64, 4): load_0_0_0_tiles", "sm_90", "plain")
    n_kernels += pyflash.build(pyflash.named_set("prog"), archs=[80, Arch.of(90)])
    built: dict[KernelConfig, BuiltConfig] = pyflash.built_configs()
    features: tuple[Features, ...] = next(iter(built.values())).features
    return n_kernels + pyflash.load(path) + len(features)


def legal(space: Space, arch: str) -> list[KernelConfig]:
    wrong: Sequence[Violation] = next(iter(space)).violations(arch)
    print(len(space), [violation.sentence for violation in wrong])
    return list(space.filter(lambda config: config.B_r == 64).legal(arch))


def configs() -> list[KernelConfig]:
    config = FlashForwardKernelConfig.parse("(FP16, 64, 64, 64, 4): load_0_0_0_tiles")
    assert_type(config, FlashForwardKernelConfig)
    assert_type(config.replace(B_r=128), FlashForwardKernelConfig)
    hopper = [c for c in pyflash.named_set("sm90") if isinstance(c, FlashForwardSm90Config)]
    return [config, *hopper, *pyflash.from_environment()]


def emulate(q: Tensor, config: KernelConfig) -> None:
    out, _, report = pyflash.emulate(q, q, q, config, causal=True)
    starts = torch.tensor([0, 64], dtype=torch.int32)
    pyflash.emulate_varlen(q[0], q[0], q[0], starts, starts, 64, 64, config)
    pyflash.emulate_paged(q, q, q, starts[:1, None], starts[1:], config)
    out, lse = pyflash.attention(q, q, q, return_lse=True)
    dq, _, _, backward_report = pyflash.emulate_backward(q, out, lse, q, q, q, config)
    gradients = pyflash.emulate_backward_varlen(
        q[0], out[0], lse[0], q[0], q[0], q[0], starts, starts, 64, 64, config
    )
    print(dq.shape, backward_report.ok, gradients[-1].ok)
    report.check()
    print(out.shape, pyflash.__version__)


def flex(q: Tensor) -> Tensor:
    out: Tensor = pyflash.flex_attention(q, q, q, lambda s, b, h, i, j: s + 0.1 * (j - i))
    return out


def wrong(q: Tensor) -> None:
    """What a type checker refuses: with --strict an ignored error that is none is an error."""
    pyflash.attention(q, q, q, casual=True)  # type: ignore[call-overload]
    pyflash.attention(q, q, q, softcap="no")  # type: ignore[call-overload]
    pyflash.atention(q, q, q)  # type: ignore[attr-defined]
    text: str = pyflash.attention(q, q, q)  # type: ignore[assignment]
    print(text)
