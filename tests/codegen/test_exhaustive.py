"""A kernel family or a feature that C++ does not know yet: what forgets it does not compile."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest
from support.headers import ROOT, includes
from support.toy_family import TOY_FAMILY

from pyflash.codegen import config_header
from pyflash.codegen.config_header import emit_config_header
from pyflash.codegen.ops_header import emit_headers
from pyflash.config import FAMILIES, Features
from pyflash.config.features import NAMES
from pyflash.third_party import cuda, cutlass

LIBRARY = "kernel_library.cu"
# What asks a family for more than the fields that all have.
ASKING = {LIBRARY, "host/grid.cpp", "host/cpu_forward.cpp"}
HOST = {f"host/{path.name}" for path in ROOT.glob("cute_kernels/host/*.cpp")}
NAMED_ALIKE = {f"host/{n}.cpp" for n in ("cpu_forward", "grid", "tuned", "variant_program")}
FEATURES = Path("cute_kernels") / "features.h"
CHECK = ["g++", "-std=c++20", "-fsyntax-only", "-x", "c++"]


ANSWERS = {
    TOY_FAMILY.host_header: """
#include "cute_kernels/forward.h"
namespace pyflash {
constexpr TileShape tile_shape(ToyKernelConfig const& config) { return {config.B_r, config.B_c}; }
constexpr bool optimized_softmax(ToyKernelConfig const&) { return true; }
}
""",
    TOY_FAMILY.launcher_header: """
#include <cuda_runtime_api.h>
#include "cute_kernels/registry.h"
namespace pyflash {
inline cudaError_t launch_kernel(void const*, ToyKernelConfig const&, ConfigMapRow<Forward> const&,
                                 ForwardParams const&, cudaStream_t) { return cudaSuccess; }
inline ProblemRefusal<Forward> refusal_of(ToyKernelConfig const&) { return nullptr; }
}
""",
}
# Each overload, and who asks for it.
OVERLOADS = [
    ("tile_shape", "host/grid.cpp"),
    ("tile_shape", LIBRARY),
    ("optimized_softmax", "host/cpu_forward.cpp"),
    ("launch_kernel", LIBRARY),
    ("refusal_of", LIBRARY),
]


def compile_for(families, folder: Path, source: str, without: str = "") -> str:
    """What the compiler says of a source where these are all families, and the toy has every
    overload but the one named `without`; "": it compiles."""
    emitted = {config_header.PATH: emit_config_header(families)} | emit_headers(families)
    answers = {
        Path(path): "#pragma once\n" + text.replace(f"{without}(", "other(") if without else text
        for path, text in ANSWERS.items()
    }
    for path, text in (emitted | answers).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    options = [f"-I{ROOT}", f"-I{folder}"]
    if source == LIBRARY:
        try:
            folders = [cutlass.include_dir(), *cuda.include_dirs()]
        except (cuda.CudaError, cutlass.CutlassError) as error:
            pytest.skip(str(error))
        options += [option for path in folders for option in ("-isystem", str(path))]
    command = [*CHECK, *options, str(ROOT / "cute_kernels" / source)]
    result = subprocess.run(command, capture_output=True, text=True)
    return result.stderr if result.returncode else ""


@pytest.mark.parametrize("source", sorted(ASKING))
def test_what_asks_families_compiles_for_those_that_there_are(tmp_path, source):
    assert compile_for(FAMILIES, tmp_path, source) == ""


@pytest.mark.parametrize(("overload", "source"), OVERLOADS)
def test_nothing_compiles_that_asks_a_new_family_for_an_overload_that_it_lacks(
    tmp_path, overload, source
):
    said = compile_for((*FAMILIES, TOY_FAMILY), tmp_path, source, without=overload)
    assert TOY_FAMILY.struct in said
    assert overload in said


def test_every_source_that_asks_is_judged():
    assert {source for _, source in OVERLOADS} == ASKING
    asked = {overload for overload, _ in OVERLOADS}
    for path in (LIBRARY, *HOST):
        text = (ROOT / "cute_kernels" / path).read_text()
        assert (path in ASKING) == any(f"{overload}(c" in text for overload in asked), path


def test_a_new_family_that_answers_needs_no_edit_elsewhere(tmp_path):
    """In one unit, but for sources of which two have a name for themselves: those, and all where
    that does not compile, are units of their own."""
    families, together = (*FAMILIES, TOY_FAMILY), sorted(HOST - NAMED_ALIKE)
    unit = tmp_path / "together.cpp"
    unit.write_text("".join(f'#include "cute_kernels/{source}"\n' for source in together))
    apart = [*sorted(NAMED_ALIKE), LIBRARY]
    if compile_for(families, tmp_path, str(unit)):
        apart += together
    said = {source: compile_for(families, tmp_path, source) for source in apart}
    assert {source: errors for source, errors in said.items() if errors} == {}


def test_no_source_asks_whether_a_config_is_of_one_family():
    """Whatever is not asked for would be a default."""
    sources = [*ROOT.glob("cute_kernels/**/*.h"), *ROOT.glob("cute_kernels/**/*.c*")]
    assert len(sources) > len(HOST)
    for path in sources:
        text = path.read_text()
        assert not any(word in text for word in ("get_if<", "holds_alternative<")), path


def compile_features(folder: Path, features: str, code: str = "") -> str:
    header = folder / FEATURES
    header.parent.mkdir(parents=True)
    header.write_text(features)
    source = folder / "source.cpp"
    source.write_text(f'#include "cute_kernels/features.h"\n{code}\n')
    command = [*CHECK, f"-I{folder}", *includes(), str(source)]
    result = subprocess.run(command, capture_output=True, text=True)
    return result.stderr if result.returncode else ""


def with_member(features: str) -> str:
    last = "  bool sinks = false;\n"
    assert features.count(last) == 1
    return features.replace(last, f"{last}  bool alibi = false;\n")


def test_a_feature_that_is_in_no_list_does_not_compile(tmp_path):
    features = (ROOT / FEATURES).read_text()
    assert compile_features(tmp_path / "as it is", features) == ""
    assert "static assertion failed" in compile_features(tmp_path / "more", with_member(features))


def test_a_feature_that_is_listed_twice_does_not_compile(tmp_path):
    features = (ROOT / FEATURES).read_text()
    assert features.count('"sinks", &ForwardFeatures::sinks') == 1
    twice = features.replace("&ForwardFeatures::sinks", "&ForwardFeatures::softcap")
    assert "static assertion failed" in compile_features(tmp_path, twice)


EVERY = """
#include <cstdio>
#include <iterator>
#include <string_view>
constexpr std::string_view kNames[] = {%(names)s};
static_assert(std::size(ForwardFeatures::kMembers) == std::size(kNames));
constexpr bool are_named_in_order() {
  for (auto i = 0u; i < std::size(kNames); ++i) {
    if (ForwardFeatures::kMembers[i].name != kNames[i]) return false;
  }
  return true;
}
static_assert(are_named_in_order());
constexpr ForwardFeatures kEvery[] = {%(every)s};
static_assert(pyflash::covers(kEvery[1], kEvery[1]) && pyflash::count_features(kEvery[1]) == 1);
int main() {
  for (auto const& kernel : kEvery) {
    std::printf("%%d ", pyflash::count_features(kernel));
    for (auto const& needed : kEvery) std::putchar(pyflash::covers(kernel, needed) ? '1' : '0');
    std::putchar('\\n');
  }
}
"""


def test_features_are_counted_and_compared_by_all_of_their_members(tmp_path):
    """All pairs, in a program: as assertions a million take the compiler minutes."""
    every = [Features(*flags) for flags in itertools.product((False, True), repeat=len(NAMES))]
    names = ", ".join(f'"{name}"' for name in NAMES)
    literals = ",\n".join(kernel.to_cpp() for kernel in every)
    source, program = tmp_path / "every.cpp", tmp_path / "every"
    code = EVERY % {"names": names, "every": literals}
    source.write_text(f'#include "{FEATURES}"\n{code}')
    command = ["g++", "-std=c++20", "-O1", f"-I{ROOT}", *includes(), str(source), "-o", program]
    subprocess.run(command, check=True)
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    lines = said.splitlines()
    assert len(lines) == len(every)
    for kernel, line in zip(every, lines, strict=True):
        covered = "".join("01"[kernel.covers(needed)] for needed in every)
        assert line == f"{sum(getattr(kernel, name) for name in NAMES)} {covered}", str(kernel)
