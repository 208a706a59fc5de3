"""What the GPU tests of op backward share."""

from __future__ import annotations

import pytest
import torch

from pyflash.op.backward import cuda, kernels


def skip_without_kernels() -> None:
    """Where op backward has none, or none that runs here."""
    if not kernels.are_built():
        pytest.skip("no kernels of op backward are built: pyflash build --set backward")
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("kernels of op backward run on a Hopper")


def forbid_borrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where a borrowed backward would run."""
    monkeypatch.setattr(cuda.cudnn, "bwd", None)
    monkeypatch.setattr(cuda, "_flash_backward", None)
