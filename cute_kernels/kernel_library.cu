#include "cute_kernels/kernel_library.h"

#include <variant>

#include <cuda_runtime_api.h>

#include "cute_kernels/generated/launchers.h"
#include "cute_kernels/second_stream.h"

namespace pyflash {
namespace {

int device_properties(int* sm_arch, int* n_sms) {
  int device = 0;
  int major = 0;
  int minor = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(n_sms, cudaDevAttrMultiProcessorCount, device);
  }
  *sm_arch = major * 10 + minor;
  return error;
}

int load_cubin(void const* image, char const* symbol, void const** kernel) {
#if CUDART_VERSION >= 12080
  cudaLibrary_t library{};
  cudaError_t error =
      cudaLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (error != cudaSuccess) {
    return error;
  }
  cudaKernel_t found{};
  error = cudaLibraryGetKernel(&found, library, symbol);
  *kernel = found;
  return error;
#else
  return cudaErrorNotSupported;
#endif
}

// NOTE: a launch that follows must not find an error that was refused here.
cudaError_t forgotten(cudaError_t error) {
  if (error != cudaSuccess) {
    cudaGetLastError();
  }
  return error;
}

int number_of_stream(void* stream, uint64_t* number) {
#if CUDART_VERSION >= 12000
  auto const of = static_cast<cudaStream_t>(stream);
  cudaStreamCaptureStatus status{};
  cudaError_t error = cudaStreamIsCapturing(of, &status);
  if (error == cudaSuccess && status != cudaStreamCaptureStatusNone) {
    return cudaErrorStreamCaptureUnsupported;
  }
  unsigned long long found = 0;
  if (error == cudaSuccess) {
    error = cudaStreamGetId(of, &found);
  }
  *number = found;
  return forgotten(error);
#else
  return cudaErrorNotSupported;
#endif
}

int take_memory(int64_t bytes, void* stream, LastingMemory* memory) {
  RelaxedCapture const relaxed;
  auto const of = static_cast<cudaStream_t>(stream);
  cudaError_t error = cudaMallocAsync(&memory->data, bytes, of);
  if (error != cudaSuccess) {
    return forgotten(error);
  }
  cudaEvent_t last_use{};
  error = cudaEventCreateWithFlags(&last_use, cudaEventDisableTiming);
  if (error != cudaSuccess) {
    cudaFreeAsync(memory->data, of);
  }
  memory->last_use = last_use;
  return forgotten(error);
}

int note_use(LastingMemory const& memory, void* stream) {
  return forgotten(cudaEventRecord(static_cast<cudaEvent_t>(memory.last_use),
                                   static_cast<cudaStream_t>(stream)));
}

int give_back(LastingMemory const& memory, void* stream) {
  RelaxedCapture const relaxed;
  auto const of = static_cast<cudaStream_t>(stream);
  auto const last_use = static_cast<cudaEvent_t>(memory.last_use);
  cudaError_t error = cudaStreamWaitEvent(of, last_use, 0);
  if (error == cudaSuccess) {
    error = cudaFreeAsync(memory.data, of);
  }
  cudaEventDestroy(last_use);
  return forgotten(error);
}

constexpr LastingMemoryCalls kLastingMemory{.number_of = number_of_stream,
                                            .take = take_memory,
                                            .note_use = note_use,
                                            .give_back = give_back};

char const* error_string(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

template <class Op>
int run_phases(void const* kernel, ConfigMapRow<Op> const& row, typename Op::Params const& params,
               void* stream) {
  for (auto const& phase : Op::kPhases) {
    if (phase.is_needed != nullptr && !phase.is_needed(params)) {
      continue;
    }
    auto const launch_own = [&](auto const& config) -> int {
      return launch_kernel(kernel, config, row, params, static_cast<cudaStream_t>(stream));
    };
    int const error = phase.launch != nullptr ? phase.launch(params, row.dtype, stream)
                                              : std::visit(launch_own, row.config);
    if (error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

template <class Op>
int run(void const* kernel, ConfigMapRow<Op> const& row, typename Op::Params const& params,
        void* stream) {
  return run_slices_in_streams(params, stream, [&](auto const& slice, void* of) {
    return run_phases<Op>(kernel, row, slice, of);
  });
}

template <class Op>
int prepare(ConfigMapRow<Op> const& row, typename Op::Params const& params, void* stream) {
  for (auto const& phase : Op::kPhases) {
    if (phase.launch == nullptr) {
      break;
    }
    bool const is_needed = phase.is_needed == nullptr || phase.is_needed(params);
    int const error = is_needed ? phase.launch(params, row.dtype, stream) : int(cudaSuccess);
    if (error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

template <class... Ops>
OfEachOp<OpKernels> kernels_of(OfEachOp<RowsOf> const& rows, OpList<Ops...>) {
  return {OpKernels<Ops>{std::get<RowsOf<Ops>>(rows), run<Ops>, describe<Ops>, prepare<Ops>}...};
}

}  // namespace

template <class Op>
void describe(ConfigMapRow<Op>& row) {
  std::visit(
      [&](auto const& config) {
        row.shape = tile_shape(config);
        row.refusal = refusal_of(config);
      },
      row.config);
}

KernelLibrary make_library(OfEachOp<RowsOf> const& rows) {
  return {.abi = kKernelLibraryAbi,
          .configs_digest = kConfigsDigest,
          .ops = kernels_of(rows, AllOps{}),
          .device_properties = device_properties,
          .error_string = error_string,
          .load_cubin = load_cubin,
          .lasting_memory = kLastingMemory};
}

}  // namespace pyflash
