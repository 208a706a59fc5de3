"""What nvcc makes of configs: the plain kernels of some, by themselves, which takes a fraction of
the time that all combinations of features take."""

from __future__ import annotations

from pyflash import DType, FlashForwardKernelConfig, named_set
from pyflash.codegen import toolchain
from pyflash.codegen.build import BuildError
from pyflash.codegen.compilation import Compilation, compile_all
from pyflash.codegen.kernels import Request, cubin_compilation
from pyflash.config.arch import Arch

PROG = named_set("prog")
BEST = PROG[-1]
# The ladder but for one step; for each field a pair that differs in it alone; the default config of
# either d_head.
CONFIGS = sorted(
    {
        *PROG[:2],
        *PROG[3:],
        named_set("all")[0],
        FlashForwardKernelConfig.parse(
            "(FP16, 64, 128, 128, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax"
        ),
        BEST.replace(dtype=DType.BF16),
        BEST.replace(d_head=64),
        BEST.replace(B_c=32),
        BEST.replace(B_r=128),
        BEST.replace(B_r=128, n_warps=8),
        BEST.replace(eager_load_blocks=False),
        BEST.replace(eager_load_blocks=False, async_copy=False),
        BEST.replace(Q_mma_load_K_tiles=2),
        BEST.replace(K_mma_load_K_tiles=0),
        BEST.replace(V_mma_load_K_tiles=0),
        BEST.replace(kv_stages=2),
        BEST.replace(rescale_threshold=True),
    }
)


def compile_plain_kernels(arch: Arch) -> dict[FlashForwardKernelConfig, Compilation]:
    """The objects, of the cache where they are in it."""
    cutlass = toolchain.cutlass_identity()
    compilations = {c: cubin_compilation(Request(c), arch, cutlass) for c in CONFIGS}
    if failures := compile_all(list(compilations.values()), f"plain kernels for {arch}"):
        raise BuildError(failures, len(compilations))
    return compilations
