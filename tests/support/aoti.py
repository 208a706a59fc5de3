"""A model that calls the op, compiled and packaged by AOTInductor in one process, and run from the
package in another, which has imported no more than torch and pyflash.

    PYTHONPATH=.:tests python -m support.aoti compile PACKAGE [--device cuda] [--without-pyflash]
    PYTHONPATH=.:tests python -m support.aoti run PACKAGE [--device cuda] [--without-pyflash]
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]


class Model(torch.nn.Module):
    """By pyflash, or, to tell its faults from those of others, by PyTorch's own attention. On the
    CPU with a variant, too, which captures nothing."""

    def __init__(self, with_pyflash: bool) -> None:
        super().__init__()
        self.with_pyflash = with_pyflash
        self.projection = torch.nn.Linear(64, 3 * 64)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.projection(x).unflatten(-1, (3, 4, 16)).unbind(-3)
        if self.with_pyflash:
            out = pyflash.attention(q, k, v, causal=True)
            if q.device.type == "cpu":
                out = pyflash.attention(out, k, v, variant="causal")
            return out.flatten(-2)
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).flatten(-2)


def model_and_input(with_pyflash: bool, device: str, seqlen: int = 33) -> tuple[Model, Tensor]:
    torch.manual_seed(0)
    return Model(with_pyflash).half().to(device), torch.randn(2, seqlen, 64).half().to(device)


def run(action: str, package: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`python -m support.aoti action package options`."""
    command = [sys.executable, "-m", "support.aoti", action, str(package), *options]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["compile", "run"])
    parser.add_argument("package")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--without-pyflash", action="store_true")
    arguments = parser.parse_args()
    with_pyflash, device = not arguments.without_pyflash, arguments.device
    if with_pyflash:
        global pyflash
        import pyflash
    model, x = model_and_input(with_pyflash, device)
    with torch.no_grad():
        if arguments.action == "compile":
            dim = torch.export.Dim("seqlen", min=2, max=512)
            exported = torch.export.export(model, (x,), dynamic_shapes=({1: dim},))
            path = torch._inductor.aoti_compile_and_package(
                exported, package_path=arguments.package
            )
            print(f"torch {torch.__version__}: packaged as {path}", flush=True)
            return
        loaded = torch._inductor.aoti_load_package(arguments.package)
        print(f"torch {torch.__version__}: loaded", flush=True)
        for seqlen in (33, 70):
            model, x = model_and_input(with_pyflash, device, seqlen)
            error = (loaded(x) - model(x)).abs().max().item()
            print(f"seqlen {seqlen}: largest difference {error:.2e}", flush=True)
            assert error < 1e-2


if __name__ == "__main__":
    main()
