#include "cute_kernels/bindings/backward.h"

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "cute_kernels/bindings/arguments.h"
#include "cute_kernels/bindings/gpu.h"
#include "cute_kernels/bindings/made_memory.h"
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

// x, or a copy where kernels could not read it: rows of 16-byte vectors, none of them shared.
Tensor readable(Tensor const& x) {
  constexpr uintptr_t kVector = 16;
  auto const strides = x.strides();
  auto const elements = static_cast<int64_t>(kVector / x.element_size());
  bool is_readable = reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kVector == 0;
  for (size_t i = 0; i < strides.size(); ++i) {
    is_readable =
        is_readable &&
        (i + 1 == strides.size() ? strides[i] == 1 : strides[i] > 0 && strides[i] % elements == 0);
  }
  return is_readable ? x : copied(x);
}

Tensor as_contiguous(Tensor const& x) { return x.is_contiguous() ? x : copied(x); }

// The first arguments of both ops, or copies of what kernels could not read.
struct Inputs {
  explicit Inputs(Arguments& arguments)
      : grad_out(readable(arguments.take<Tensor>())),
        out(readable(arguments.take<Tensor>())),
        lse(as_contiguous(arguments.take<Tensor>())),
        grad_lse(arguments.take<std::optional<Tensor>>()),
        q(readable(arguments.take<Tensor>())),
        k(readable(arguments.take<Tensor>())),
        v(readable(arguments.take<Tensor>())) {
    if (grad_lse) {
      grad_lse = as_contiguous(*grad_lse);
    }
  }

  BackwardCall call() const {
    return {.forward = {.q = view_of("q", q), .k = view_of("k", k), .v = view_of("v", v)},
            .out = view_of("out", out),
            .lse = view_of("lse", lse),
            .grad_out = view_of("grad_out", grad_out),
            .grad_lse = grad_lse ? std::optional(view_of("grad_lse", *grad_lse)) : std::nullopt};
  }

  Tensor grad_out, out, lse;
  std::optional<Tensor> grad_lse;
  Tensor q, k, v;
};

std::optional<Packing> take_packing(Arguments& arguments) {
  auto const cu_seqlens_q = arguments.take_optional_tensor("cu_seqlens_q");
  auto const cu_seqlens_k = arguments.take_optional_tensor("cu_seqlens_k");
  auto const max_seqlen_q = arguments.take<int64_t>(), max_seqlen_k = arguments.take<int64_t>();
  require(cu_seqlens_q.has_value() == cu_seqlens_k.has_value(),
          "one of cu_seqlens_q and cu_seqlens_k came: expected both, or neither");
  return cu_seqlens_q
             ? std::optional(Packing{*cu_seqlens_q, *cu_seqlens_k, max_seqlen_q, max_seqlen_k})
             : std::nullopt;
}

// Those of q, k and v.
struct Gradients {
  BackwardParams placed(BackwardParams params, Call const& call) const {
    std::tie(params.dq, params.dq_strides) = dq.place(call.q);
    std::tie(params.dk, params.dk_strides) = dk.place(call.k);
    std::tie(params.dv, params.dv_strides) = dv.place(call.v);
    return params;
  }

  Gradient dq, dk, dv;
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
                        VariantCall const& variant,
                        std::optional<std::vector<int64_t>> const& promised,
                        std::vector<TensorView> const& sums, std::vector<int64_t> const& summed,
                        Options const& options) {
  int32_t const device_index = q.get_device_index();
  torch::stable::accelerator::DeviceGuard const guard(device_index);
  auto const program = known_variant(variant.text);
  variant::Arguments captured = check_variant(variant, *program, view_of("q", q).device, options);
  set_sums(captured, sums, summed);
  GradientKernel const kernel = select_gradient(problem.dtype, params, current_gpu(device_index),
                                                *program, summed, options.config);
  params.set_shape(with_variant(kernel.row->row.shape));
  auto const workspace = allocate_workspace<Backward>(q, params);
  void* const stream = current_cuda_stream(device_index);
  MadeMemory memory(kernel, params, captured, Promise::of(promised, captured), q, stream);
  int const error = kernel.row->run(*kernel.row, kernel.features, params, captured, memory.data(),
                                    memory.is_made(), stream);
  require_able(error == 0,
               "the kernel of the variant was not launched: ", kernel.library->error_string(error));
  memory.launched();
}

}  // namespace

void run_backward(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments(stack);
  Inputs const inputs(arguments);
  BackwardCall call = inputs.call();
  call.forward.packing = take_packing(arguments);
  call.forward.options = arguments.take_options();
  BackwardProblem const problem = backward_problem_of(call);
  Gradients const gradients{{allocate_like("dq", inputs.q), "dq"},
                            {allocate_like("dk", inputs.k), "dk"},
                            {allocate_like("dv", inputs.v), "dv"}};
  BackwardParams const params = gradients.placed(problem.params, call.forward);
  if (call.forward.q.device.kind == Device::Kind::kCpu) {
    run_on_cpu(params, problem.dtype, inputs.q);
  } else {
    run_on_gpu(problem, params, inputs.q, call.forward.options.config);
  }
  put_results(stack, gradients.dq.tensor, gradients.dk.tensor, gradients.dv.tensor);
}

void run_variant_backward(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments(stack);
  Inputs const inputs(arguments);
  BackwardCall call = inputs.call();
  call.forward.packing = take_packing(arguments);
  Gradients const gradients{{arguments.take<Tensor>(), "dq"},
                            {arguments.take<Tensor>(), "dk"},
                            {arguments.take<Tensor>(), "dv"}};
  VariantCall const variant{
      .text = arguments.take<std::string>(),
      .tensors = arguments.take_tensors("a tensor of the variant", /*optional=*/true),
      .reals = arguments.take_list<double>(),
      .integers = arguments.take_list<int64_t>()};
  auto const sums = arguments.take_tensors("sums of a captured tensor");
  auto const summed = arguments.take<std::vector<int64_t>>();
  auto const promised = arguments.take<std::optional<std::vector<int64_t>>>();
  call.forward.options = arguments.take_options();
  BackwardProblem const problem = backward_problem_of(call);
  run_variant_on_gpu(problem, gradients.placed(problem.params, call.forward), inputs.q, variant,
                     promised, sums, summed, call.forward.options);
}

}  // namespace pyflash
