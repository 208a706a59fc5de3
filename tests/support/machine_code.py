"""What nvcc makes of configs, several in a unit, whose headers it then parses once; and the plain
kernels of some, which take a fraction of the time that all combinations of features take."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyflash import DType, FlashForwardKernelConfig, named_set
from pyflash.codegen import emit, toolchain
from pyflash.codegen.build import BuildError
from pyflash.codegen.compilation import Compilation, compile_all
from pyflash.codegen.kernels import Request, cubin_compilation
from pyflash.config import KernelConfig
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


# In one unit, whose headers nvcc parses once; the units keep all cores busy.
TOGETHER = 5


@dataclass(frozen=True)
class PlainKernel:
    """A kernel in an object that has others, too: what is asked of a `Compilation`."""

    object: Path
    record: dict[str, list[dict[str, Any]]]  # of this kernel

    @property
    def function(self) -> str:
        (kernel,) = self.record["kernels"]
        return kernel["function"]


def compile_plain_kernels(arch: Arch) -> dict[FlashForwardKernelConfig, PlainKernel]:
    """In objects, of the cache where they are in it."""
    groups = [CONFIGS[i : i + TOGETHER] for i in range(0, len(CONFIGS), TOGETHER)]
    found = compile_together([[Request(config) for config in group] for group in groups], arch)
    return {
        config: PlainKernel(compilation.object, {"kernels": kernels})
        for config, (compilation, kernels) in found.items()
    }


def compile_together(
    groups: Sequence[Sequence[Request]], arch: Arch
) -> dict[KernelConfig, tuple[Compilation, list[dict[str, Any]]]]:
    """By config the object that it is in, which has all configs of a group, and the records of its
    kernels there. The configs of a group are of one family."""
    cutlass = toolchain.cutlass_identity()
    compilations = [
        dataclasses.replace(
            cubin_compilation(group[0], arch, cutlass),
            label=f"{len(group)} configs from {group[0].config} on",
            stem=f"cubin_of_{len(group)}_{emit.file_stem(group[0].config)}",
            text=_unit(group),
        )
        for group in groups
    ]
    if failures := compile_all(compilations, f"kernels for {arch}"):
        raise BuildError(failures, len(compilations))
    found = {}
    for group, compilation in zip(groups, compilations, strict=True):
        kernels = compilation.record["kernels"]
        for config, features in group:
            own = [kernel for kernel in kernels if _mangled(config) in kernel["function"]]
            assert len(own) == len(features), str(config)
            found[config] = compilation, own
    return found


def _unit(group: Sequence[Request]) -> str:
    """The units of these configs in one: each has the same head, and names of its own behind it."""
    texts = [
        emit.emit_config(config, config.family.op.features.in_dispatch_order(features))
        for config, features in group
    ]
    head = texts[0].partition("namespace pyflash {")[0]
    bodies = [text[text.index("namespace pyflash {") :] for text in texts]
    numbered = (
        re.sub(r"\b(kConfig|kTable|kBuilt|kModel)\b", rf"\g<1>_{number}", body)
        for number, body in enumerate(bodies)
    )
    return head + "\n".join(numbered)


def _mangled(config: KernelConfig) -> str:
    """As a template argument of a kernel's symbol."""
    struct = config.to_cpp_struct().partition("{")[0]
    letters = {bool: "b", int: "i", DType: "5DType"}
    values = [getattr(config, name) for name in config.field_types()]
    literals = "".join(f"L{letters[type(value)]}{int(value)}E" for value in values)
    return f"{len(struct)}{struct}{literals}E"
