"""The same GEMMs without a profiler: CUTLASS's own generator emits the kernels, pyflash compiles
and times them.

`cutlass_library`, a part of the nvidia-cutlass wheel, is what the profiler's kernels are made by:
an operation here has the name, and is the kernel, that it has in a profiler's CSV.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflash.bench import profiler_csv
from pyflash.bench.profiler_csv import Profile, measured_cells
from pyflash.bench.work import DTYPE_NAMES, Gemm
from pyflash.codegen import seal, toolchain
from pyflash.codegen.build import BuildError
from pyflash.codegen.cache_dir import cache_dir
from pyflash.codegen.compilation import Compilation, compile_all
from pyflash.codegen.linking import link, reusable
from pyflash.config.arch import Arch, Targets
from pyflash.third_party.cuda import find_nvcc
from pyflash.third_party.cutlass import include_dir

if TYPE_CHECKING:
    import torch

PROVIDER = "cutlass_library"

# A few of the tiles that CUTLASS's profiler has kernels of: cta_m x cta_n _ cta_k x stages; with
# SM90 atoms cta_m x cta_n x cta_k _ cluster, and the schedule. The third of SM80 is for d_head 64.
SM80_TILES = ("128x128_32x5", "256x128_64x3", "128x64_64x3")
SM90_TILES = (
    ("128x128x64_2x1x1", "pingpong"),
    ("128x256x64_2x1x1", "cooperative"),
    ("256x128x64_2x1x1", "cooperative"),
)

_UNIT = """\
// {name}
{includes}
#include "cutlass/gemm/device/gemm_universal_adapter.h"
{instance}
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<{name}>;
{arguments}
// Bytes of workspace, or -1 where the kernel cannot run the problem.
extern "C" __attribute__((visibility("default"))) int64_t pyflash_gemm_workspace(
    int m, int n, int k, int batch_count) {{
  auto const arguments = arguments_of(nullptr, nullptr, nullptr, m, n, k, batch_count);
  if (Gemm::can_implement(arguments) != cutlass::Status::kSuccess) {{
    return -1;
  }}
  return Gemm::get_workspace_size(arguments);
}}

// D = A B; 0, or a cutlass::Status.
extern "C" __attribute__((visibility("default"))) int pyflash_gemm(
    void* a, void* b, void* d, int m, int n, int k, int batch_count, void* workspace,
    void* stream) {{
  Gemm gemm;
  auto const cuda_stream = static_cast<cudaStream_t>(stream);
  auto const arguments = arguments_of(a, b, d, m, n, k, batch_count);
  cutlass::Status const status = gemm.initialize(arguments, workspace, cuda_stream);
  return static_cast<int>(status == cutlass::Status::kSuccess ? gemm.run(cuda_stream) : status);
}}
"""

# A row-major, D column-major; B as the GEMM says.
_ARGUMENTS_2X = """\
static Gemm::Arguments arguments_of(void* a, void* b, void* d, int m, int n, int k,
                                    int batch_count) {{
  int64_t const a_elements = int64_t(m) * k, b_elements = int64_t(k) * n;
  int64_t const d_elements = int64_t(m) * n;
  return {{cutlass::gemm::GemmUniversalMode::kBatched, {{m, n, k}}, batch_count, {{1.0f, 0.0f}},
          a, b, d, d, a_elements, b_elements, d_elements, d_elements, k, {ldb}, m, m}};
}}
"""
_ARGUMENTS_3X = """\
#include "cutlass/util/packed_stride.hpp"

static Gemm::Arguments arguments_of(void* a, void* b, void* d, int m, int n, int k,
                                    int batch_count) {
  using Kernel = Gemm::GemmKernel;
  auto const packed = [](auto stride, int rows, int columns, int count) {
    return cutlass::make_cute_packed_stride(stride, cute::make_shape(rows, columns, count));
  };
  auto const stride_d = packed(Kernel::StrideD{}, m, n, batch_count);
  Gemm::Arguments arguments{
      cutlass::gemm::GemmUniversalMode::kGemm,
      {m, n, k, batch_count},
      {static_cast<Kernel::ElementA*>(a), packed(Kernel::StrideA{}, m, k, batch_count),
       static_cast<Kernel::ElementB*>(b), packed(Kernel::StrideB{}, n, k, batch_count)},
      {{}, static_cast<Kernel::ElementC*>(d), packed(Kernel::StrideC{}, m, n, batch_count),
       static_cast<Kernel::ElementD*>(d), stride_d}};
  arguments.epilogue.thread.alpha = 1.0f;
  arguments.epilogue.thread.beta = 0.0f;
  arguments.hw_info.sm_count =
      cutlass::KernelHardwareInfo::query_device_multiprocessor_count(arguments.hw_info.device_id);
  return arguments;
}
"""


def operation_names(gemm: Gemm, arch: Arch) -> list[str]:
    """The kernels that are tried on a GEMM: of SM80 atoms, and on sm_90 of SM90 atoms too."""
    element, B = DTYPE_NAMES[gemm.dtype], {"row": "t", "column": "n"}[gemm.B_layout]
    sm80 = f"cutlass_tensorop_{element}_s16816gemm_{element}_{{}}_t{B}_align8"
    names = [sm80.format(tile) for tile in SM80_TILES]
    if arch.sm == 90:
        types = f"{element}_{element}_f32_{element}_{element}"
        sm90 = (
            f"cutlass3x_sm90_tensorop_gemm_{types}_{{}}_0_t{B}n_align8_warpspecialized_{{}}_epi_tma"
        )
        names += [sm90.format(*tile) for tile in SM90_TILES]
    return names


@cache
def _operations(element: str) -> dict[str, Any]:
    """What the generator knows of GEMMs of one element type, by name."""
    from cutlass_library import generator, manifest

    cuda = ".".join(map(str, find_nvcc().version))
    arguments = generator.define_parser().parse_args(
        [
            "--operations=gemm",
            f"--kernels=cutlass_tensorop_{element}_s16816gemm_{element}_*,"
            f"cutlass3x_sm90_tensorop_gemm_{element}_{element}_f32_{element}_{element}_*",
            "--architectures=80;90a",
            f"--cuda-version={cuda}",
        ]
    )
    known = manifest.Manifest(arguments)
    generator.GenerateSM80_TensorOp_16816(known, cuda)
    generator.GenerateSM90_TensorOp_16b_WGMMA_gemm(known, cuda)
    of_names = (by_name for by_name in known.operations.values())
    lists = (by_cc for by_name in of_names for by_cc in by_name.values())
    operations = (op for by_cc in lists for ops in _values(by_cc) for op in ops)
    return {op.procedural_name(): op for op in operations}


def _values(by_cc: Any) -> Iterable[Any]:
    return by_cc.values() if isinstance(by_cc, dict) else [by_cc]


def find_operation(name: str, gemm: Gemm) -> Any:
    """CUTLASS's description of a kernel. Raises ValueError where its generator has none such."""
    operation = _operations(DTYPE_NAMES[gemm.dtype]).get(name)
    if operation is None:
        raise ValueError(f"cutlass_library has no GEMM {name}")
    return operation


def emit(operation: Any) -> str:
    """The translation unit of one kernel: CUTLASS's instantiation, and a C function that runs it.

    Pure: the same operation gives the same bytes.
    """
    from cutlass_library import gemm_operation

    new = operation.arch >= 90
    emitter = (
        gemm_operation.EmitGemmUniversal3xInstance
        if new
        else gemm_operation.EmitGemmUniversalInstance
    )()
    name = operation.procedural_name()
    ldb = "n" if operation.B.layout.name == "RowMajor" else "k"
    includes = [include for include in emitter.includes if "adapter" not in include]
    return _UNIT.format(
        name=name,
        includes="\n".join(f'#include "{include}"' for include in includes),
        instance=emitter.emit(operation),
        arguments=_ARGUMENTS_3X if new else _ARGUMENTS_2X.format(ldb=ldb),
    )


def compilations(operations: Sequence[Any], arch: Arch) -> list[Compilation]:
    """The object of each kernel, for `arch` alone; SM90 atoms need sm_90a."""
    cutlass = toolchain.cutlass_identity()
    util = include_dir().parent / "tools" / "util" / "include"

    def compilation(operation: Any) -> Compilation:
        suffix = "a" if operation.arch >= 90 else ""
        plain = toolchain.kernel_compiler(Targets((arch.sm,), 0, suffix), cutlass)
        compiler = dataclasses.replace(plain, includes=(*plain.includes, "-isystem", str(util)))
        name = operation.procedural_name()
        return Compilation(label=name, stem=name, text=emit(operation), compiler=compiler)

    return [compilation(operation) for operation in operations]


def build(operations: Sequence[Any], arch: Arch) -> dict[str, Path]:
    """A shared library for each kernel, from the cache where it is in it, by name.

    Raises BuildError with the kernels that did not compile.
    """
    objects = compilations(operations, arch)
    if failures := compile_all(objects, f"GEMMs of cutlass_library for {arch}"):
        raise BuildError(failures, len(objects))
    folders = [f"-L{folder}" for folder in find_nvcc().library_dirs]
    options = [*folders, "-l:libcudart_static.a", "-lrt", "-lpthread", "-ldl"]
    libraries = {}
    for compiled in objects:
        key = hashlib.sha256(f"{compiled.key} {shlex.join(options)}".encode()).hexdigest()[:16]
        library = cache_dir() / "gemms" / key / f"{compiled.stem}.so"
        if not reusable(library):
            link(library, [compiled], [*options, "-Wl,--no-undefined"])
        libraries[compiled.label] = library
    return libraries


def run_generated(
    gemm: Gemm, device: torch.device, n_samples: int = 25, names: Sequence[str] | None = None
) -> Profile:
    """Builds, checks and times kernels on a GPU; `names` default to `operation_names`.

    A kernel whose result is wrong, or that cannot run the GEMM, is a refused row.
    """
    import torch

    capability = torch.cuda.get_device_capability(device)
    arch = Arch.of(10 * capability[0] + capability[1])
    wanted = operation_names(gemm, arch) if names is None else names
    operations = [find_operation(name, gemm) for name in wanted]
    libraries = build(operations, arch)
    with torch.cuda.device(device):
        rows = _measure(gemm, {name: _load(path) for name, path in libraries.items()}, n_samples)
    by_name = {operation.procedural_name(): operation for operation in operations}
    cells = [
        _cells(gemm, by_name[name], status, seconds) for name, (status, seconds) in rows.items()
    ]
    return profiler_csv.parse(profiler_csv.as_text(cells), PROVIDER)


def _load(path: Path) -> ctypes.CDLL:
    with seal.checked(path) as (name, _):
        library = ctypes.CDLL(name)
    library.pyflash_gemm_workspace.restype = ctypes.c_int64
    library.pyflash_gemm_workspace.argtypes = [ctypes.c_int] * 4
    library.pyflash_gemm.argtypes = [
        *[ctypes.c_void_p] * 3,
        *[ctypes.c_int] * 4,
        *[ctypes.c_void_p] * 2,
    ]
    return library


def _measure(
    gemm: Gemm, libraries: dict[str, ctypes.CDLL], n_samples: int
) -> dict[str, tuple[str, float | None]]:
    """(disposition, seconds) of each kernel; None: not timed. On the current GPU and stream."""
    import torch

    from pyflash.bench.timing import time_in_turns
    from pyflash.op.selection import TORCH_DTYPES

    shape = (gemm.batch_count, gemm.m, gemm.n, gemm.k)
    extents = (gemm.m, gemm.n, gemm.k, gemm.batch_count)
    generator = torch.Generator("cuda").manual_seed(0)
    dtype = TORCH_DTYPES[gemm.dtype]

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, device="cuda", dtype=dtype, generator=generator)

    # NOTE: A, B and D together are larger than an L2 cache at the lengths that are compared.
    a = random(shape[0], gemm.m, gemm.k)
    b = random(shape[0], gemm.k, gemm.n)
    if gemm.B_layout == "column":
        b = b.transpose(1, 2).contiguous().transpose(1, 2)
    expected = (a[:1].float() @ b[:1].float())[0]
    d = torch.empty(shape[0], gemm.n, gemm.m, device="cuda", dtype=dtype)  # column-major

    results: dict[str, tuple[str, float | None]] = {}
    calls = {}
    for name, library in libraries.items():
        n_bytes = library.pyflash_gemm_workspace(*extents)
        if n_bytes < 0:
            results[name] = ("not_supported", None)
            continue
        workspace = torch.empty(max(1, n_bytes), device="cuda", dtype=torch.uint8)

        def run(n: int, library: ctypes.CDLL = library, workspace: torch.Tensor = workspace) -> int:
            stream = torch.cuda.current_stream().cuda_stream
            pointers = (a.data_ptr(), b.data_ptr(), d.data_ptr())
            return max(
                library.pyflash_gemm(*pointers, *extents, workspace.data_ptr(), stream)
                for _ in range(n)
            )

        d.fill_(float("nan"))
        status = run(1)
        # Rounding to 16 bits, and the order of fp32 sums.
        right = torch.allclose(d[0].t().float(), expected, rtol=2e-2, atol=2e-2 * gemm.k**0.5)
        results[name] = ("passed" if status == 0 and right else "incorrect", None)
        if results[name][0] == "passed":
            calls[name] = run
    timings = time_in_turns(calls, torch.device("cuda"), n_samples) if calls else {}
    for name, timing in timings.items():
        results[name] = ("passed", timing.seconds)
    return results


def _cells(gemm: Gemm, operation: Any, disposition: str, seconds: float | None) -> dict[str, str]:
    tile = operation.tile_description
    triples = {
        "cta": tile.threadblock_shape,
        "cluster": tile.cluster_shape,
        "warps": tile.warp_count,
        "inst": tile.math_instruction.instruction_shape,
    }
    element = DTYPE_NAMES[gemm.dtype]
    cells = {
        "Provider": PROVIDER,
        "OperationKind": "gemm",
        "Operation": operation.procedural_name(),
        "Disposition": disposition,
        "Status": "not_supported" if disposition == "not_supported" else "success",
        "gemm_kind": "universal",
        **{name: str(getattr(gemm, name)) for name in ("m", "n", "k", "batch_count", "A", "B")},
        **dict.fromkeys("CD", f"{element}:column"),
        "alpha": "1",
        "beta": "0",
        "op_class": "tensorop",
        "accum": "f32",
        "stages": str(tile.stages),
        "min_cc": str(tile.minimum_compute_capability),
        "max_cc": str(tile.maximum_compute_capability),
    }
    for name, extents in triples.items():
        cells |= {f"{name}_{axis}": str(e) for axis, e in zip("mnk", extents, strict=True)}
    return cells | (measured_cells(gemm.bytes, gemm.flops, seconds) if seconds else {})
