// What the op accepts. Checked here, once, before anything is allocated or launched.
#pragma once

#include <optional>

#include "cute_kernels/bindings/select.h"
#include "cute_kernels/bindings/torch_stable.h"

namespace pyflash {

// The arguments of pyflash::fwd but for the config, as they came.
struct Arguments {
  torch::stable::Tensor q;
  torch::stable::Tensor k;
  torch::stable::Tensor v;
  std::optional<double> softmax_scale;
  bool causal;
  int64_t window_left;
  int64_t window_right;
  double softcap;
};

struct CheckedArguments {
  Problem problem;
  ForwardParams params;  // but for the outputs: o, lse and o_strides
};

// Refuses what the op cannot do, naming the argument, what was expected and what came.
CheckedArguments check(Arguments const& arguments);

}  // namespace pyflash
