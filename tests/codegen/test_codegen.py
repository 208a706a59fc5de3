"""What is emitted: the same bytes each time, an instantiation per config, only what is legal."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.invoked import build_command

from pyflash import Features, FlashForwardKernelConfig, named_set
from pyflash.codegen import config_header, emit, library_objects, ops_header
from pyflash.codegen.compilation import ROOT
from pyflash.codegen.config_map import MAKERS, Code, Row, emit_config_map, emit_machine_code
from pyflash.config import FORWARD, OPS
from pyflash.config.arch import ARCHS, Arch
from pyflash.config.sets import SET_NAMES, rank
from pyflash.variant.library import named

BEST = FlashForwardKernelConfig.parse(
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
)
CODEGEN = (sys.executable, "-m", "codegen")
ALL_CONFIGS = emit.canonical_configs(c for name in SET_NAMES for c in named_set(name))

EMITTED = """\
// (FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax
#define PYFLASH_DEVICE_CODE
#include "cute_kernels/sm80/forward/kernel.h"

namespace pyflash {

constexpr auto kConfig = FlashForwardKernelConfig{
    .dtype = DType::FP16,
    .d_head = 128,
    .B_r = 64,
    .B_c = 64,
    .n_warps = 4,
    .async_copy = true,
    .eager_load_blocks = true,
    .swizzled = true,
    .Q_mma_load_K_tiles = 0,
    .K_mma_load_K_tiles = 2,
    .V_mma_load_K_tiles = 2,
    .mma_double_buffer_loads = false,
    .optimized_softmax = true};

// By architecture, by the resource model, for __launch_bounds__; 0: not legal there.
constexpr ArchCtas kTable[] = {{80, @}, {86, @}, {89, @}, {90, @}, {100, @}, {120, @}};
template <>
inline constexpr Span<ArchCtas> kCtasPerSm<kConfig>{kTable, 6};

constexpr ForwardFeatures kBuilt[] = {
    ForwardFeatures{},
    ForwardFeatures{.right_window = true, .softcap = true}};

constexpr KernelResources kModel{.n_threads = 128, .smem_bytes = 49152};
static_assert(kernel_resources<kConfig>({kBuilt, 2}) == kModel,
              "the resource model in pyflash/config says otherwise");

// To name a kernel is to compile it.
extern void const* const kernels_of_fp16_128_64_64_4_async_eager_swizzled_load_0_2_2_tiles_opt_softmax[] = {
    reinterpret_cast<void const*>(flash_forward_kernel<kConfig, kBuilt[0]>),
    reinterpret_cast<void const*>(flash_forward_kernel<kConfig, kBuilt[1]>)};

}  // namespace pyflash
"""  # noqa: E501


def test_a_unit_is_this_text_with_the_resource_model_filled_in():
    text = EMITTED
    for arch in ARCHS:
        text = text.replace("@", str(BEST.num_ctas_per_sm(arch)), 1)
    assert emit.emit_config(BEST, [Features(), Features.parse("right_window+softcap")]) == text


def test_another_process_emits_the_same_bytes(tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for seed, folder in enumerate(folders):
        subprocess.run(
            [*CODEGEN, "--set", "tune", "--arch", "80,90", "--emit-to", str(folder)],
            cwd=ROOT,
            env={"PYTHONHASHSEED": str(seed)},
            check=True,
        )
    one, two = (
        {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        for folder in folders
    )
    assert one == two
    emitted = {config_header.PATH, *ops_header.emit_headers(), Path("config_map.cpp")}
    assert len(one) == len(emit.canonical_configs(named_set("tune"))) + len(emitted)
    assert emitted <= one.keys()


def test_emitting_again_leaves_unchanged_files_alone(tmp_path):
    arguments = [str(BEST), "--arch", "90", "--emit-to", str(tmp_path)]
    assert build_command(*arguments).exit_code == 0
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    before = {p.name: p.stat().st_mtime_ns for p in files}
    (tmp_path / "config_map.cpp").write_text("stale")
    again = build_command(*arguments)
    after = {p.name: p.stat().st_mtime_ns for p in files}
    assert {name for name in before if before[name] != after[name]} == {"config_map.cpp"}
    assert "pyflash_kernel_library" in (tmp_path / "config_map.cpp").read_text()
    assert "1 files written, 4 unchanged" in again.stdout


def test_every_config_has_its_own_file_and_text():
    assert len({emit.file_stem(config) for config in ALL_CONFIGS}) == len(ALL_CONFIGS)
    assert len({emit.emit_config(config) for config in ALL_CONFIGS}) == len(ALL_CONFIGS)
    assert all(re.fullmatch(r"[a-z0-9_]+", emit.file_stem(config)) for config in ALL_CONFIGS)


@pytest.mark.parametrize("arch", ARCHS, ids=str)
def test_ctas_per_sm_is_zero_exactly_where_the_config_is_not_legal(arch):
    for config in ALL_CONFIGS:
        (n_ctas,) = re.findall(rf"\{{{arch.sm}, (\d+)\}}", emit.emit_config(config))
        assert (int(n_ctas) == 0) == bool(config.violations(arch)), str(config)


def test_only_canonical_configs_are_emitted():
    same_kernel = BEST.replace(
        K_mma_load_K_tiles=0, V_mma_load_K_tiles=0, mma_double_buffer_loads=True
    )
    with pytest.raises(ValueError, match=re.escape(str(same_kernel.canonical()))):
        emit.emit_config(same_kernel)
    assert emit.canonical_configs([same_kernel, same_kernel.canonical()]) == [
        same_kernel.canonical()
    ]


def test_config_map_rows_are_in_order_and_name_their_archs_and_resources():
    older = BEST.replace(optimized_softmax=False)
    features = [Features(), Features.parse("softcap")]
    text = emit_config_map(
        {BEST: Row([Arch.of(80), Arch.of(90)], features), older: Row([Arch.of(80)], features[:1])}
    )
    assert re.findall(r"make_row\(\{(.*?)\}\),$", text, re.DOTALL | re.MULTILINE) == [
        f"""\
.short_form = "{config.short_form()}",
                .dtype = of_{emit.file_stem(config)}::kConfig.dtype,
                .d_head = of_{emit.file_stem(config)}::kConfig.d_head,
                .n_threads = {config.n_threads},
                .smem_bytes = {config.smem_bytes},
                .kernels = {{kernels_of_{emit.file_stem(config)}, {n}}},
                .ctas_per_sm = {{of_{emit.file_stem(config)}::kCtasPerSm, {len(ARCHS)}}},
                .sm_archs = "{archs}",
                .ptx_arch = {ptx},
                .rank = {rank(config)}}},
               of_{emit.file_stem(config)}::kConfig, {{of_{emit.file_stem(config)}::kBuilt, {n}"""
        for config, n, archs, ptx in ((older, 1, "80", 80), (BEST, 2, "80,90", 90))
    ]
    assert rank(named_set("all")[0]) < rank(older)


def test_the_memory_of_a_row_suffices_for_each_of_its_kernels():
    plain, fixed = Features(), Features.parse("fixed_splits")
    config = next(c for c in named_set("invariant") if c.smem_bytes_with(fixed) > c.smem_bytes)
    for features, smem in ((plain,), config.smem_bytes), ((plain, fixed), None):
        smem = smem or config.smem_bytes_with(fixed)
        assert f" .smem_bytes = {smem}}};\n" in emit.emit_config(config, features)
        row = emit_config_map({config: Row([Arch.of(90)], features)})
        assert f".smem_bytes = {smem},\n" in row


def test_machine_code_is_registered_by_the_names_of_its_kernels():
    code = Code("a config", "a", "objects/a/k/a.fatbin", ["_Z1a", "_Z1b"])
    text = emit_machine_code([code])
    assert '.incbin "objects/a/k/a.fatbin"\n' in text
    assert '    "_Z1a",\n    "_Z1b"});' in text
    assert "kernels_of_a[] = {of_a::kernels + 0, of_a::kernels + 1};" in text
    text = emit_machine_code([code._replace(makers={"sort": "_Z1s", "prepare": "_Z1p"})])
    assert '    "_Z1a",\n    "_Z1b",\n    "_Z1s",\n    "_Z1p"});' in text
    assert "kernels_of_a[] = {of_a::kernels + 0, of_a::kernels + 1};" in text
    found = dict.fromkeys(MAKERS, "nullptr")
    found |= {"prepare": "of_a::kernels + 3", "sort": "of_a::kernels + 2"}
    makers = ", ".join(f".{name} = {place}" for name, place in found.items())
    assert f"makers_of_a{{{makers}}};" in text


def test_members_of_makers_are_those_of_the_struct():
    header = (ROOT / "cute_kernels" / "variant" / "makers.h").read_text()
    assert tuple(re.findall(r"^  void const\* (\w+);", header, re.MULTILINE)) == MAKERS


def test_kernels_of_a_row_are_in_the_order_of_its_features(tmp_path, monkeypatch):
    """Also of combinations of as many features, whose order is that in which they were asked for,
    whatever order the compiler reports them in."""
    monkeypatch.setenv("PYFLASH_CACHE_DIR", str(tmp_path))
    features = [Features.parse(name) for name in ("plain", "sinks", "right_window", "softcap")]
    names = {f: f"_Z{i}15ForwardFeatures{_flags(f)}E" for i, f in enumerate(features)}
    for reported in itertools.permutations(names.values()):
        record = {"kernels": [{"function": name} for name in (*reported, *reported)]}
        compiled = SimpleNamespace(label="k", stem="k", object=tmp_path / "k.fatbin", record=record)
        row = Row([Arch.of(90)], features)
        text = library_objects.compiled_code({BEST: compiled}, {BEST: row}).text
        order = [text.index(f'"{names[f]}"') for f in features]
        assert order == sorted(order)


def test_kernels_that_make_lists_are_told_from_those_with_features(tmp_path, monkeypatch):
    monkeypatch.setenv("PYFLASH_CACHE_DIR", str(tmp_path))
    kernel = f"_ZN7pyflash1kIN7variant4listE15ForwardFeatures{_flags(Features())}EE"
    makers = ["_ZN7pyflash7variant7prepareIvEEvT_", "_ZN7pyflash7variant11list_blocksIvEEvT_"]
    makers += ["_ZN7pyflash7variant12judge_blocksIvEEvT_"]
    for reported in itertools.permutations([kernel, *makers]):
        record = {"kernels": [{"function": name} for name in reported]}
        compiled = SimpleNamespace(label="k", stem="k", object=tmp_path / "k.fatbin", record=record)
        pair = BEST, named("alibi").variant
        rows = {pair: Row([Arch.of(90)], [Features()])}
        text = library_objects.compiled_variant_code({pair: compiled}, rows).text
        found = dict(enumerate(re.findall(r'^    "(\w+)"', text, re.MULTILINE)))
        (place,) = re.findall(r"kernels_of_k\[\] = \{of_k::kernels \+ (\d)\}", text)
        assert found[int(place)] == kernel
        places = re.findall(r"\.(\w+) = of_k::kernels \+ (\d)", text)
        assert {name: found[int(i)] for name, i in places} == {
            "prepare": makers[0],
            "list": makers[1],
            "judge": makers[2],
        }
        assert ".sort = nullptr" in text


def _flags(features: Features) -> str:
    return "".join(f"Lb{int(getattr(features, name))}E" for name in Features.names())


def test_a_library_names_everything_that_it_has():
    text = (ROOT / "cute_kernels" / "kernel_library.cu").read_text()
    header = (ROOT / "cute_kernels" / "registry.h").read_text()
    struct = re.search(r"struct KernelLibrary \{(.*?)\n\n", header, re.DOTALL)[1]
    members = re.findall(r"\(\*(\w+)\)|\b(\w+);", re.sub("//.*", "", struct))
    assert len(members) > 3
    assert re.findall(r"\.(\w+) = ", text.split("KernelLibrary make_library(")[1]) == [
        function or value for function, value in members
    ]


def test_the_config_map_has_the_rows_of_every_op():
    text = emit_config_map({BEST: Row([Arch.of(90)], [Features()])})
    spans = re.findall(r"RowsOf<(\w+)>\{(\w*)", text)
    assert spans == [(op.struct, f"{op.name}_rows" if op is FORWARD else "") for op in OPS]


def test_needs_neither_torch_nor_a_compiled_module():
    code = (
        "import sys, pyflash.codegen.emit, pyflash.codegen.build, pyflash.commands.build\n"
        "assert not {'torch', 'numpy'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def notes_of(*arguments: str) -> dict[str, list[str]]:
    """What `--list` says below each config."""
    notes: dict[str, list[str]] = {}
    for line in build_command(*arguments, "--list").stdout.splitlines():
        if line.startswith("  "):
            notes[list(notes)[-1]].append(line.strip())
        else:
            notes[line] = []
    return notes


def test_list_tells_where_a_variant_has_no_room():
    config = "(BF16, 64, 256, 64, 4): sm90+stages_4+overlap+persistent+rescale_threshold"
    of_alibi, of_causal = (
        notes_of(config, "--arch", "90", "--variant", name)[config] for name in ("alibi", "causal")
    )
    assert of_alibi[:-1] == of_causal
    assert "with scores by position, takes about" in of_alibi[-1]


def test_list_names_every_config_of_the_set():
    listed = notes_of("--set", "prog", "--arch", "90")
    assert list(listed) == [str(config) for config in named_set("prog")]
    for config, (takes, *warnings) in zip(named_set("prog"), listed.values(), strict=True):
        registers = config.resources(90).registers
        ctas = config.num_ctas_per_sm(90)
        assert takes == f"{registers} registers, CTAs per SM: {ctas} on sm_90"
        assert warnings == [f"sm_90: {sentence}" for _, sentence in config.warnings(90)]
    assert any(config.warnings(90) for config in named_set("prog_all"))


def test_list_says_what_speaks_against_a_config():
    config = BEST.replace(B_r=128, B_c=128)  # S and O accumulators of 256 registers
    (notes,) = notes_of(str(config), "--arch", "86").values()
    for _, sentence in config.violations(86):
        assert f"sm_86: {sentence}" in notes
    assert config.violations(86)


def test_list_says_the_same_of_several_architectures_once():
    """Without --arch: of the architectures that run a config, and which do not."""
    config = BEST.replace(B_r=128)
    takes = notes_of(str(config))[str(config)][0]
    assert all(config.is_legal(arch) == (arch.name in takes) for arch in ARCHS)
    hopper = named_set("sm90")[0]
    assert notes_of(str(hopper))[str(hopper)][1:] == [
        "not on sm_80, sm_86, sm_89, sm_100, sm_120: --arch says why"
    ]
    asked = notes_of(str(hopper), "--arch", "80,86,89")[str(hopper)]
    assert len([line for line in asked if line.startswith("sm_80, sm_86, sm_89: ")]) > 0
