"""Machine code: parsed, classified, its loops found, its floors computed, two of it compared."""

from __future__ import annotations

import json

import pytest
from support.listings import BASE, BEST, recorded, recorded_kernel

from pyflash.codegen.kernel_libraries import write_record
from pyflash.config import Arch
from pyflash.inspect import sass
from pyflash.inspect.compiled import feature_name
from pyflash.inspect.diff import diff_of
from pyflash.inspect.pipes import floors, shared_bytes
from pyflash.inspect.register_shares import register_shares
from pyflash.inspect.registers import register_table, registers_of, summary, to_markdown
from pyflash.inspect.sass import CLASSES, Instruction, mix

# A consumer of Hopper: it waits at 0x20; the retry at 0x80 is out of line and jumps back into the
# loop, which makes a backward branch that is no loop over what lies between.
HOPPER = """
	code for sm_90a
		Function : _Z6kernelv
        /*0000*/                   LDC R1, c[0x0][0x28] ;            /* 0x00000a00ff017b82 */
                                                                     /* 0x000ff00000000800 */
        /*0010*/                   UMOV UR4, 0x400 ;                 /* 0x00000a00ff017b82 */
        /*0020*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R4 ;
        /*0030*/              @!P0 BRA 0x80 ;
        /*0040*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0050*/                   MUFU.EX2 R5, R6 ;
        /*0060*/               @P1 BRA 0x20 ;
        /*0070*/                   EXIT ;
        /*0080*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R4 ;
        /*0090*/              @!P0 BRA 0x80 ;
        /*00a0*/                   BRA 0x40 ;
        /*00b0*/                   BRA 0xb0;
        /*00c0*/                   NOP;
"""


def test_a_listing_is_parsed():
    (kernel,) = sass.parse(HOPPER)
    assert (kernel.sm, kernel.name, len(kernel.instructions)) == (90, "kernel()", 13)
    assert kernel.instructions[3] == Instruction(0x30, "@!P0", "BRA", "0x80")
    assert str(kernel.instructions[4]) == "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24"
    assert sass.demangle("main") == "main"


def test_a_loop_is_a_natural_loop():
    """The retry belongs to the main loop, and is a loop itself."""
    (kernel,) = sass.parse(HOPPER)
    loops = [(loop.indices[0], len(loop), loop.n_matrix) for loop in kernel.loops]
    assert loops == [(2, 8, 1), (8, 2, 0)]
    assert kernel.main_loop is kernel.loops[0]
    assert mix(kernel.inside(kernel.main_loop)) == {
        "wgmma": 1,
        "exp2": 1,
        "barrier": 2,
        "branch": 4,
    }
    assert len(kernel.outside(kernel.main_loop)) == 5


def test_a_kernel_without_matrix_instructions_has_no_main_loop():
    (kernel,) = sass.parse(HOPPER.replace("HGMMA.64x128x16.F32.BF16", "FADD"))
    assert kernel.main_loop is None
    assert kernel.inside(None) == []
    assert len(kernel.outside(None)) == 13


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("HMMA.16816.F32.BF16", "mma"),
        ("HGMMA.64x64x16.F32", "wgmma"),
        ("LDSM.16.MT88.4", "ldmatrix"),
        ("LDS.128", "shared load"),
        ("LDGSTS.E.BYPASS.LTC128B.128", "cp.async"),
        ("LDGDEPBAR", "barrier"),
        ("UTMALDG.4D", "TMA load"),
        ("LDG.E.128", "global load"),
        ("STL.64", "local memory"),
        ("ULDC.64", "constant load"),
        ("MUFU.EX2", "exp2"),
        ("MUFU.RCP", "MUFU"),
        ("FFMA.FTZ", "FFMA"),
        ("FSETP.NEU.AND", "compare"),
        ("F2FP.F16.F32.PACK_AB", "convert"),
        ("IMAD.MOV.U32", "move"),
        ("IMAD.WIDE.U32", "integer"),
        ("UISETP.GE.AND", "integer"),
        ("SHFL.BFLY", "shuffle"),
        ("BAR.SYNC.DEFER_BLOCKING", "barrier"),
        ("BSSY", "branch"),
        ("XYZZY", "other"),
    ],
)
def test_instructions_have_a_class(opcode, kind):
    assert Instruction(0, "", opcode, "").kind == kind


def test_every_instruction_of_recorded_kernels_has_a_class():
    for config in (BASE, BEST):
        kernel = recorded(config)
        assert "other" not in mix(kernel.instructions)
        assert sum(mix(kernel.instructions).values()) == len(kernel.instructions)


def test_the_main_loop_of_a_recorded_kernel():
    """What a block of 64 x 64 at d_head 128 takes of each of 4 warps: 128 mma of m16n8k16, 32
    ldmatrix of x4 for K and V each, 16 cp.async of 16 bytes a lane; 32 scores and 2 rescales."""
    kernel = recorded(BEST)
    loop = kernel.inside(kernel.main_loop)
    counts = mix(loop)
    assert (len(loop), counts["mma"], counts["ldmatrix"], counts["cp.async"]) == (487, 128, 64, 16)
    assert (counts["exp2"], counts["FFMA"]) == (34, 34)
    base = recorded(BASE)
    assert mix(base.inside(base.main_loop))["FMUL"] == 198
    assert list(counts) == [name for name in CLASSES if name in counts]


def test_floors_of_a_recorded_loop():
    """By hand: 64 ldmatrix.x4 of 512 bytes, 16 cp.async of 512 and 6 loads of 128 take 4 warps
    4 * (256 + 64 + 6) cycles at 128 bytes each, 128 mma of 4096 FLOPs 4 * 128 * 4096 / 4096."""
    kernel = recorded(BEST)
    loop = kernel.inside(kernel.main_loop)
    cycles = {floor.pipe: floor.cycles for floor in floors(loop, Arch.of(90), 4)}
    assert cycles["shared memory"] == 4 * (256 + 64 + 6)
    assert cycles["tensor"] == 512
    assert cycles["mufu"] == 34 * 8
    assert cycles["issue"] == 487
    on_a100 = {floor.pipe: floor.cycles for floor in floors(loop, Arch.of(80), 4)}
    assert (on_a100["tensor"], on_a100["shared memory"]) == (1024, cycles["shared memory"])
    eightfold = floors(loop, Arch.of(90), 4, {"ldmatrix": 8})[0]
    assert (eightfold.pipe, eightfold.cycles) == ("shared memory", 4 * (8 * 256 + 64 + 6))
    assert floors(loop, Arch.of(100), 4) == []
    names = {floor.name for floor in (*floors(loop, Arch.of(90), 4), eightfold)}
    assert {"the tensor cores", "shared memory"} < names


def test_a_wgmma_is_of_four_warps():
    (kernel,) = sass.parse(HOPPER)
    cycles = {f.pipe: f.cycles for f in floors(kernel.inside(kernel.main_loop), Arch.of(90), 4)}
    assert cycles["tensor"] == 2 * 64 * 128 * 16 / 4096


def test_bytes_of_shared_memory():
    opcodes = {
        "LDSM.16.M88.4": 512,
        "LDSM.16.M88": 128,
        "STSM.16.MT88.2": 256,
        "LDS": 128,
        "STS.64": 256,
        "LDS.U.128": 512,
        "LDGSTS.E.BYPASS.128": 512,
        "LDG.E.128": 0,
    }
    assert {opcode: shared_bytes(opcode) for opcode in opcodes} == opcodes


def test_features_are_read_from_a_symbol():
    symbol = "void f<Config{{(DType)5, true, 2}}, {}>(ForwardParams)"
    assert feature_name(symbol.format("ForwardFeatures{}")) == "plain"
    assert (
        feature_name(symbol.format("ForwardFeatures{true, false, true}"))
        == "right_window+predicated_head_dim"
    )


def test_resources_and_occupancy_of_a_kernel():
    kernel = recorded_kernel(BASE)
    assert kernel.smem_bytes == 49152
    assert kernel.ctas_per_sm["sm_90"] == 2  # 202 registers, 208 as they are allocated
    assert kernel.loop.n_instructions + kernel.outside.n_instructions == 2736
    assert json.loads(json.dumps(kernel.to_dict()))["loop"]["mix"]["mma"] == 128


def test_a_diff_names_what_changed():
    result = diff_of((BASE, BEST), (recorded_kernel(BASE), recorded_kernel(BEST)))
    assert result.fields["eager_load_blocks"] == (False, True)
    assert set(result.fields) == {
        "eager_load_blocks", "swizzled", "K_mma_load_K_tiles", "V_mma_load_K_tiles",
        "optimized_softmax",
    }  # fmt: skip
    assert result.loop_mix["FMUL"] == (198, 68)
    assert result.resources["registers"] == (202, 225)
    assert result.changed[0].opcode == "FMUL"
    assert result.changed[0].loop == (198, 68)
    opcodes = {change.opcode for change in result.changed}
    assert "FSETP.GEU.AND" in opcodes
    assert "HMMA.16816.F32" not in opcodes
    assert not result.same
    assert result.sass().startswith("--- (FP16, 128, 64, 64, 4): async+load_0_0_0_tiles")
    assert json.loads(result.to_json())["canonical"][0] == str(BASE)


def test_a_diff_of_a_kernel_with_itself_is_empty():
    kernel = recorded_kernel(BASE)
    result = diff_of((BASE, BASE), (kernel, kernel))
    assert result.same
    assert (result.fields, result.changed, result.sass()) == ({}, [], "")


def test_predicted_registers_beside_ptxas(tmp_path):
    function = (
        "_ZN7pyflash20flash_forward_kernelIXtl24FlashForwardKernelConfigL5DType5ELi128ELi64ELi64E"
        "Li4ELb1ELb0ELb0ELi0ELi0ELi0ELb0ELb0EEELNS_7VariantE0EEEvNS_13ForwardParamsE"
    )
    kernel = {"arch": 90, "function": function, "registers": 200, "spill_store_bytes": 4,
              "spill_load_bytes": 8}  # fmt: skip
    record = {"configs": {str(BASE): {"kernels": [kernel]}}}
    write_record(tmp_path / "some.so", record)
    (found,) = registers_of(tmp_path / "some.so")
    assert (found.config, found.features, found.spilled_bytes) == (BASE, "plain", 12)
    predicted = BASE.resources(90).registers
    assert json.loads(json.dumps(found.to_dict()))["config"] == str(BASE)
    assert found.percent_off == (predicted - 200) / 2
    text = to_markdown(register_table(tmp_path / "some.so"))
    assert text.splitlines()[2].startswith(f"| {BASE} | sm_90 | plain | {predicted} | 200 |")
    assert "of 1 kernels within 8 %" in summary(tmp_path / "some.so")


def test_registers_with_a_variant_are_not_predicted(tmp_path):
    write_record(tmp_path / "some.so", {"configs": {f"{BASE} with alibi 0123": {"kernels": []}}})
    with pytest.raises(ValueError, match="whose registers no model predicts: expected a library"):
        registers_of(tmp_path / "some.so")


# Two roles: a producer behind 0xa0, and a consumer whose claim is tried again at 0x20. Both call
# what divides, and the consumer's accumulators are R88 to R119.
ROLES = """
	code for sm_90a
		Function : _Z6kernelv
        /*0000*/                   S2R R15, SR_TID.X ;
        /*0010*/              @!P0 BRA 0xa0 ;
        /*0020*/                   NOP ;
        /*0030*/                   USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xa0 ;
        /*0040*/              @!P0 BRA 0x20 ;
        /*0050*/                   HGMMA.64x64x16.F32.BF16 R88, gdesc[UR8], R88, UP0 ;
        /*0060*/                   HGMMA.64x64x16.F32.BF16 R24, R{a}, gdesc[UR250].tnspB, R24 ;
        /*0070*/                   CALL.REL.NOINC 0xe0 ;
        /*0080*/                   STG.E.128 desc[UR4][R20.64+0x10], R116 ;
        /*0090*/                   EXIT ;
        /*00a0*/                   USETMAXREG.DEALLOC.CTAPOOL 0x20 ;
        /*00b0*/                   UTMALDG.4D [UR40], [UR36] ;
        /*00c0*/                   CALL.REL.NOINC 0xe0 ;
        /*00d0*/                   EXIT ;
        /*00e0*/                   FFMA R{divisor}, R2, R3, -R4 ;
        /*00f0*/                   RET.REL.NODEC R2 0x0 ;
"""


def roles(a: int = 120, divisor: int = 10) -> list[tuple[int, int, bool]]:
    (kernel,) = sass.parse(ROLES.replace("{a}", str(a)).replace("{divisor}", str(divisor)))
    return [(s.budget, s.used, s.fits) for s in register_shares(kernel, at_entry=128)]


def test_registers_are_counted_by_what_setmaxnreg_leaves():
    assert roles() == [(32, 11, True), (128, 16, True), (160, 121, True)]


def test_registers_past_a_share_are_seen():
    assert roles(a=160)[2] == (160, 161, False)
    # A subroutine is of both roles.
    assert roles(divisor=32) == [(32, 33, False), (128, 16, True), (160, 121, True)]
