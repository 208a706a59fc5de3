// The ops, as torch sees them: schemas, and their implementations on CUDA and on the CPU. Meta, whose extents may be
// symbolic, is in pyflash/ops.py.
#include <array>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>

#include "cute_kernels/bindings/checks.h"
#include "cute_kernels/bindings/gpu.h"
#include "cute_kernels/bindings/torch_stable.h"
#include "cute_kernels/host/cpu_forward.h"
#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/short_form.h"

namespace pyflash {
namespace {

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

// Uninitialised and contiguous, where q is.
// NOTE: the stable ABI passes on that torch failed, not why; torch's own words are on stderr.
template <size_t n>
Tensor allocate(char const* name, Tensor const& q, std::array<int64_t, n> const& shape,
                int32_t dtype) {
  AtenTensorHandle tensor = nullptr;
  if (aoti_torch_aten_new_empty(q.get(), shape.data(), n, &dtype, nullptr, nullptr, 0, nullptr,
                                &tensor) != 0) {
    auto const numel = std::accumulate(shape.begin(), shape.end(), 1., std::multiplies<>());
    refuse("torch could not allocate ", name, ", ",
           numel * (dtype == aoti_torch_dtype_float32() ? 4 : 2), " bytes");
  }
  return Tensor(tensor);
}

struct Outputs {
  Tensor out;  // as q
  Tensor lse;  // (batch, heads, seqlen_q); packed: (heads, total_q)
};

// Allocates the outputs and points the parameters at them.
Outputs allocate_outputs(Tensor const& q, ForwardParams& params) {
  int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(q.get(), &dtype));
  int32_t const fp32 = aoti_torch_dtype_float32();
  auto const n = q.sizes();
  Outputs outputs = n.size() == 4 ? Outputs{allocate<4>("out", q, {n[0], n[1], n[2], n[3]}, dtype),
                                            allocate<3>("lse", q, {n[0], n[2], n[1]}, fp32)}
                                  : Outputs{allocate<3>("out", q, {n[0], n[1], n[2]}, dtype),
                                            allocate<2>("lse", q, {n[1], n[0]}, fp32)};
  params.o = outputs.out.mutable_data_ptr();
  params.lse = static_cast<float*>(outputs.lse.mutable_data_ptr());
  return outputs;
}

// Allocates what the splits write. It may be freed when the kernels that use it are in the stream: torch reuses memory in
// the order of the stream.
Tensor allocate_partial(Tensor const& q, ForwardParams& params) {
  int64_t const n_rows = params.num_splits * params.lse_strides.split;
  Tensor partial = allocate<1>("the partial results of num_splits", q,
                               {n_rows * (params.d_head + 1)}, aoti_torch_dtype_float32());
  params.o_partial = static_cast<float*>(partial.mutable_data_ptr());
  params.lse_partial = params.o_partial + n_rows * params.d_head;
  return partial;
}

Outputs run_on_gpu(Problem& problem, Tensor const& q, std::string_view named) {
  ForwardParams& params = problem.params;
  int32_t const device_index = q.get_device_index();
  torch::stable::accelerator::DeviceGuard const guard(device_index);
  GpuSelection const selection = select_on_gpu(problem, current_gpu(device_index), named);
  params.num_splits = selection.num_splits;
  Outputs outputs = allocate_outputs(q, params);
  if (params.lse_strides.split > 0) {
    std::optional<Tensor> partial;
    if (params.num_splits > 1) {
      partial = allocate_partial(q, params);
    }
    launch(selection, params, current_cuda_stream(device_index));
  }
  return outputs;
}

Outputs run_on_cpu(Problem& problem, Tensor const& q, std::string_view named) {
  ForwardParams& params = problem.params;
  FlashForwardKernelConfig const config = select_on_cpu(problem, named).config;
  params.num_splits = 1;
  Outputs outputs = allocate_outputs(q, params);
  if (params.lse_strides.split > 0) {
    torch::stable::parallel_for(0, n_cpu_tasks(params, config), 1, [&](int64_t begin, int64_t end) {
      forward_cpu(params, config, begin, end);
    });
  }
  return outputs;
}

std::tuple<Tensor, Tensor> run(Problem problem, Tensor const& q, std::string_view named) {
  Outputs outputs = q.is_cuda() ? run_on_gpu(problem, q, named) : run_on_cpu(problem, q, named);
  return {std::move(outputs.out), std::move(outputs.lse)};
}

std::tuple<Tensor, Tensor> fwd(Tensor const& q, Tensor const& k, Tensor const& v,
                               std::optional<double> softmax_scale, bool causal,
                               int64_t window_left, int64_t window_right, double softcap,
                               StringHandle config, int64_t num_splits) {
  std::string const named = take_string(config);
  return run(check_padded({q, k, v},
                          {softmax_scale, causal, window_left, window_right, softcap, num_splits}),
             q, named);
}

std::tuple<Tensor, Tensor> fwd_varlen(Tensor const& q, Tensor const& k, Tensor const& v,
                                      Tensor const& cu_seqlens_q, Tensor const& cu_seqlens_k,
                                      int64_t max_seqlen_q, int64_t max_seqlen_k,
                                      std::optional<double> softmax_scale, bool causal,
                                      int64_t window_left, int64_t window_right, double softcap,
                                      StringHandle config, int64_t num_splits) {
  std::string const named = take_string(config);
  return run(check_packed({q, k, v}, {cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k},
                          {softmax_scale, causal, window_left, window_right, softcap, num_splits}),
             q, named);
}

int64_t load_kernels(StringHandle path) { return load_kernel_library(take_string(path)); }

std::string config_map() { return config_map_json(); }

// What a call of this problem would run, and why; sm_arch = 0 stands for the CPU.
std::tuple<std::string, int64_t, std::string> select(
    int64_t dtype, bool packed, int64_t batch, int64_t heads, int64_t heads_kv, int64_t seqlen_q,
    int64_t seqlen_k, int64_t d_head, bool causal, int64_t window_left, int64_t window_right,
    double softcap, int64_t num_splits, int64_t sm_arch, int64_t n_sms, StringHandle config) {
  std::string const named = take_string(config);
  Problem problem{.dtype = static_cast<DType>(dtype), .num_splits = 0, .params = {}};
  ForwardParams& params = problem.params;
  for (auto const& [extent, value] :
       {std::pair(&params.batch, batch), std::pair(&params.heads, heads),
        std::pair(&params.heads_kv, heads_kv), std::pair(&params.seqlen_q, seqlen_q),
        std::pair(&params.seqlen_k, seqlen_k), std::pair(&params.d_head, d_head)}) {
    require(value >= 0 && value <= kMaxExtent, "an extent of ", value,
            ": expected a number from 0 to ", kMaxExtent);
    *extent = static_cast<int>(value);
  }
  require(heads == 0 || (heads_kv > 0 && heads % heads_kv == 0), "heads_kv = ", heads_kv,
          ": expected a number that divides heads = ", heads);
  apply_options({std::nullopt, causal, window_left, window_right, softcap, num_splits}, problem);
  if (!packed) {
    simplify_one_query(params);
  }
  if (sm_arch == 0) {
    CpuSelection const selection = select_on_cpu(problem, named);
    return {short_form(selection.config), 1, selection.reason};
  }
  Gpu const gpu{.sm_arch = static_cast<int>(sm_arch), .n_sms = static_cast<int>(n_sms)};
  GpuSelection const selection = select_on_gpu(problem, gpu, named);
  return {selection.kernel.row->short_form, selection.num_splits, selection.reason()};
}

}  // namespace
}  // namespace pyflash

STABLE_TORCH_LIBRARY(pyflash, m) {
  m.def(
      "fwd(Tensor q, Tensor k, Tensor v, *, float? softmax_scale=None, bool causal=False, "
      "int window_left=-1, int window_right=-1, float softcap=0.0, str config=\"\", "
      "int num_splits=0) -> (Tensor out, Tensor lse)");
  m.def(
      "fwd_varlen(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
      "SymInt max_seqlen_q, SymInt max_seqlen_k, *, float? softmax_scale=None, "
      "bool causal=False, int window_left=-1, int window_right=-1, float softcap=0.0, "
      "str config=\"\", int num_splits=0) -> (Tensor out, Tensor lse)");
  m.def("load_kernels(str path) -> int");
  m.def("config_map() -> str");
  m.def(
      "select(*, int dtype, bool packed, int batch, int heads, int heads_kv, int seqlen_q, "
      "int seqlen_k, int d_head, bool causal, int window_left, int window_right, float softcap, "
      "int num_splits, int sm_arch, int n_sms, str config=\"\") "
      "-> (str config, int num_splits, str reason)");
}

// Both look at where q is, after every tensor was found to be there.
STABLE_TORCH_LIBRARY_IMPL(pyflash, CUDA, m) {
  m.impl("fwd", TORCH_BOX(&pyflash::fwd));
  m.impl("fwd_varlen", TORCH_BOX(&pyflash::fwd_varlen));
}

STABLE_TORCH_LIBRARY_IMPL(pyflash, CPU, m) {
  m.impl("fwd", TORCH_BOX(&pyflash::fwd));
  m.impl("fwd_varlen", TORCH_BOX(&pyflash::fwd_varlen));
}

STABLE_TORCH_LIBRARY_IMPL(pyflash, CompositeExplicitAutograd, m) {
  m.impl("load_kernels", TORCH_BOX(&pyflash::load_kernels));
  m.impl("config_map", TORCH_BOX(&pyflash::config_map));
  m.impl("select", TORCH_BOX(&pyflash::select));
}
