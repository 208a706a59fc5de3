// What the ops accept. Checked here, once, before anything is allocated or launched. A refusal names the argument, what was
// expected and what came.
#pragma once

#include <optional>

#include "cute_kernels/bindings/torch_stable.h"
#include "cute_kernels/host/problem.h"

namespace pyflash {

struct Inputs {
  torch::stable::Tensor const& q;
  torch::stable::Tensor const& k;
  torch::stable::Tensor const& v;
};

struct Packing {
  torch::stable::Tensor const& cu_seqlens_q;
  torch::stable::Tensor const& cu_seqlens_k;
  int64_t max_seqlen_q;
  int64_t max_seqlen_k;
};

struct Options {
  std::optional<double> softmax_scale;
  bool causal;
  int64_t window_left;
  int64_t window_right;
  double softcap;
  int64_t num_splits;
};

// Of pyflash::fwd and of pyflash::fwd_varlen. The strides of the outputs are those of contiguous tensors.
Problem check_padded(Inputs const& inputs, Options const& options);
Problem check_packed(Inputs const& inputs, Packing const& packing, Options const& options);

// Puts the options into a problem whose extents are known.
void apply_options(Options const& options, Problem& problem);

}  // namespace pyflash
