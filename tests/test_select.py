"""Loading kernel libraries and choosing among their configs, with a library that has no kernels."""

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from fake_library import build_fake_library

import pyflash
from pyflash import DType, FlashForwardKernelConfig, Problem
from pyflash.library import LIB_DIR

LARGE_RANK_1 = "(FP16, 512, 128, 32, 4): async+load_0_0_0_tiles"
LARGE_RANK_2 = "(FP16, 512, 128, 64, 4): async+load_0_0_0_tiles"
SMALL_RANK_3 = "(FP16, 512, 64, 64, 4): async+load_0_0_0_tiles"
SMALL_RANK_0_SM80 = "(FP16, 512, 64, 32, 4): async+load_0_0_0_tiles"
BF16_576 = "(BF16, 576, 64, 64, 4): async+load_0_0_0_tiles"


@pytest.fixture(scope="module")
def fake_library(tmp_path_factory) -> Path:
    library = build_fake_library(tmp_path_factory.mktemp("library"))
    assert pyflash.load(library) == 5
    return library


def select(
    dtype=DType.FP16, d_head=512, batch=1, heads=1, seqlen_q=1, sm_arch=90, n_sms=132, config=""
):
    return torch.ops.pyflash.select(
        int(dtype), d_head, batch, heads, seqlen_q, sm_arch, n_sms, config
    )


# Loading.


def test_rows_appear_in_the_config_map(fake_library):
    built = pyflash.built_configs()
    config = FlashForwardKernelConfig.parse(LARGE_RANK_2)
    assert built[config] == pyflash.BuiltConfig(
        config, sm_archs=(80, 90), ptx_arch=90, n_threads=128, smem_bytes=1024, rank=2
    )
    assert built[FlashForwardKernelConfig.parse(SMALL_RANK_0_SM80)].sm_archs == (80,)
    assert list(built) == sorted(built)


def test_the_library_loaded_last_wins(fake_library, tmp_path):
    config = FlashForwardKernelConfig.parse(LARGE_RANK_1)
    assert pyflash.built_configs()[config].rank == 1
    n_before = len(pyflash.built_configs())
    try:
        pyflash.load(build_fake_library(tmp_path, "later", "BASE_RANK=100"))
        assert pyflash.built_configs()[config].rank == 101
    finally:
        pyflash.load(fake_library)
    assert pyflash.built_configs()[config].rank == 1
    assert len(pyflash.built_configs()) == n_before


def test_many_threads_may_load_and_look(fake_library):
    def load_and_look(_):
        pyflash.load(fake_library)
        return len(pyflash.built_configs()), select(sm_arch=80)[0]

    with ThreadPoolExecutor(8) as pool:
        results = set(pool.map(load_and_look, range(200)))
    assert len(results) == 1


UNUSABLE = {
    "of another version": (["ABI=999"], "has ABI version 999, expected [0-9]+; build it again"),
    "without the entry": (["ENTRY=other"], "does not export pyflash_kernel_library"),
    "with another name for a config": (
        ['FIRST_NAME="(FP16, 512, 128, 64, 4): load_0_0_0_tiles"'],
        r"calls \(FP16, 512, 128, 64, 4\): async\+load_0_0_0_tiles by the name",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_libraries_are_refused_and_change_nothing(tmp_path, case):
    macros, sentence = UNUSABLE[case]
    library = build_fake_library(tmp_path, "unusable", *macros)
    before = pyflash.built_configs()
    with pytest.raises(RuntimeError, match=sentence):
        pyflash.load(library)
    assert pyflash.built_configs() == before


def test_a_file_that_is_no_library_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match=r"cannot be loaded: .*No such file"):
        pyflash.load(tmp_path / "missing.so")
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(RuntimeError, match=r"text\.so' cannot be loaded"):
        pyflash.load(tmp_path / "text.so")


# The rule.


@pytest.mark.parametrize(
    ("batch", "heads", "seqlen_q", "expected"),
    [
        (1, 132, 128, LARGE_RANK_1),  # 132 CTAs of 128 rows
        (1, 131, 128, SMALL_RANK_3),  # 131 of 128 rows, 262 of 64 rows
        (4, 33, 1, LARGE_RANK_1),
        (1, 1, 128 * 132, LARGE_RANK_1),
        (1, 1, 128 * 131 + 1, LARGE_RANK_1),
        (1, 1, 128 * 131, SMALL_RANK_3),
        (1, 1, 1, SMALL_RANK_3),  # nothing fills the GPU
        (0, 1, 1, SMALL_RANK_3),
    ],
)
@pytest.mark.usefixtures("fake_library")
def test_the_first_in_rank_that_fills_the_gpu(batch, heads, seqlen_q, expected):
    assert select(batch=batch, heads=heads, seqlen_q=seqlen_q)[0] == expected


@pytest.mark.usefixtures("fake_library")
def test_only_what_has_code_for_the_gpu():
    assert select(sm_arch=80, heads=1000)[0] == SMALL_RANK_0_SM80
    assert select(sm_arch=86, heads=1000)[0] == SMALL_RANK_0_SM80  # a newer minor version runs 80's
    assert select(sm_arch=90, heads=1000)[0] == LARGE_RANK_1  # not 80's, without its PTX
    assert select(sm_arch=100, heads=1000)[0] == LARGE_RANK_1  # through the PTX of 90
    assert select(dtype=DType.BF16, d_head=576, sm_arch=89)[0] == BF16_576
    assert select(dtype=DType.BF16, d_head=576, sm_arch=80)[0] == BF16_576  # 86's no, its PTX of 80
    with pytest.raises(
        RuntimeError, match=r"no config for FP16 with d_head 512 is built for this GPU"
    ):
        select(sm_arch=75)


@pytest.mark.usefixtures("fake_library")
def test_no_kernel_image_is_a_refusal_that_lists_what_is_built():
    with pytest.raises(
        RuntimeError, match="no config is built for BF16 with d_head 512"
    ) as refusal:
        select(dtype=DType.BF16)
    assert "FP16 with d_head 512" in str(refusal.value)
    assert "BF16 with d_head 576" in str(refusal.value)


@pytest.mark.usefixtures("fake_library")
def test_the_reason_is_told():
    candidates = "of 3 configs built for FP16 with d_head 512 that run on sm_90"
    assert select(heads=132, seqlen_q=128)[1] == (
        f"{candidates} the first in rank whose grid fills the 132 SMs: rank 1, 132 CTAs"
    )
    assert select(heads=2)[1] == (
        f"{candidates} none has a grid that fills the 132 SMs; "
        "the first in rank of those with the smallest B_r: rank 3, 2 CTAs"
    )


@pytest.mark.usefixtures("fake_library")
def test_a_config_that_is_named_is_used():
    assert select(config=LARGE_RANK_2) == (LARGE_RANK_2, "it was named")
    assert select(config=SMALL_RANK_0_SM80, sm_arch=86) == (SMALL_RANK_0_SM80, "it was named")
    assert select(config=BF16_576, dtype=DType.BF16, d_head=576, sm_arch=0)[0] == BF16_576


@pytest.mark.usefixtures("fake_library")
def test_a_config_that_is_named_is_refused_never_replaced():
    other = LARGE_RANK_1.replace("128, 32", "192, 32")
    with pytest.raises(
        RuntimeError, match=re.escape(f"config '{other}' is not built: ")
    ) as refusal:
        select(config=other)
    assert f"built for FP16 with d_head 512 are '{SMALL_RANK_0_SM80}', " in str(refusal.value)
    assert f"to build it: python -m codegen --config '{other}'" in str(refusal.value)
    sentence = (
        f"config '{SMALL_RANK_0_SM80}' is not built for this GPU, sm_90: "
        "it has machine code for sm_80; to build it: python -m codegen"
    )
    with pytest.raises(RuntimeError, match=re.escape(sentence)):
        select(config=SMALL_RANK_0_SM80)
    with pytest.raises(RuntimeError, match="is for FP16, q is BF16"):
        select(config=LARGE_RANK_1, dtype=DType.BF16)


@pytest.mark.usefixtures("fake_library")
def test_on_the_cpu_the_first_in_rank():
    problem = Problem(
        batch=1, heads_q=2, heads_kv=2, seqlen_q=100, seqlen_k=100, d_head=512,
        dtype=DType.FP16, device="cpu",
    )  # fmt: skip
    assert str(pyflash.select(problem).config) == SMALL_RANK_0_SM80
    q = torch.randn(1, 100, 2, 512, dtype=torch.float16)
    selected = pyflash.select(problem).config
    assert torch.equal(pyflash.attention(q, q, q), pyflash.attention(q, q, q, config=selected))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"heads_kv": 1}, "fewer heads of k and v than of q are not supported yet"),
        ({"causal": True}, "causal = True is not supported yet"),
        ({"window_left": 5}, "window_left = 5 is not supported yet"),
        ({"d_head": 80}, "q has d_head 80: expected 64 or 128"),
    ],
)
def test_select_refuses_what_attention_refuses(changes, sentence):
    problem = {
        "batch": 1, "heads_q": 2, "heads_kv": 2, "seqlen_q": 10, "seqlen_k": 10, "d_head": 64,
        "dtype": DType.FP16, "device": "cpu",
    }  # fmt: skip
    with pytest.raises(RuntimeError, match=re.escape(sentence)):
        pyflash.select(Problem(**problem | changes))


# The op library as a binary.


def undefined_symbols() -> set[str]:
    command = ["nm", "-D", "--undefined-only", str(LIB_DIR / "libpyflash_ops.so")]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in listing.splitlines()}


def test_no_symbol_of_one_torch_version_is_needed():
    """Undefined symbols after a torch upgrade: of torch, only C functions that 2.10 has."""
    include = Path(torch.__file__).parent / "include" / "torch" / "csrc"
    of_torch = {s for s in undefined_symbols() if "@" not in s and not s.startswith("_ITM_")}
    of_torch -= {"__gmon_start__"}
    assert of_torch, "the library needs nothing of torch: is it the op library?"
    assert {s for s in of_torch if not s.startswith(("aoti_torch_", "torch_"))} == set()
    shim = (include / "stable" / "c" / "shim.h").read_text()
    later = shim[shim.index("TORCH_FEATURE_VERSION >= TORCH_VERSION_2_11_0") :]
    newer = set(re.findall(r"\b(?:aoti_)?torch_\w+(?=\()", later))
    assert "torch_from_blob" in newer
    assert of_torch & (newer | {"aoti_torch_delete_library_object"}) == set()
