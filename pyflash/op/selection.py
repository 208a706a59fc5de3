"""The config and the number of splits that run a problem by default, and why. The rules are in
cute_kernels/host/select.h and splits.h, what was measured in tuned tables (pyflash/op/tables.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from pyflash.config import DType, Features, KernelConfig, parse
from pyflash.config.words import shown, type_name
from pyflash.op.arguments import arguments_of
from pyflash.op.backward import kernels
from pyflash.op.backward.choice import PLACES, By, choose, without_gradients
from pyflash.op.errors import call, check_type
from pyflash.op.options import AttentionOptions
from pyflash.op.tables import COSTS

EXTENTS = (
    "batch", "heads_q", "heads_kv", "seqlen_q", "seqlen_k", "d_head", "total_q", "total_k",
)  # fmt: skip

TORCH_DTYPES = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A call of `attention`, without its data; device as torch names it; dtype a `DType` or its
    name, a `DType` from then on. For `attention_varlen`, packed is True, batch is the number of
    sequences, seqlen_q and seqlen_k are max_seqlen_q and max_seqlen_k, and total_q and total_k the
    rows of q and of k; 0: all sequences are as long as the longest. For `attention_paged`,
    page_size is the rows of a page and seqlen_k the keys that a row of the block table has room
    for. The options' tensors may be on any device, meta too."""

    batch: int
    heads_q: int
    heads_kv: int
    seqlen_q: int
    seqlen_k: int
    d_head: int
    dtype: DType | str
    packed: bool = False
    device: str = "cuda"
    options: AttentionOptions = field(default_factory=AttentionOptions, hash=False)
    total_q: int = 0
    total_k: int = 0
    page_size: int = 0

    def __post_init__(self) -> None:
        for name in (*EXTENTS, "page_size"):
            check_type(name, getattr(self, name), "int")
        check_type("packed", self.packed, "bool")
        if not isinstance(self.options, Mapping):
            raise TypeError(f"pyflash: options is {type_name(self.options)}: expected a dictionary")
        object.__setattr__(self, "dtype", DType.of(self.dtype))


@dataclass(frozen=True, slots=True)
class Selection:
    """The config and the number of splits that run a problem, and the reason."""

    config: KernelConfig
    num_splits: int  # 1: no split-KV
    reason: str
    backward: str  # whose kernels compute the gradients of q, k and v, and why


def select(problem: Problem) -> Selection:
    """The config and the splits that `attention` runs with config = "" and num_splits = 0, or with
    those in the problem's options, and the reason in a sentence.

    Raises what `attention` would raise for the problem; RuntimeError for a CUDA device that is not
    there.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"pyflash: problem is {type_name(problem)}: expected a Problem")
    return select_on(problem, *architecture_of(problem.device))


def select_on(problem: Problem, sm_arch: int, n_sms: int) -> Selection:
    """`select` for a GPU of that compute capability (major * 10 + minor) and number of SMs, which
    need not be here; sm_arch 0 for the CPU. `backward` is that on the problem's device."""
    short_form, num_splits, reason = call(
        torch.ops.pyflash.select, **problem_arguments(problem), sm_arch=sm_arch, n_sms=n_sms
    )
    return Selection(parse(short_form), num_splits, reason, _backward(problem))


def _backward(problem: Problem) -> str:
    device = _device(problem.device)
    if problem.page_size > 0:
        return "none: attention over pages has no gradients"
    lacking = without_gradients(problem.options, device.type)
    if device.type != "cuda":
        if lacking:
            return f"none: {next(iter(lacking))} has no gradients on {PLACES[device.type]}"
        return "the formula in float32"
    choice = choose(device, problem_arguments(problem))
    if lacking and choice.by is not By.OWN:
        why = f"; no kernel of pyflash: {choice.own}" if kernels.are_built() else ""
        return f"none: {next(iter(lacking))} has no gradients on {PLACES[device.type]}{why}"
    return str(choice)


class ProblemClass(NamedTuple):
    """The key of a problem in tuned tables: the extents as kernels see them. With one query, the
    heads that share keys are rows."""

    features: str  # that the problem needs, predicated_head_dim aside
    pairs: int  # of batch and head
    rows: int
    keys: int
    kind: str  # "many", "few": at most 64 rows


def class_of(problem: Problem) -> ProblemClass:
    """Raises what `attention` would raise for the problem."""
    return ProblemClass(*call(torch.ops.pyflash.problem_class, **problem_arguments(problem)))


def features_needed(problem: Problem, config: KernelConfig | str) -> Features:
    """Those that the kernel of a config, which need not be built, needs to run the problem.

    Raises what `attention` would raise for the problem and the config.
    """
    arguments = problem_arguments(problem) | {"config": str(config)}
    return Features.parse(call(torch.ops.pyflash.features_needed, **arguments))


def features_in_config(features: str, d_head: int, config: KernelConfig | str) -> Features:
    """The features that a class of problems, with `features` and this d_head, needs of a config."""
    arguments = {"features": features, "d_head": d_head, "config": str(config)}
    return Features.parse(call(torch.ops.pyflash.features_in_config, **arguments))


def expected_microseconds(
    problem: Problem,
    config: KernelConfig,
    sm_arch: int,
    n_sms: int,
    costs: Sequence[Mapping[str, float]],
) -> list[float]:
    """For each of several sets of costs (`COSTS` of tables.py) the time that a tuned table with it
    expects of a config that need not be built, with the splits of the rule or those in the
    problem's options."""
    microseconds, _, _ = _expected(problem, config, sm_arch, n_sms, costs)
    return microseconds


def tiles_of(problem: Problem, config: KernelConfig, sm_arch: int, n_sms: int) -> int:
    """Tiles that one pass over the keys has with a config, which need not be built."""
    _, _, tiles = _expected(problem, config, sm_arch, n_sms, [])
    return tiles


def splits_by_rule(problem: Problem, config: KernelConfig, sm_arch: int, n_sms: int) -> int:
    """The number of splits that the rule chooses for a config, which need not be built."""
    _, splits, _ = _expected(problem, config, sm_arch, n_sms, [])
    return splits


def _expected(
    problem: Problem,
    config: KernelConfig,
    sm_arch: int,
    n_sms: int,
    costs: Sequence[Mapping[str, float]],
) -> tuple[list[float], int, int]:
    return call(
        torch.ops.pyflash.expect_time,
        **problem_arguments(problem),
        n_sms=n_sms,
        kernel=str(config),
        ctas_per_sm=max(1, config.num_ctas_per_sm(sm_arch)),
        costs=[of[name] for of in costs for name in COSTS],
    )


def problem_arguments(problem: Problem) -> dict[str, Any]:
    """Those of the ops that take a problem without data."""
    return {
        "dtype": int(DType.of(problem.dtype)),
        "packed": problem.packed,
        "batch": problem.batch,
        "heads": problem.heads_q,
        "heads_kv": problem.heads_kv,
        "seqlen_q": problem.seqlen_q,
        "seqlen_k": problem.seqlen_k,
        "d_head": problem.d_head,
        "total_q": problem.total_q,
        "total_k": problem.total_k,
        "page_size": problem.page_size,
        **arguments_of("Problem", problem.options),
    }


def _device(name: str | torch.device) -> torch.device:
    if not isinstance(name, str | torch.device):
        raise TypeError(f"pyflash: device is {type_name(name)}: expected a device or its name")
    try:
        return torch.device(name)
    except RuntimeError:
        raise ValueError(
            f"pyflash: device is {shown(name)}: expected a CUDA device or cpu"
        ) from None


def check_device(name: str | torch.device) -> torch.device:
    """The device of that name. Raises ValueError for one that is neither a CUDA device nor the CPU,
    RuntimeError for a CUDA device that is not there, TypeError for what is no name."""
    device = _device(name)
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise ValueError(f"pyflash: device is {device}: expected a CUDA device or cpu")
    if not torch.cuda.is_available():
        raise RuntimeError("pyflash: torch finds no CUDA GPU: expected device 'cpu'")
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise RuntimeError(
            f"pyflash: device is {device}: torch finds {torch.cuda.device_count()} CUDA GPUs"
        )
    return device


def architecture_of(name: str | torch.device) -> tuple[int, int]:
    """(SM architecture, number of SMs), zeros for the CPU."""
    device = check_device(name)
    if device.type == "cpu":
        return 0, 0
    properties = torch.cuda.get_device_properties(device)
    return properties.major * 10 + properties.minor, properties.multi_processor_count
