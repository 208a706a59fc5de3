// A call of op backward as it came, and the way from it to a problem, for the op, for select and for the emulator.
#pragma once

#include <optional>

#include "cute_kernels/backward_params.h"
#include "cute_kernels/host/call.h"
#include "cute_kernels/host/problem.h"
#include "cute_kernels/host/tensor_view.h"

namespace pyflash {

// The forward pass, its results, and the gradients of these.
struct BackwardCall {
  Call forward;
  TensorView out;
  TensorView lse;
  TensorView grad_out;
  std::optional<TensorView> grad_lse;
};

struct BackwardProblem {
  DType dtype;
  BackwardParams params;  // but for the outputs, and what depends on the config
};

// What of a problem of op forward the gradients depend on, with the gradients of q, k and v as `empty_like` has them.
BackwardParams backward_params(Problem const& problem);

// Refuses what attention does not accept, and results that are not those of the call. But for the config: selection looks at
// that.
BackwardProblem backward_problem_of(BackwardCall const& call);

// Where a gradient goes, for which `like` is an input: of its shape, dtype and device.
TensorStrides strides_of_gradient(TensorView const& gradient, TensorView const& like);

}  // namespace pyflash
