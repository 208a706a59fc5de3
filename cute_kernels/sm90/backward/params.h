// The problem as the kernels of a backward see it, and what a launch hands to the main one.
#pragma once

#include <cstdint>

#include <cuda.h>
#include <cutlass/fast_math.h>

#include "cute_kernels/params.h"

namespace pyflash::sm90::backward {

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

  // Workspace: whole blocks of B_r queries of each head, n_m_blocks of them.
  float*
      dq_sum;  // (batch, heads, n_m_blocks, B_r * d_head of the config), in the order of AccOrder
  float*
      lse2;  // (batch, heads, n_m_blocks * B_r): lse in base 2; +inf where there is no query, or no key for it
  float*
      delta;  // (batch, heads, n_m_blocks * B_r): rowsum(dO * O) - dlse; 0 where there is no query

  TensorStrides q_strides;
  TensorStrides k_strides;
  TensorStrides v_strides;
  TensorStrides o_strides;
  TensorStrides grad_o_strides;
  TensorStrides dq_strides;
  TensorStrides dk_strides;
  TensorStrides dv_strides;
  int64_t lse_stride_batch;
  int64_t lse_stride_head;

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
  int n_m_blocks;

  PYFLASH_HOST_DEVICE constexpr Mask mask() const {
    return {.window_left = window_left, .window_right = window_right};
  }
  PYFLASH_HOST_DEVICE constexpr Sequences q_sequences() const {
    return Sequences::padded(seqlen_q);
  }
  PYFLASH_HOST_DEVICE constexpr Sequences k_sequences() const {
    return Sequences::padded(seqlen_k);
  }
};

// Tiles are key blocks. Those of a section of heads, whose Q, dO and dQ have room in L2 together, go from the first key block
// to the last: under a right window from the longest to the shortest.
struct TileOrder {
  int n_tiles;
  int last_section;  // its number
  cutlass::FastDivmod by_section_tiles;
  cutlass::FastDivmod by_section;  // heads of a section
  cutlass::FastDivmod by_last_section;
  cutlass::FastDivmod by_heads;  // of k and v
};

struct KernelParams {
  CUtensorMap q_map;   // (d_head, seqlen_q, heads, batch)
  CUtensorMap do_map;  // (d_head, seqlen_q, heads, batch)
  CUtensorMap k_map;   // (d_head, seqlen_k, heads_kv, batch)
  CUtensorMap v_map;   // (d_head, seqlen_k, heads_kv, batch)
  BackwardParams problem;
  TileOrder order;
};

}  // namespace pyflash::sm90::backward
