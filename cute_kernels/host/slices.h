// Cuts a problem whose keys are split at fixed places into slices of sequences and heads, one after the other, so that partial
// results, of which a long prefill has one for each 1024 keys, take no more memory than one slice's. Bits depend on no slice.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cute_kernels/forward.h"

namespace pyflash {

inline constexpr int64_t kMostBytesOfParts = int64_t(1) << 28;

// Some sequences, and some heads of K and V with those of q that attend them.
struct Slice {
  int first_sequence;
  int n_sequences;
  int first_head;
  int n_heads;
};

inline Forward::Params slice_of(Forward::Params params, Slice const& slice) {
  constexpr int kElementBytes = 2;
  int const group = params.heads / params.heads_kv, head_q = slice.first_head * group;
  auto const moved = [&](auto*& data, TensorStrides const& strides, int bytes, int head,
                         int batch) {
    auto* const from = static_cast<char const*>(static_cast<void const*>(data));
    void const* const to = from + bytes * (batch * strides.batch + head * strides.head);
    data = static_cast<std::remove_reference_t<decltype(data)>>(const_cast<void*>(to));
  };
  int const b = slice.first_sequence;
  moved(params.q, params.q_strides, kElementBytes, head_q, b);
  moved(params.o, params.o_strides, kElementBytes, head_q, b);
  params.lse += b * params.lse_strides.batch + head_q * params.lse_strides.head;
  // NOTE: the batches of strides of K and V in pages are pages.
  bool const paged = params.kv().is_paged();
  params.skip_kv(paged ? 0 : b, slice.first_head);
  if (paged) {
    params.pages.table += b * params.pages.table_stride;
    params.pages.lengths += b;
  }
  for (PerHead* const numbers : {&params.sinks, &params.alibi_slopes}) {
    if (numbers->data != nullptr) {
      moved(numbers->data, numbers->strides, numbers->is_fp32 ? 4 : kElementBytes, head_q, b);
    }
  }
  params.batch = slice.n_sequences;
  params.heads = slice.n_heads * group;
  params.heads_kv = slice.n_heads;
  Sequences const q = params.q_sequences();
  params.lse_strides.split =
      int64_t(q.tensor_batches(params.batch)) * params.heads * q.tensor_rows();
  return params;
}

// Calls launch(params) for the slices of a problem, or for all of it where its partial results take at most so many bytes.
// NOTE: lse of a slice is contiguous, as who merges writes it: all heads of some sequences, or heads of one, or of packed ones.
template <class Launch>
void for_each_slice(Forward::Params const& params, Launch const& launch,
                    int64_t most_bytes = kMostBytesOfParts) {
  int64_t const all = params.lse_strides.split * params.num_splits * (params.d_head + 1) * 4;
  if (!params.has_fixed_splits || !leaves_parts(params) || all <= most_bytes) {
    launch(params);
    return;
  }
  bool const packed = params.q_sequences().is_packed();
  int64_t const of_sequence = all / params.q_sequences().tensor_batches(params.batch);
  auto const fitting = [&](int64_t bytes, int most) {
    return static_cast<int>(std::clamp<int64_t>(most_bytes / bytes, 1, most));
  };
  int const n_sequences = packed ? params.batch : fitting(of_sequence, params.batch);
  int const n_heads = packed || n_sequences == 1
                          ? fitting(of_sequence / params.heads_kv, params.heads_kv)
                          : params.heads_kv;
  for (int b = 0; b < params.batch; b += n_sequences) {
    for (int head = 0; head < params.heads_kv; head += n_heads) {
      launch(slice_of(params, {.first_sequence = b,
                               .n_sequences = std::min(n_sequences, params.batch - b),
                               .first_head = head,
                               .n_heads = std::min(n_heads, params.heads_kv - head)}));
    }
  }
}

}  // namespace pyflash
