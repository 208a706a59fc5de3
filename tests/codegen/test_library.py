"""Libraries as they are built: what the config map says of kernels is what the configs say, and the
op library asks no more of torch than every version has. What is no kernel library is refused."""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.fake_library import build_fake_library
from support.headers import ROOT

import pyflash
from pyflash import named_set
from pyflash.codegen import build
from pyflash.codegen.emit import canonical_configs
from pyflash.config import Features
from pyflash.config.sets import rank
from pyflash.op.library import LIB_DIR


def test_the_config_map_of_a_library(built_library, built_arch, library_configs):
    configs = canonical_configs(library_configs)
    assert pyflash.load(built_library) == len(configs)
    built = pyflash.built_configs()
    for config in configs:
        assert built[config] == pyflash.BuiltConfig(
            config,
            features=Features.in_dispatch_order(config.family.built_features(config)),
            sm_archs=(str(built_arch.sm),),
            ptx_arch=built_arch.sm,
            n_threads=config.n_threads,
            smem_bytes=config.smem_bytes,
            rank=rank(config),
        )


def test_build_adds_to_the_config_map_of_the_process(built_arch, monkeypatch):
    """A second build only loads."""
    config = named_set("prog")[0]
    twin = config.replace(mma_double_buffer_loads=True)
    assert twin.canonical() == config
    assert pyflash.build([config, twin], [built_arch], "plain") == 1
    monkeypatch.setattr(build, "compile_all", None)
    assert pyflash.build(twin, [built_arch], "plain") == 1
    assert pyflash.built_configs()[config].sm_archs == (str(built_arch.sm),)


def undefined_symbols() -> set[str]:
    command = ["nm", "-D", "--undefined-only", str(LIB_DIR / "libpyflash_ops.so")]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in listing.splitlines()}


def test_no_symbol_of_one_torch_version_is_needed():
    """Pitfall 3: undefined symbol after a torch upgrade. Only C functions of torch 2.10."""
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


def test_the_op_library_exports_nothing():
    command = ["nm", "-D", "--defined-only", str(LIB_DIR / "libpyflash_ops.so")]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == ""


def test_a_copy_of_libstdcxx_in_the_op_library_is_its_own(tmp_path: Path, monkeypatch):
    """Some linkers find libstdc++ as an archive alone. Numbers then vanished from sentences, or the
    process ended, since the copy shared some of its symbols with the libstdc++ of torch."""
    link = build.link

    def link_with_a_copy(library, objects, options, record):
        return link(library, objects, [*options, "-static-libstdc++"], record)

    monkeypatch.setattr(build, "link", link_with_a_copy)
    library = build.build_ops(tmp_path)
    needed = ["readelf", "-d", str(library)]
    assert "libstdc++" not in subprocess.run(needed, capture_output=True, text=True).stdout
    code = (
        f"import torch; torch.ops.load_library({str(library)!r})\n"
        "print(torch.ops.pyflash.kernel_library_abi())"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.stdout.strip() == build.abi(), child.stderr


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
    with pytest.raises(RuntimeError, match=r"cannot be read: No such file.*expected the path"):
        pyflash.load(tmp_path / "missing.so")
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(RuntimeError, match=r"text\.so' is cut off, or was not built by"):
        pyflash.load(tmp_path / "text.so")


def test_the_abi_version_is_of_these_structs():
    """A kernel library that is as old as other structs would read a problem where it is not."""
    code = ""
    names = ("features.h", "forward.h", "op.h", "params.h", "registry.h", "backward.h")
    names += ("backward_shape.h", "attention_gradients.h")
    names += ("backward_params.h", "variant_row.h", "variant/arguments.h", "append.h", "slots.h")
    names += ("lasting_memory.h",)
    common = ("dropout", "kv_source", "mask", "sequence", "shares", "tile_list")
    for name in (*names, *(f"common/{name}.h" for name in common)):
        text = (ROOT / "cute_kernels" / name).read_text()
        code += re.sub(r"//.*|\s+", "", text)
    (version,) = re.findall(r"kKernelLibraryAbi=(\d+);", code)
    digest = hashlib.sha256(code.encode()).hexdigest()[:16]
    assert (version, digest) == ("37", "6b4f1a7a178f8be7"), (
        "structs changed: raise kKernelLibraryAbi in registry.h, and put both here"
    )
