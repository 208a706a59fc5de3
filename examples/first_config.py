"""Two configs that differ in one word: check, emulate, inspect and draw them, without a GPU.

    python examples/first_config.py [--out build/first_config]

The second config is swizzled. The emulator shows what that changes: the plain one reads K from
shared memory in eight passes, the swizzled one in one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import pyflash
from pyflash.inspect.inspection import inspect
from pyflash.layouts import Layout, Swizzle, composition, plot, tile_to_shape
from pyflash.ui.page import page

ARCH = "sm_90"
PLAIN = pyflash.FlashForwardKernelConfig.parse("(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles")
SWIZZLED = PLAIN.replace(swizzled=True)


def check() -> None:
    """Rules decide before any compiler runs."""
    too_large = PLAIN.replace(B_r=128, B_c=128, kv_stages=4)
    for rule, sentence in too_large.violations(ARCH):
        print(f"  {rule}: {sentence}")
    assert not PLAIN.violations(ARCH)
    assert not SWIZZLED.violations(ARCH)
    print(f"  {SWIZZLED}: {SWIZZLED.resources(ARCH)}")


def emulate(config: pyflash.KernelConfig) -> float:
    """Runs the kernel on the CPU; returns in how many passes a warp reads K, over the ideal."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 128, 2, 128).half().unbind()
    out, _, report = pyflash.emulate(q, k, v, config, causal=True)
    report.check()  # raises where the kernel raced, or left its tensors
    torch.testing.assert_close(out, pyflash.attention(q, k, v, causal=True), atol=2e-3, rtol=0)
    return report.sites["K_s2r"]["shared_load"].max_degree


def layout_of_K(config: pyflash.FlashForwardKernelConfig) -> Layout:
    """Rows are blocks of 8 x 64 elements, which the swizzle permutes."""
    block = Layout((8, 64), (64, 1))
    if config.swizzled:
        block = composition(Swizzle(3, 3, 3), block)
    return tile_to_shape(block, (config.B_c, config.d_head))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build/first_config"))
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)

    print("check")
    check()

    print("emulate")
    for config in (PLAIN, SWIZZLED):
        print(f"  {config}: K is read in {emulate(config):.0f} times the ideal passes")

    print("inspect")
    inspection = inspect(SWIZZLED, ARCH, parts=("layouts",))
    (folder / "config.html").write_text(page(inspection))
    picture = plot(Layout((64, 128), (128, 1)), layout_of_K(SWIZZLED), title="K in shared memory")
    (folder / "K.svg").write_text(picture)
    print(f"  {folder / 'config.html'} and {folder / 'K.svg'}")

    print("emit")
    print(f"  {SWIZZLED.to_cpp_struct()}")


if __name__ == "__main__":
    main()
