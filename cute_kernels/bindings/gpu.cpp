#include "cute_kernels/bindings/gpu.h"

#include <dlfcn.h>

#include <array>
#include <atomic>

#include "cute_kernels/bindings/torch_stable.h"
#include "cute_kernels/host/errors.h"

namespace pyflash {
namespace {

Gpu query_current_gpu() {
  KernelLibrary const* const library = any_kernel_library();
  require_able(library,
               "no kernels are built, so nothing runs on a GPU; to build them: pyflash build");
  Gpu gpu{};
  int const error = library->device_properties(&gpu.sm_arch, &gpu.n_sms);
  if (error != 0) {
    fail("the properties of the current CUDA device cannot be read: ",
         library->error_string(error));
  }
  return gpu;
}

}  // namespace

Gpu current_gpu(int32_t device_index) {
  constexpr int kMaxGpus = 64;
  static std::array<std::atomic<Gpu>, kMaxGpus> known{};
  static_assert(std::atomic<Gpu>::is_always_lock_free);
  if (device_index < 0 || device_index >= kMaxGpus) {
    return query_current_gpu();
  }
  Gpu gpu = known[device_index].load(std::memory_order_relaxed);
  if (gpu.sm_arch == 0) {
    gpu = query_current_gpu();
    known[device_index].store(gpu, std::memory_order_relaxed);
  }
  return gpu;
}

// NOTE: looked up at run time: the libtorch of a CPU-only torch does not have the function.
void* current_cuda_stream(int32_t device_index) {
  using Getter = AOTITorchError (*)(int32_t, void**);
  static auto const getter = reinterpret_cast<Getter>(
      dlsym(dlopen("libtorch.so", RTLD_LAZY | RTLD_NOLOAD), "aoti_torch_get_current_cuda_stream"));
  require_able(getter, "q is on a CUDA device, but this torch was built without CUDA");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(getter(device_index, &stream));
  return stream;
}

void run(Kernel<Forward> const& kernel, Forward::Params const& params, void* stream) {
  if (int const error = kernel.run(params, stream); error != 0) {
    fail("launching ", kernel.row->short_form, " failed: ", kernel.library->error_string(error));
  }
}

void prepare(Kernel<Forward> const& kernel, Forward::Params const& params, void* stream) {
  int const error = kernel.library->of<Forward>().prepare(*kernel.row, params, stream);
  require_able(error == 0, "the schedule was not made: ", kernel.library->error_string(error));
}

}  // namespace pyflash
