#include "cute_kernels/bindings/backward.h"

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "cute_kernels/bindings/arguments.h"
#include "cute_kernels/bindings/gpu.h"
#include "cute_kernels/bindings/tensors.h"
#include "cute_kernels/host/cpu_backward.h"
#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/gradients.h"
#include "cute_kernels/host/select_backward.h"
#include "cute_kernels/host/variant_call.h"
#include "cute_kernels/host/variant_map.h"

namespace pyflash {
namespace {

using torch::stable::Tensor;

struct Gradient {
  Tensor tensor;
  char const* name;

  // As `like`.
  std::pair<void*, TensorStrides> place(TensorView const& like) const {
    TensorStrides const strides = strides_of_gradient(view_of(name, tensor), like);
    return {tensor.mutable_data_ptr(), strides};
  }
};

void run_on_cpu(BackwardParams const& params, DType dtype, Tensor const& q) {
  std::optional<Tensor> sums;
  float* of_heads = nullptr;
  if (int64_t const n = n_cpu_backward_sums(params); n > 0) {
    sums = allocate<1>("the sums of dk and dv of each head", q, {n}, aoti_torch_dtype_float32());
    of_heads = static_cast<float*>(sums->mutable_data_ptr());
  }
  torch::stable::parallel_for(0, n_cpu_backward_tasks(params), 1, [&](int64_t begin, int64_t end) {
    backward_cpu(params, dtype, of_heads, begin, end);
  });
  torch::stable::parallel_for(0, n_cpu_sum_tasks(params), 1, [&](int64_t begin, int64_t end) {
    sum_heads_cpu(params, dtype, of_heads, begin, end);
  });
}

void run_on_gpu(BackwardProblem const& problem, BackwardParams params, Tensor const& q,
                std::string_view named) {
  int32_t const device_index = q.get_device_index();
  torch::stable::accelerator::DeviceGuard const guard(device_index);
  BackwardSelection const selection =
      select_backward(problem.dtype, params, current_gpu(device_index), named);
  require_able(selection.kernel.has_value(), "no backward kernel runs this: ", selection.reason);
  Kernel<Backward> const& kernel = *selection.kernel;
  params = fitted(params, kernel);
  auto const workspace = allocate_workspace<Backward>(q, params);
  if (int const error = kernel.run(params, current_cuda_stream(device_index)); error != 0) {
    fail("launching ", kernel.row->short_form, " failed: ", kernel.library->error_string(error));
  }
}

void run_variant_on_gpu(BackwardProblem const& problem, BackwardParams params, Tensor const& q,
                        VariantCall const& variant, std::vector<TensorView> const& sums,
                        std::vector<int64_t> const& summed, Options const& options) {
  int32_t const device_index = q.get_device_index();
  torch::stable::accelerator::DeviceGuard const guard(device_index);
  auto const program = known_variant(variant.text);
  variant::Arguments captured = check_variant(variant, *program, view_of("q", q).device, options);
  set_sums(captured, sums, summed);
  GradientKernel const kernel = select_gradient(problem.dtype, params, current_gpu(device_index),
                                                *program, summed, options.config);
  params.set_shape(kernel.row->row.shape);
  auto const workspace = allocate_workspace<Backward>(q, params);
  std::optional<Tensor> memory;
  if (int64_t const n_ints = kernel.row->n_ints(params); n_ints > 0) {
    memory = allocate<1>("what the variant has made before its kernel", q, {n_ints},
                         aoti_torch_dtype_float32());
  }
  int const error =
      kernel.row->run(*kernel.row, kernel.features, params, captured,
                      memory ? static_cast<int*>(memory->mutable_data_ptr()) : nullptr,
                      current_cuda_stream(device_index));
  require_able(error == 0,
               "the kernel of the variant was not launched: ", kernel.library->error_string(error));
}

// has_variant: whether the arguments have one, behind the tensors.
void run_with(StableIValue* stack, bool has_variant) {
  Arguments arguments(stack);
  TensorView const grad_out = arguments.take_tensor("grad_out");
  TensorView const out = arguments.take_tensor("out");
  TensorView const lse = arguments.take_tensor("lse");
  auto const grad_lse = arguments.take<std::optional<Tensor>>();
  size_t const first = 3;
  BackwardCall call{
      .forward = {.q = arguments.take_tensor("q"),
                  .k = arguments.take_tensor("k"),
                  .v = arguments.take_tensor("v")},
      .out = out,
      .lse = lse,
      .grad_out = grad_out,
      .grad_lse = grad_lse ? std::optional(view_of("grad_lse", *grad_lse)) : std::nullopt};
  auto const cu_seqlens_q = arguments.take_optional_tensor("cu_seqlens_q");
  auto const cu_seqlens_k = arguments.take_optional_tensor("cu_seqlens_k");
  auto const max_seqlen_q = arguments.take<int64_t>(), max_seqlen_k = arguments.take<int64_t>();
  require(cu_seqlens_q.has_value() == cu_seqlens_k.has_value(),
          "one of cu_seqlens_q and cu_seqlens_k came: expected both, or neither");
  if (cu_seqlens_q) {
    call.forward.packing = Packing{*cu_seqlens_q, *cu_seqlens_k, max_seqlen_q, max_seqlen_k};
  }
  Gradient const dq{arguments.take<Tensor>(), "dq"};
  Gradient const dk{arguments.take<Tensor>(), "dk"};
  Gradient const dv{arguments.take<Tensor>(), "dv"};
  std::optional<VariantCall> variant;
  std::vector<TensorView> sums;
  std::vector<int64_t> summed;
  if (has_variant) {
    variant = VariantCall{.text = arguments.take<std::string>(),
                          .tensors = arguments.take_tensors("a tensor of the variant"),
                          .reals = arguments.take<std::vector<double>>(),
                          .integers = arguments.take<std::vector<int64_t>>()};
    sums = arguments.take_tensors("sums of a captured tensor");
    summed = arguments.take<std::vector<int64_t>>();
  }
  call.forward.options = arguments.take_options();
  BackwardProblem const problem = backward_problem_of(call);
  BackwardParams params = problem.params;
  std::tie(params.dq, params.dq_strides) = dq.place(call.forward.q);
  std::tie(params.dk, params.dk_strides) = dk.place(call.forward.k);
  std::tie(params.dv, params.dv_strides) = dv.place(call.forward.v);

  Tensor const& q = arguments.tensor(first);
  Options const& options = call.forward.options;
  if (variant) {
    run_variant_on_gpu(problem, params, q, *variant, sums, summed, options);
  } else if (call.forward.q.device.kind == Device::Kind::kCpu) {
    run_on_cpu(params, problem.dtype, q);
  } else {
    run_on_gpu(problem, params, q, options.config);
  }
}

}  // namespace

void run_backward(StableIValue* stack, uint64_t, uint64_t) { run_with(stack, false); }
void run_variant_backward(StableIValue* stack, uint64_t, uint64_t) { run_with(stack, true); }

}  // namespace pyflash
