// The op `backward` as its kernels see it: the gradients of q, k and v of attention, from those of O and lse.
#pragma once

#include <compare>
#include <cstdint>

#include "cute_kernels/config.h"
#include "cute_kernels/feature_members.h"
#include "cute_kernels/params.h"

// What a kernel can do beyond attention in which every query attends every key. Which combinations are built:
// pyflash/config/backward.py.
// NOTE: outside namespace pyflash for the same reason as the configs: config.h.
struct BackwardFeatures {
  bool right_window = false;  // causal too
  bool left_window = false;

  friend auto operator<=>(BackwardFeatures const&, BackwardFeatures const&) = default;

  // A feature and its name in Python. The list has every member, once.
  struct Member {
    char const* name;
    bool BackwardFeatures::* value;
  };
  static constexpr Member kMembers[] = {{"right_window", &BackwardFeatures::right_window},
                                        {"left_window", &BackwardFeatures::left_window}};
};

namespace pyflash {

static_assert(lists_every_member_once<BackwardFeatures>(),
              "BackwardFeatures::kMembers lacks a feature, or has it twice");

// How a config cuts a problem into tiles.
struct BackwardShape {
  int B_r;     // queries of a block
  int B_c;     // keys per CTA
  int d_head;  // columns of a tile
};

// Queries of a part of the workspace: blocks have a multiple of it.
inline constexpr int kQueriesOfPiece = 64;

// Sequences are padded. Strides are in elements. k, v, dk and dv have heads_kv heads, the others have heads.
struct BackwardParams {
  void const* q;          // (batch, seqlen_q, heads, d_head)
  void const* k;          // (batch, seqlen_k, heads_kv, d_head)
  void const* v;          // (batch, seqlen_k, heads_kv, d_head)
  void const* o;          // (batch, seqlen_q, heads, d_head)
  void const* grad_o;     // (batch, seqlen_q, heads, d_head)
  float const* lse;       // (batch, heads, seqlen_q), natural log
  float const* grad_lse;  // the same, by lse_strides; nullptr: zeros
  void* dq;               // (batch, seqlen_q, heads, d_head)
  void* dk;               // (batch, seqlen_k, heads_kv, d_head)
  void* dv;               // (batch, seqlen_k, heads_kv, d_head)

  // Workspace: padded_q rows of each head.
  float* dq_sum;  // (batch, heads, padded_q * columns), as sums_of says
  float* lse2;    // (batch, heads, padded_q): lse in base 2; +inf: no such query, or no key for it
  float* delta;   // (batch, heads, padded_q): rowsum(dO * O) - dlse; 0 where there is no query

  TensorStrides q_strides;
  TensorStrides k_strides;
  TensorStrides v_strides;
  TensorStrides o_strides;
  TensorStrides grad_o_strides;
  TensorStrides dq_strides;
  TensorStrides dk_strides;
  TensorStrides dv_strides;
  LseStrides lse_strides;

  int batch;
  int heads;     // a multiple of heads_kv
  int heads_kv;  // head h of q attends head h / (heads / heads_kv)
  int seqlen_q;
  int seqlen_k;
  int d_head;  // a multiple of 8, at most that of the config

  // As Mask has them.
  int window_left;
  int window_right;

  float softmax_scale;

  // What follows from the config that runs it.
  int padded_q;  // seqlen_q, in whole blocks
  int columns;   // d_head of the config

  PYFLASH_HOST_DEVICE constexpr Mask mask() const {
    return {.window_left = window_left, .window_right = window_right};
  }
  PYFLASH_HOST_DEVICE constexpr Sequences q_sequences() const {
    return Sequences::padded(seqlen_q);
  }
  PYFLASH_HOST_DEVICE constexpr Sequences k_sequences() const {
    return Sequences::padded(seqlen_k);
  }

  constexpr void set_shape(BackwardShape const& shape) {
    padded_q = ceil_div(seqlen_q, shape.B_r) * shape.B_r;
    columns = shape.d_head;
  }

  // A row of the workspace. NOTE: memory has no room for 2^31 of them.
  PYFLASH_HOST_DEVICE constexpr int workspace_row(int batch_, int head, int query) const {
    return (batch_ * heads + head) * padded_q + query;
  }
  // The sums of kQueriesOfPiece rows from `row` on are pieces of as many columns, side by side: each has what a warpgroup computes of
  // it, a warp after the other, four values of each lane at a time in the order of MMA accumulators.
  PYFLASH_HOST_DEVICE constexpr float* sums_of(int row) const {
    return dq_sum + int64_t(row) * columns;
  }
};

inline BackwardFeatures features_needed(BackwardParams const& params, int /*d_head_of_config*/) {
  return {.right_window = params.mask().cuts_right(), .left_window = params.mask().cuts_left()};
}

}  // namespace pyflash
