"""The header of warpgroup MMA atoms. That they compile and compute is what tests of SM90 kernels,
emulated and on GPUs, show."""

import re

import pytest

from pyflash.codegen import mma_header, toolchain
from pyflash.config.family import find_family
from pyflash.third_party import cutlass
from pyflash.third_party.cutlass import CutlassError


@pytest.fixture
def header() -> str:
    try:
        return (mma_header.include_dir() / mma_header.PATH).read_text()
    except CutlassError as error:
        pytest.skip(str(error))


def test_it_has_the_atoms_of_every_config(header):
    family = find_family("sm90")
    needed = {*family.supported["d_head"], *family.explored["B_c"], 48, 80, 112, 144, 176}
    for cpp_type, word in (("half_t", "F16"), ("bfloat16_t", "BF16")):
        chosen = re.findall(rf"MmaAtoms<cutlass::{cpp_type}, (\d+)>", header)
        assert [int(n) for n in chosen] == list(range(16, 257, 16))
        assert needed <= set(map(int, chosen))
        for kind in ("SS", "RS"):
            name = f"MMA_64x80x16_F32{word}{word}_{kind}"
            assert header.count(f"struct {name}\n") == 1
            assert header.count(f"using SM90_{name[4:]} = SM90::GMMA::{name}<") == 1
    assert not re.search("struct MMA.*(E4M3|TF32|S8|_F16F16F16)", header)
    assert "64x24x16" not in header
    assert len(header) < 400_000  # CUTLASS's are of 4.7 million


def test_units_of_kernels_depend_on_it_and_the_op_library_does_not(header):
    folder = mma_header.include_dir()
    assert folder in toolchain.emulator_compiler().include_dirs
    assert folder not in toolchain.cpp_compiler().include_dirs


def test_a_cutlass_without_an_atom_is_refused(header, tmp_path):
    folders = {"arch": "mma_sm90_gmma", "atom": "mma_traits_sm90_gmma"}
    for name in (f"{f}/{stem}{end}.hpp" for f, stem in folders.items() for end in ("", "_ext")):
        text = (cutlass.include_dir() / "cute" / name).read_text()
        path = tmp_path / "cute" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("MMA_64x80x16_F32BF16BF16_RS", "MMA_64x80x16_OTHER"))
    with pytest.raises(CutlassError, match="does not define MMA_64x80x16_F32BF16BF16_RS: set CUT"):
        mma_header._text(tmp_path)
