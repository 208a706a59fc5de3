"""A backend of the tuner on a GPU where some candidates trap and some never end."""

from __future__ import annotations

from typing import Any

import torch

from pyflash.tuner.backend import TorchBackend


class Faulty(TorchBackend):
    """`traps` and `hangs`: configs by their short forms."""

    def __init__(self, traps: list[str], hangs: list[str], **options: Any) -> None:
        super().__init__(**options)
        self._traps, self._hangs = traps, hangs

    def check(self, problem: dict[str, Any], candidate: dict[str, Any]) -> tuple[float, float]:
        if candidate["config"] in self._traps:
            index = torch.tensor([1 << 20], device="cuda")
            torch.zeros(1, device="cuda")[index].sum().item()  # a device-side assertion
        if candidate["config"] in self._hangs:
            torch.cuda._sleep(1 << 60)  # cycles
        return super().check(problem, candidate)
