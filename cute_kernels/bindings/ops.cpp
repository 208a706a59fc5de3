// The ops, as torch sees them: schemas, and one implementation per device. Meta, whose extents may
// be symbolic, is in pyflash/ops.py.
#include <dlfcn.h>

#include <functional>
#include <numeric>
#include <tuple>
#include <vector>

#include "cute_kernels/bindings/checks.h"
#include "cute_kernels/bindings/cpu_forward.h"
#include "cute_kernels/bindings/errors.h"
#include "cute_kernels/bindings/short_form.h"
#include "cute_kernels/bindings/torch_stable.h"

namespace pyflash {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// NOTE: string arguments are taken as handles: the headers' own conversion to std::string leaks, as
// of 2.13.
std::string take_string(StringHandle handle) {
  char const* data = nullptr;
  size_t length = 0;
  TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &data));
  TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
  std::string text(data, length);
  TORCH_ERROR_CODE_CHECK(torch_delete_string(handle));
  return text;
}

struct Outputs {
  Tensor out;  // (batch, seqlen_q, heads, d_head), contiguous
  Tensor lse;  // (batch, heads, seqlen_q)
};

// Uninitialised, where q is.
// NOTE: the stable ABI passes on that torch failed, not why; torch's own words are on stderr.
Tensor allocate(char const* name, Tensor const& q, std::vector<int64_t> const& shape,
                ScalarType dtype) {
  try {
    return torch::stable::new_empty(q, shape, dtype);
  } catch (std::runtime_error const&) {
    auto const numel = std::accumulate(shape.begin(), shape.end(), 1., std::multiplies<>());
    refuse("torch could not allocate ", name, ", ", numel * (dtype == ScalarType::Float ? 4 : 2),
           " bytes");
  }
}

// Allocates the outputs and points the parameters at them.
Outputs allocate_outputs(Tensor const& q, ForwardParams& params) {
  int64_t const batch = q.size(0), seqlen_q = q.size(1), heads = q.size(2), d_head = q.size(3);
  Outputs outputs{allocate("out", q, {batch, seqlen_q, heads, d_head}, q.scalar_type()),
                  allocate("lse", q, {batch, heads, seqlen_q}, ScalarType::Float)};
  params.o = outputs.out.mutable_data_ptr();
  params.lse = static_cast<float*>(outputs.lse.mutable_data_ptr());
  params.o_strides = {
      .batch = outputs.out.stride(0), .row = outputs.out.stride(1), .head = outputs.out.stride(2)};
  return outputs;
}

// A cudaStream_t. Looked up at run time: the libtorch of a CPU-only torch does not have the
// function.
void* current_cuda_stream(int32_t device_index) {
  using Getter = AOTITorchError (*)(int32_t, void**);
  static auto const getter = reinterpret_cast<Getter>(
      dlsym(dlopen("libtorch.so", RTLD_LAZY | RTLD_NOLOAD), "aoti_torch_get_current_cuda_stream"));
  require(getter, "q is on a CUDA device, but this torch was built without CUDA");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(getter(device_index, &stream));
  return stream;
}

// Of the current device, through any kernel library: they alone know CUDA.
Gpu current_gpu() {
  KernelLibrary const* const library = any_kernel_library();
  require(library,
          "no kernels are built, so nothing runs on a GPU; to build them: python -m codegen");
  Gpu gpu{};
  int const error = library->device_properties(&gpu.sm_arch, &gpu.n_sms);
  require(error == 0, "the properties of the current CUDA device cannot be read: ",
          library->error_string(error));
  return gpu;
}

void launch(Kernel const& kernel, ForwardParams const& params, void* stream) {
  int const error = kernel.row->launch(params, stream);
  require(error == 0, "launching ", kernel.row->short_form,
          " failed: ", kernel.library->error_string(error));
}

std::tuple<Tensor, Tensor> forward_on_cuda(Tensor q, Tensor k, Tensor v,
                                           std::optional<double> softmax_scale, bool causal,
                                           int64_t window_left, int64_t window_right,
                                           double softcap, StringHandle config_text) {
  std::string const named = take_string(config_text);
  auto [problem, params] =
      check({q, k, v, softmax_scale, causal, window_left, window_right, softcap});
  torch::stable::accelerator::DeviceGuard const guard(q.get_device_index());
  Kernel const kernel = select_on_gpu(problem, current_gpu(), named).kernel;
  Outputs const outputs = allocate_outputs(q, params);
  if (outputs.lse.numel() > 0) {
    launch(kernel, params, current_cuda_stream(q.get_device_index()));
  }
  return {outputs.out, outputs.lse};
}

std::tuple<Tensor, Tensor> forward_on_cpu(Tensor q, Tensor k, Tensor v,
                                          std::optional<double> softmax_scale, bool causal,
                                          int64_t window_left, int64_t window_right, double softcap,
                                          StringHandle config_text) {
  std::string const named = take_string(config_text);
  auto [problem, params] =
      check({q, k, v, softmax_scale, causal, window_left, window_right, softcap});
  FlashForwardKernelConfig const config = select_on_cpu(problem, named).config;
  Outputs const outputs = allocate_outputs(q, params);
  torch::stable::parallel_for(0, n_cpu_tasks(params, config), 1, [&](int64_t begin, int64_t end) {
    forward_cpu(params, config, begin, end);
  });
  return {outputs.out, outputs.lse};
}

int64_t load_kernels(StringHandle path) { return load_kernel_library(take_string(path)); }

std::string config_map() { return config_map_json(); }

// What a call of this problem would run, and why; sm_arch = 0 stands for the CPU.
std::tuple<std::string, std::string> select(int64_t dtype, int64_t d_head, int64_t batch,
                                            int64_t heads, int64_t seqlen_q, int64_t sm_arch,
                                            int64_t n_sms, StringHandle config_text) {
  std::string const named = take_string(config_text);
  Problem const problem{static_cast<DType>(dtype), d_head, batch, heads, seqlen_q};
  if (sm_arch == 0) {
    CpuSelection const selection = select_on_cpu(problem, named);
    return {short_form(selection.config), selection.reason};
  }
  Gpu const gpu{.sm_arch = static_cast<int>(sm_arch), .n_sms = static_cast<int>(n_sms)};
  GpuSelection const selection = select_on_gpu(problem, gpu, named);
  return {selection.kernel.row->short_form, selection.reason()};
}

}  // namespace
}  // namespace pyflash

STABLE_TORCH_LIBRARY(pyflash, m) {
  m.def(
      "fwd(Tensor q, Tensor k, Tensor v, *, float? softmax_scale=None, bool causal=False, "
      "int window_left=-1, int window_right=-1, float softcap=0.0, str config=\"\") "
      "-> (Tensor out, Tensor lse)");
  m.def("load_kernels(str path) -> int");
  m.def("config_map() -> str");
  m.def(
      "select(int dtype, int d_head, int batch, int heads, int seqlen_q, int sm_arch, int n_sms, "
      "str config=\"\") -> (str config, str reason)");
}

STABLE_TORCH_LIBRARY_IMPL(pyflash, CUDA, m) { m.impl("fwd", TORCH_BOX(&pyflash::forward_on_cuda)); }

STABLE_TORCH_LIBRARY_IMPL(pyflash, CPU, m) { m.impl("fwd", TORCH_BOX(&pyflash::forward_on_cpu)); }

STABLE_TORCH_LIBRARY_IMPL(pyflash, CompositeExplicitAutograd, m) {
  m.impl("load_kernels", TORCH_BOX(&pyflash::load_kernels));
  m.impl("config_map", TORCH_BOX(&pyflash::config_map));
  m.impl("select", TORCH_BOX(&pyflash::select));
}
