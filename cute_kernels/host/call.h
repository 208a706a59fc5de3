// A call of pyflash::fwd, pyflash::fwd_varlen or pyflash::fwd_paged, and its conversion to a problem: the one place that
// checks and normalises arguments, for the op, for select and for the emulator.
#pragma once

#include <cstdint>
#include <optional>

#include "cute_kernels/host/options.h"
#include "cute_kernels/host/problem.h"
#include "cute_kernels/host/tensor_view.h"

namespace pyflash {

inline constexpr int64_t kMaxHeadDim = 256;

struct Packing {
  TensorView cu_seqlens_q;
  TensorView cu_seqlens_k;
  int64_t max_seqlen_q;
  int64_t max_seqlen_k;
};

struct PackedQueries {
  TensorView cu_seqlens_q;
  int64_t max_seqlen_q;
};

struct Paging {
  TensorView block_table;
  TensorView seqlens_k;
  std::optional<PackedQueries> packed;
  std::optional<TensorView> k_scale = {};  // of caches in e4m3, as is v_scale: (), or (heads_kv,)
  std::optional<TensorView> v_scale = {};

  bool has_fp8() const { return k_scale.has_value() || v_scale.has_value(); }
};

struct Call {
  TensorView q;
  TensorView k;
  TensorView v;
  std::optional<Packing> packing;  // of fwd_varlen
  std::optional<Paging> paging;    // of fwd_paged
  Options options;
};

// Refuses what attention does not accept; selection checks the config. Strides of the outputs are those of contiguous
// tensors.
Problem problem_of(Call const& call, int64_t max_d_head = kMaxHeadDim);
// The same without what is simplified of one query.
Problem problem_as_asked(Call const& call, int64_t max_d_head = kMaxHeadDim);

}  // namespace pyflash
