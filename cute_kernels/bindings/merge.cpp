#include "cute_kernels/bindings/merge.h"

#include <cstdint>
#include <vector>

#include "cute_kernels/bindings/arguments.h"
#include "cute_kernels/bindings/gpu.h"
#include "cute_kernels/bindings/tensors.h"
#include "cute_kernels/bindings/vectors.h"
#include "cute_kernels/host/config_map.h"
#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/float16.h"
#include "cute_kernels/merge_states.h"

namespace pyflash {
namespace {

// Of out, (batch, rows, heads, d_head) or, packed, (rows, heads, d_head).
MergeParams::Strides strides_of_o(TensorView const& x) {
  int const last = x.rank - 1;
  auto const vectors = [](int64_t stride) { return stride / kVectorElements; };
  return {.batch = x.rank == 4 ? vectors(x.strides[0]) : 0,
          .row = vectors(x.strides[last - 2]),
          .head = vectors(x.strides[last - 1])};
}

// Of lse, (batch, heads, rows) or (heads, rows).
MergeParams::Strides strides_of_lse(TensorView const& x) {
  int const last = x.rank - 1;
  return {
      .batch = x.rank == 3 ? x.strides[0] : 0, .row = x.strides[last], .head = x.strides[last - 1]};
}

int64_t count_vectors(TensorView const& x) {
  int64_t n = 1;
  for (int i = 0; i < x.rank; ++i) {
    n *= x.sizes[i];
  }
  return n / kVectorElements;
}

template <class Element>
void merge_on_cpu(MergeParams const& params) {
  constexpr int64_t kGrain = 1024;
  torch::stable::parallel_for(0, params.n, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      params.merge<Element>(static_cast<unsigned>(i));
    }
  });
}

}  // namespace

void merge_states(StableIValue* stack) {
  Arguments arguments(stack);
  std::vector<TensorView> const outs = arguments.take_tensors("outs");
  std::vector<TensorView> const lses = arguments.take_tensors("lses");
  TensorView const out = arguments.take_tensor("out"), lse = arguments.take_tensor("lse");
  bool const on_gpu = out.device.kind == Device::Kind::kCuda;
  auto const merge = on_gpu ? loaded_helpers().merge_states : nullptr;
  int64_t const n = count_vectors(out);
  bool is_able = outs.size() <= MergeParams::kMostStates && is_of_vectors(out) && n <= INT32_MAX &&
                 (!on_gpu || merge != nullptr);
  for (TensorView const& state : outs) {
    is_able = is_able && is_of_vectors(state) && !may_share(state, out);
  }
  if (n == 0 || !is_able) {
    put_results(stack, n == 0);
    return;
  }
  int const last = out.rank - 1;
  MergeParams params{.n_states = static_cast<int>(outs.size()),
                     .o = const_cast<void*>(out.data),
                     .lse = static_cast<float*>(const_cast<void*>(lse.data)),
                     .of_o = strides_of_o(out),
                     .of_lse = strides_of_lse(lse),
                     .rows = static_cast<unsigned>(out.sizes[last - 2]),
                     .heads = static_cast<unsigned>(out.sizes[last - 1]),
                     .vectors = static_cast<unsigned>(out.sizes[last] / kVectorElements),
                     .n = static_cast<unsigned>(n),
                     .dtype = out.dtype == ElementType::kFloat16 ? DType::FP16 : DType::BF16};
  for (size_t i = 0; i < outs.size(); ++i) {
    params.states[i] = {.o = outs[i].data,
                        .lse = static_cast<float const*>(lses[i].data),
                        .of_o = strides_of_o(outs[i]),
                        .of_lse = strides_of_lse(lses[i])};
  }
  if (!on_gpu) {
    params.dtype == DType::FP16 ? merge_on_cpu<Float16>(params) : merge_on_cpu<BFloat16>(params);
  } else {
    int32_t const device_index = arguments.tensor(0).get_device_index();
    torch::stable::accelerator::DeviceGuard const guard(device_index);
    int const error = merge(&params, current_cuda_stream(device_index));
    require_able(error == 0, "states were not merged: ", any_kernel_library()->error_string(error));
  }
  put_results(stack, true);
}

}  // namespace pyflash
