"""What `pyflash inspect` finds of recorded kernels, without compiling anything."""

from __future__ import annotations

import dataclasses

from support.listings import BASE, recorded, recorded_kernel

from pyflash.config import KernelConfig, parse
from pyflash.emulator import Counts, GlobalTraffic, Report, SharedTraffic
from pyflash.inspect.compiled import compiled_kernel
from pyflash.inspect.inspection import Inspection, inspect
from pyflash.inspect.native import Description, Member, NamedLayout

SM90 = parse("(FP16, 128, 128, 128, 2): sm90+stages_2")
# As the module of SM90 prints them: (text, extents).
SM90_SMEM = {
    "Q": ("Sw<3,3,3> o _0 o ((_8,_8),(_64,_2),_2):((_64,_512),(_1,_4096),_8192)", (64, 128, 2)),
    "K": ("Sw<3,3,3> o _0 o ((_8,_16),(_64,_2),_2):((_64,_512),(_1,_8192),_16384)", (128, 128, 2)),
    "V": ("Sw<3,3,3> o _0 o ((_8,_16),(_64,_2),_2):((_64,_512),(_1,_8192),_16384)", (128, 128, 2)),
    "V^T": (
        "Sw<3,3,3> o _0 o ((_64,_2),(_8,_16),_2):((_1,_8192),(_64,_512),_16384)",
        (128, 128, 2),
    ),
    "O": ("Sw<3,3,3> o _0 o ((_8,_2),_64):((_64,_512),_1)", (16, 64)),
}
_SM90_MMA = "((_4,_8,_4),((_2,_2,_16),(_1,_1))):((_128,_1,_16),((_64,_8,_512),(_0,_0)))"


def looked_into(config: KernelConfig) -> Inspection:
    """BASE or BEST."""
    found = inspect(config, "sm_90", parts=())
    kernels = [recorded_kernel(config)]
    return dataclasses.replace(found, description=_described(config), kernels=kernels)


def _described(config: KernelConfig) -> Description:
    """What the native module says of BASE and BEST, without building it."""
    swizzled = "Sw<3,3,3> o _0 o ((_8,_8),(_64,_2)):((_64,_512),(_1,_4096))"
    text = swizzled if config.swizzled else "(_64,_128):(_128,_1)"
    mma = "((_4,_8,_4),((_2,_2),(_1,_2))):((_128,_1,_16),((_64,_8),(_0,_512)))"
    layouts = [NamedLayout(name, "smem", text, (64, 128), ()) for name in "QKVO"]
    layouts.append(NamedLayout("MMA C", "threads", mma, (64, 16), ()))
    layouts.append(NamedLayout("copy s2r K source", "threads", mma, (64, 16), ()))
    members = [Member("q", 0, 16384), Member("k", 16384, 16384), Member("v", 32768, 16384)]
    return Description({layout.name: layout for layout in layouts}, members, 49152, "ldmatrix")


def looked_into_sm90() -> Inspection:
    """SM90, with the machine code of BASE."""
    layouts = [
        NamedLayout(name, "smem", *of, (), SM90.family.repeats.get(name, "of them"))
        for name, of in SM90_SMEM.items()
    ]
    layouts.append(NamedLayout("MMA QK^T C", "threads", _SM90_MMA, (64, 128), ()))
    members = [Member("q", 0, 32768), Member("k", 32768, 65536), Member("v", 98304, 65536)]
    figures = dict.fromkeys(
        ("spill_store_bytes", "spill_load_bytes", "stack_bytes", "static_smem_bytes"), 0
    )
    kernel = compiled_kernel(SM90, recorded(BASE), figures | {"registers": 168})
    return dataclasses.replace(
        inspect(SM90, "sm_90", parts=()),
        description=Description(
            {layout.name: layout for layout in layouts}, members, 164864, "WGMMA"
        ),
        traffic=_sm90_traffic(),
        kernels=[kernel],
    )


def _sm90_traffic() -> Report:
    """Boxes that TMA brings, and threads that store O."""
    counts = Counts(*[0] * len(dataclasses.fields(Counts)))
    return Report(
        config=str(SM90), problem={}, order="ascending", seed=0, n_ctas=4, n_threads=384,
        smem_bytes=164864, seconds=0.1, completed=True, findings=(),
        sites={
            "K_g2s": {"global_load": GlobalTraffic(32, 131072, 4096, 4096)},
            "O_r2s": {"shared_store": SharedTraffic(128, 65536, 512, 512, 1, 1, 1)},
        },
        counts=dataclasses.replace(counts, tma_boxes=32, wgmma_ss=64),
    )  # fmt: skip
