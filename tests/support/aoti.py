"""A model that calls the op, compiled and packaged by AOTInductor in one process, and run from the
package in another, which has imported no more than torch and pyflash.

    PYTHONPATH=.:tests python -m support.aoti compile PACKAGE [--device cuda]
    PYTHONPATH=.:tests python -m support.aoti run PACKAGE [--device cuda]
"""

import argparse

import torch
from torch import Tensor

import pyflash


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projection = torch.nn.Linear(64, 3 * 64)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.projection(x).unflatten(-1, (3, 4, 16)).unbind(-3)
        return pyflash.attention(q, k, v, causal=True).flatten(-2)


def model_and_input(device: str, batch: int = 2, seqlen: int = 33) -> tuple[Model, Tensor]:
    torch.manual_seed(0)
    return Model().half().to(device), torch.randn(batch, seqlen, 64).half().to(device)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["compile", "run"])
    parser.add_argument("package")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    model, x = model_and_input(arguments.device)
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
            model, x = model_and_input(arguments.device, seqlen=seqlen)
            error = (loaded(x) - model(x)).abs().max().item()
            print(f"seqlen {seqlen}: largest difference {error:.2e}", flush=True)
            assert error < 1e-2


if __name__ == "__main__":
    main()
