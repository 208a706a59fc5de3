// The problem as a kernel sees it: pointers, strides, extents. Strides are in elements and 64-bit, so that no offset
// between rows, heads or batches can overflow.
#pragma once

#include <cstdint>

namespace pyflash {

struct TensorStrides {
  int64_t batch;  // 0 where sequences are packed
  int64_t row;
  int64_t head;
};

// Of lse, whose rows are adjacent.
struct LseStrides {
  int64_t batch;  // 0 where sequences are packed
  int64_t head;
  int64_t split;  // of lse_partial: the number of elements of lse
};

// The sink of a row is sinks[head * sink_strides.head + row * sink_strides.row], row being that of the Q block's sequence.
// Where heads of q are rows of one Q block, so are their sinks.
struct SinkStrides {
  int64_t head;
  int64_t row;
};

// What becomes of a raw score s, before softmax_scale: outer * tanh(inner * s), an exponent of 2. Scores are mostly far below
// a cap, and a few terms of the series do.
// - Three: s * (constant + linear * s^2 + quadratic * s^4), as long as none of a row's exceeds `largest` and the exponent of
//   their maximum is at least least_exponent.
// - Two: s * (constant_of_two + linear_of_two * s^2), as long as |s| <= largest_of_two.
// cap 0: scores stay, and the rest means nothing.
struct Softcap {
  float cap;
  float inner;
  float outer;
  float largest;
  float least_exponent;
  float constant;
  float linear;
  float quadratic;
  float largest_of_two;
  float constant_of_two;
  float linear_of_two;
};

// A window that cuts nothing. Extents are at most half of it, so that sums of the two are ints.
inline constexpr int kNoWindow = 1 << 30;

// A warp merges this many splits of a row at most.
inline constexpr int kMaxSplits = 128;

// Sequences are padded, (batch, seqlen, heads, d_head), or packed, (total, heads, d_head): then the rows of sequence b of
// q, o and lse are [cu_seqlens_q[b], cu_seqlens_q[b + 1]), those of k and v the like, and seqlen_q and seqlen_k are the
// largest lengths.
struct ForwardParams {
  void const* q;  // (batch, seqlen_q, heads, d_head)
  void const* k;  // (batch, seqlen_k, heads_kv, d_head)
  void const* v;  // (batch, seqlen_k, heads_kv, d_head)
  void* o;        // (batch, seqlen_q, heads, d_head)
  float* lse;     // (batch, heads, seqlen_q), natural log; packed: (heads, total_q)

  int const* cu_seqlens_q;  // (batch + 1), ascending from 0 to total_q; nullptr: padded
  int const* cu_seqlens_k;  // (batch + 1), ascending from 0 to total_k; nullptr: padded

  // Where num_splits > cluster, what each split of the keys makes of them goes here, and o and lse are merged from it.
  float* o_partial;    // (num_splits, elements of lse, d_head)
  float* lse_partial;  // (num_splits, elements of lse)

  TensorStrides q_strides;
  TensorStrides k_strides;
  TensorStrides v_strides;
  TensorStrides o_strides;
  LseStrides lse_strides;

  int batch;
  int heads;     // of q and o: a multiple of heads_kv
  int heads_kv;  // of k and v: head h of q attends head h / (heads / heads_kv)
  int seqlen_q;
  int seqlen_k;
  int total_q;  // packed: rows of q; padded: 0
  int total_k;  // packed: rows of k and v; padded: 0
  int d_head;   // a multiple of 8, at most that of the config

  // Query i of a sequence attends the keys j with -window_left <= j - (i + seqlen_k - seqlen_q) <= window_right.
  int window_left;
  int window_right;

  int num_splits;  // from 1 to kMaxSplits
  int cluster;     // CTAs that share a tile, a split each, and merge them: num_splits, or 1

  float softmax_scale;
  float inverse_scale_log2;  // 1 / (softmax_scale * log2(e)), at most 1e28
  Softcap softcap;

  // A logit per head, or per head and row, that joins the softmax denominator only; of fp32, or of q's type.
  void const* sinks;  // nullptr: none
  SinkStrides sink_strides;
  bool sinks_are_fp32;
};

}  // namespace pyflash
