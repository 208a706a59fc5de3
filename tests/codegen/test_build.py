"""The build: what is compiled again and what is not, what is refused, whose error an error is."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from pyflash import FlashForwardKernelConfig
from pyflash.codegen import build, compilation, emit, library_objects, toolchain
from pyflash.codegen.build import (
    BuildError,
    build_kernels,
    built_resources,
    default_archs,
    legal_archs,
)
from pyflash.codegen.compilation import Compilation, Compiler, compile_all
from pyflash.codegen.config_map import Row, emit_config_map
from pyflash.config import Features
from pyflash.config.arch import Arch, targets

BEST = FlashForwardKernelConfig.parse(
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
)
ILLEGAL = BEST.replace(B_r=128, B_c=128)  # S and O accumulators of 256 registers
OTHER = BEST.replace(optimized_softmax=False)

GOOD_CPP = "int answer() { return 42; }\n"
BAD_CPP = "int answer() { return forty_two; }\n"


@pytest.fixture(autouse=True)
def own_cache(request, tmp_path, monkeypatch):
    """Each test compiles for itself; only what takes minutes shares the user's cache."""
    if not {"built_library", "users_cache"} & set(request.fixturenames):
        monkeypatch.setenv("PYFLASH_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def users_cache():
    """For what links the objects that all kernel libraries share, which take nvcc half a minute."""


@pytest.fixture
def counting(tmp_path):
    """A compiler that is g++ and counts its runs."""
    runs = tmp_path / "runs"
    script = tmp_path / "counting-g++"
    script.write_text(f'#!/bin/sh\necho run >> "{runs}"\nsleep 0.2\nexec g++ "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    compiler = Compiler((str(script),), ("-O0",), (), "g++ of this machine", ".cpp")
    return compiler, lambda: len(runs.read_text().splitlines()) if runs.exists() else 0


def source(text: str, compiler: Compiler, label: str = "answer") -> Compilation:
    return Compilation(label=label, stem=label, text=text, compiler=compiler)


# Reuse


def test_an_object_is_compiled_once(counting):
    compiler, n_runs = counting
    assert compile_all([source(GOOD_CPP, compiler)], "test") == []
    assert compile_all([source(GOOD_CPP, compiler)], "test") == []
    assert n_runs() == 1
    assert source(GOOD_CPP, compiler).object.stat().st_size > 0


def test_touching_files_changes_no_key_and_editing_them_does(tmp_path, monkeypatch):
    """Pitfall 21: stale build cache."""
    monkeypatch.setattr(compilation, "ROOT", tmp_path)
    header = tmp_path / "cute_kernels" / "b.h"
    header.parent.mkdir()
    (tmp_path / "cute_kernels" / "a.h").write_text('#include "cute_kernels/b.h"\n')
    header.write_text("#define B 1\n")
    compiler = toolchain.cpp_compiler()
    text = '#include "cute_kernels/a.h"\n'

    def key(text=text, compiler=compiler):
        return source(text, compiler).key

    original = key()
    os.utime(header, (1, 1))
    assert key() == original
    header.write_text("#define B 2\n")
    assert key() != original
    header.write_text("#define B 1\n")
    assert key() == original
    assert key(text=text + "// more\n") != original
    assert key(compiler=dataclasses.replace(compiler, flags=("-O0",))) != original
    assert key(compiler=dataclasses.replace(compiler, identity="another g++")) != original
    assert key(compiler=dataclasses.replace(compiler, includes=("-I", "/elsewhere"))) == original


def test_the_same_sources_have_the_same_key_wherever_they_and_the_cache_lie(tmp_path, monkeypatch):
    """As those of a source distribution, which are compiled in a folder of its own."""
    keys, original = set(), compilation.ROOT
    for checkout, cache in (("a", "b"), ("c", "b"), ("c", "d")):
        root = tmp_path / checkout
        shutil.copytree(original / "cute_kernels", root / "cute_kernels", dirs_exist_ok=True)
        monkeypatch.setenv("PYFLASH_CACHE_DIR", str(tmp_path / cache))
        for module in (compilation, toolchain):
            monkeypatch.setattr(module, "ROOT", root)
        path = root / "cute_kernels" / "host" / "config_map.cpp"
        keys.add(Compilation.of_file(path, toolchain.cpp_compiler()).key)
    assert len(keys) == 1


def test_a_kernel_depends_on_the_headers_that_nvcc_would_read():
    compiler = toolchain.kernel_compiler(targets([Arch.of(90)]), "")
    emitted = source(emit.emit_config(BEST), compiler)
    emitted.source.parent.mkdir(parents=True)
    emitted.source.write_text(emitted.text)
    listing = subprocess.run(
        [*compiler.command, "-std=c++20", *compiler.includes, "-MM", str(emitted.source)],
        capture_output=True,
        text=True,
        check=True,
    )
    roots = tuple(f"{folder / 'cute_kernels'}/" for folder in compiler.include_dirs)
    read = {word for word in re.split(r"[\s\\]+", listing.stdout) if word.startswith(roots)}
    # What the preprocessor skips counts as read.
    skipped = {f"{roots[0]}config_description.h"}
    assert read | skipped == {str(path) for path in emitted.files}
    assert {f"{roots[0]}sm80/forward/kernel.h", f"{roots[1]}generated/configs.h"} <= read


def test_two_builders_at_once_compile_once(counting):
    """Pitfall 22: concurrent builders."""
    compiler, n_runs = counting
    threads = [
        threading.Thread(target=compile_all, args=([source(GOOD_CPP, compiler)], "test"))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert n_runs() == 1


def test_support_of_a_library_is_compiled_for_the_archs_of_its_configs():
    """What merges splits is a kernel too."""
    archs_of = {BEST: [Arch.of(80), Arch.of(90)], OTHER: [Arch.of(86)]}
    row_of = {
        config: Row(archs, config.family.built_features(config))
        for config, archs in archs_of.items()
    }
    config_map, *cuda = library_objects.support(row_of)
    assert config_map.text == emit_config_map(row_of)
    assert "merge_splits.cu" in [c.label for c in cuda]
    for c in cuda:
        codes = [option for option in c.command if option.startswith("-gencode")]
        assert [code.partition(",code=")[2] for code in codes] == [
            "sm_80",
            "sm_86",
            "[sm_90,compute_90]",
        ]


def test_archs_and_flags_are_part_of_the_key():
    (one,) = build.kernel_compilations({BEST: [Arch.of(90)]}).values()
    (both,) = build.kernel_compilations({BEST: [Arch.of(80), Arch.of(90)]}).values()
    assert one.text == both.text
    assert one.key != both.key
    assert "-gencode=arch=compute_80,code=sm_80" in both.command
    assert "-gencode=arch=compute_90,code=[sm_90,compute_90]" in both.command


def test_kernels_without_lines_for_a_profiler_differ_in_that_flag_alone():
    """As those of a wheel."""
    archs_of = {BEST: [Arch.of(80), Arch.of(90)]}
    (lines,) = build.kernel_compilations(archs_of).values()
    (none,) = build.kernel_compilations(archs_of, line_info=False).values()
    assert set(lines.compiler.flags) - set(none.compiler.flags) == {"-lineinfo"}
    assert len(lines.compiler.flags) == len(none.compiler.flags) + 1
    assert (lines.text, lines.key == none.key) == (none.text, False)


def test_an_architecture_without_machine_code_takes_the_ptx_of_an_older_one():
    (one,) = build.kernel_compilations({BEST: [Arch.of(90)]}).values()
    (both,) = build.kernel_compilations({BEST: [Arch.of(90), Arch.of(120)]}).values()
    assert one.key == both.key
    (ptx,) = build.kernel_compilations({BEST: [Arch.of(120)]}).values()
    codes = [option for option in ptx.command if option.startswith("-gencode")]
    assert codes == ["-gencode=arch=compute_90,code=compute_90"]


def test_a_family_of_one_architecture_has_its_own_target():
    codes = toolchain._gencode(targets([Arch.of(90)], suffix="a"))
    assert codes == ["-gencode=arch=compute_90a,code=sm_90a"]


# Failures


def test_one_error_is_its_own_and_the_others_go_on(counting):
    """Pitfall 23: one crashing candidate stops the rest. Here the compiler fails on one."""
    compiler, _ = counting
    bad, good = source(BAD_CPP, compiler, "the bad one"), source(GOOD_CPP, compiler, "the good one")
    assert compile_all([bad, good], "test") == [bad]
    assert good.object.exists()
    assert not bad.object.exists()
    message = str(BuildError([bad], 2))
    assert "1 of 2 did not compile" in message
    assert "the bad one" in message
    assert "forty_two" in message
    assert str(bad.log) in message
    assert "the good one" not in message


def test_what_failed_is_not_said_to_be_done(counting, monkeypatch):
    said = []
    monkeypatch.setattr(compilation.console, "print", lambda line, **_: said.append(line))
    compiler, _ = counting
    compile_all([source(BAD_CPP, compiler, "the bad one")], "test")
    assert re.fullmatch(r"\[1/1\] \d+ s, 1 failed: the bad one FAILED", said[-1])


def test_how_long_a_build_may_take_is_told_from_what_was_compiled(monkeypatch):
    said = []
    monkeypatch.setattr(compilation.console, "print", lambda line, **_: said.append(line))
    monkeypatch.setattr(compilation, "_run_ninja", lambda *_: None)
    monkeypatch.setattr(compilation, "max_jobs", lambda: 2)
    (of_config,) = build.kernel_compilations({BEST: [Arch.of(80), Arch.of(90)]}).values()
    n_kernels = 2 * len(BEST.family.built_features(BEST))
    assert of_config.n_kernels == n_kernels
    compile_all([of_config], "test")
    assert said.pop() == "test: compiling 1, 2 at a time, reusing 0"
    for i, seconds in enumerate((4.0, 8.0)):  # of two kernels each
        record = compilation.cache_dir() / "objects" / "x" / str(i) / "x.json"
        record.parent.mkdir(parents=True)
        record.write_text(json.dumps({"seconds": seconds, "kernels": [{}, {}]}))
    compile_all([of_config], "test")
    assert said.pop() == f"test: compiling 1, 2 at a time, reusing 0, about {3 * n_kernels} s"


@pytest.mark.usefixtures("users_cache")
def test_a_config_that_does_not_compile_is_named_and_the_rest_linked_if_asked(
    tmp_path, monkeypatch
):
    """With empty kernels in the units, so that nvcc is done with them in seconds."""

    def emit_empty(config, features):
        error = "#error no such tile\n" if config == OTHER else ""
        kernels = "\n".join(
            f"auto const kernel_{i} = &empty<{f.to_cpp()}>;" for i, f in enumerate(features)
        )
        return f"""{error}#include "cute_kernels/features.h"
            template <ForwardFeatures f> __global__ void empty() {{}}
            {kernels}"""

    monkeypatch.setattr(emit, "emit_config", emit_empty)
    with pytest.raises(BuildError) as stopped:
        build_kernels([BEST, OTHER], ["sm_90"], tmp_path, "some")
    assert stopped.value.library is None
    assert not list(tmp_path.glob("*.so"))
    assert f"{OTHER}\n" in str(stopped.value)
    assert "no such tile" in str(stopped.value)

    with pytest.raises(BuildError) as went_on:
        build_kernels([BEST, OTHER], ["sm_90"], tmp_path, "some", keep_going=True)
    library = went_on.value.library
    assert library == tmp_path / "libpyflash_kernels-some.so"
    assert list(built_resources(library)) == [BEST]


# Refusals before any compiler runs


@pytest.fixture
def no_compiler(monkeypatch):
    def refuse(*_):
        raise AssertionError("a compiler was asked for")

    monkeypatch.setattr(toolchain, "kernel_compiler", refuse)
    monkeypatch.setattr(build, "compile_all", refuse)


@pytest.mark.usefixtures("no_compiler")
def test_illegal_configs_are_refused_with_every_violation():
    with pytest.raises(ValueError, match="1 config cannot be built") as refusal:
        build_kernels([BEST, ILLEGAL], ["sm_80", "sm_90"])
    for arch in ("sm_80", "sm_90"):
        for _, sentence in ILLEGAL.violations(arch):
            assert f"{ILLEGAL} on {arch}: {sentence}" in str(refusal.value)
    assert str(BEST) not in str(refusal.value)


@pytest.mark.usefixtures("no_compiler")
def test_nothing_to_build_is_refused(monkeypatch):
    monkeypatch.delenv("PYFLASH_ARCHS", raising=False)
    monkeypatch.setattr(build, "machine_archs", list)
    with pytest.raises(ValueError, match="no configs"):
        build_kernels([], ["sm_90"])
    with pytest.raises(ValueError, match="set PYFLASH_ARCHS"):
        build_kernels([BEST])
    with pytest.raises(ValueError, match="sm_70"):
        build_kernels([BEST], ["sm_70"])


def test_equivalent_configs_are_built_once():
    same_kernel = BEST.replace(K_mma_load_K_tiles=0, V_mma_load_K_tiles=0)
    buffered = same_kernel.replace(mma_double_buffer_loads=True)
    assert legal_archs([same_kernel, buffered], ["90", 80]) == {
        same_kernel: [Arch.of(80), Arch.of(90)]
    }


# The machine


def test_default_archs(monkeypatch):
    monkeypatch.setenv("PYFLASH_ARCHS", "80, 90")
    assert default_archs() == [Arch.of(80), Arch.of(90)]
    monkeypatch.setenv("PYFLASH_ARCHS", "")
    monkeypatch.setattr(build, "machine_archs", lambda: [90])
    assert default_archs() == []
    monkeypatch.delenv("PYFLASH_ARCHS")
    # A GPU newer than any known one runs the PTX of the newest known; one too old runs nothing.
    cases = [([86], [86]), ([90, 121], [90, 120]), ([110], [100]), ([75], []), ([], [])]
    for found, expected in cases:
        monkeypatch.setattr(build, "machine_archs", lambda found=found: found)
        assert default_archs() == [Arch.of(sm) for sm in expected]


@pytest.mark.parametrize(
    ("gib", "n_cores", "n_jobs"), [(64, 8, 8), (9, 8, 2), (2, 8, 1), (64, 1, 1)]
)
def test_jobs_fit_cores_and_memory(monkeypatch, gib, n_cores, n_jobs):
    """Pitfall 1: builds of hours, memory exhausted."""
    monkeypatch.setattr(compilation, "available_memory", lambda: gib << 30)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(n_cores)))
    assert compilation.max_jobs() == n_jobs


# What was built


def test_configs_are_in_their_library_with_a_record_of_each(built_library: Path, library_configs):
    built = built_resources(built_library)
    assert list(built) == emit.canonical_configs(library_configs)
    for config, record in built.items():
        functions = [kernel["function"] for kernel in record["kernels"]]
        assert sorted(map(Features.of_kernel, functions)) == sorted(
            config.family.built_features(config)
        )
        for kernel in record["kernels"]:
            assert kernel["arch"] == 90
            assert 32 <= kernel["registers"] <= 255, str(config)
        assert record["seconds_by_arch"].keys() == {"90", "host"}
        assert sum(record["seconds_by_arch"].values()) <= record["seconds"] + 0.1
    json.loads(built_library.with_suffix(".json").read_text())


def test_a_kernel_library_exports_rows_and_helpers_and_needs_no_cuda_library(
    built_library: Path,
):
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", built_library], capture_output=True, text=True, check=True
    )
    exported = sorted(line.split()[-1] for line in symbols.stdout.splitlines())
    assert exported == [
        "pyflash_append_rows",
        "pyflash_find_slots",
        "pyflash_kernel_library",
        "pyflash_merge_states",
    ]
    needs = subprocess.run(["readelf", "-d", built_library], capture_output=True, text=True)
    libraries = re.findall(r"NEEDED.*\[(.+?)\]", needs.stdout)
    assert libraries
    assert not [name for name in libraries if "cuda" in name or "torch" in name]
