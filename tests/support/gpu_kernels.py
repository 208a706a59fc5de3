"""What the GPU tests of op backward share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from support.gpu_calls import built_for
from torch import Tensor

import pyflash
from pyflash import Features
from pyflash.config import DType
from pyflash.config.backward import BackwardFeatures
from pyflash.op.backward import cuda, kernels


def skip_without_kernels() -> None:
    """Where op backward has none, or none that runs here."""
    if not kernels.are_built():
        pytest.skip("no kernels of op backward are built")
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("kernels of op backward run on a Hopper")


def skip_without_kernels_for(d_head: int) -> None:
    """Where those that are built are narrower, or those of forward are."""
    for features, name in ((BackwardFeatures(), "backward"), (Features(), "forward")):
        if not any(config.d_head >= d_head for config in built_for(features, name)):
            pytest.skip(f"no kernels of op {name} with d_head {d_head} are built")


def dropout_is_built() -> bool:
    """Whether the set `dropout` is. Others have some kernels of it, too, but none of these."""
    built = pyflash.built_configs("backward").items()
    return any(getattr(f, "dropout", False) for c, b in built if c.d_head == 64 for f in b.features)


def sm80_backward_configs(d_head: int, **features: bool) -> list[str]:
    """Those of the family with bf16 and these columns that are built, with deterministic kernels;
    skips without any."""
    skip_without_kernels_for(d_head)
    # NOTE: others take dropout alone.
    known = built_for(BackwardFeatures(deterministic=True, **features), "backward")
    found = [
        str(c)
        for c in known
        if c.family.name == "sm80_backward" and c.dtype == DType.BF16 and c.d_head == d_head
    ]
    if not found:
        pytest.skip(f"no such config of the SM80 backward with d_head {d_head} is built")
    return found


def forbid_borrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Own kernels run where cuDNN's would; fails where a borrowed backward would."""
    monkeypatch.setattr(cuda.cudnn, "refusal", lambda *_, **__: "it is not asked")
    monkeypatch.setattr(cuda.cudnn, "bwd", None)
    monkeypatch.setattr(cuda, "_flash_backward", None)


def n_that_differ(run: Callable[[], Sequence[Tensor]], first: Sequence[Tensor], n: int) -> int:
    """Results of `n` more calls that differ from the first; they are compared on the device, and
    nothing waits between calls."""
    n_different = torch.zeros((), dtype=torch.int64, device=first[0].device)
    for _ in range(n):
        for a, b in zip(run(), first, strict=True):
            n_different += (a != b).any()
    return int(n_different)


def with_workspace(run: Callable[[], Sequence[Tensor]]) -> tuple[Sequence[Tensor], int]:
    """The results of a second call, and the bytes that it asked for beside them."""
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    # NOTE: what is allocated counts up to 1 MB more of each block that the cache held already.
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    results = run()
    torch.cuda.synchronize()
    most = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    return results, most - before - sum(x.nbytes for x in results)
