// Merges the parts of tiles that equal shares left, as cute_kernels/shares.cu does, for the emulator.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "cute_kernels/forward.h"
#include "cute_kernels/host/float16.h"

namespace pyflash {

template <class Element>
float sink_of(Forward::Params const& params, int64_t head, int64_t row) {
  if (params.sinks.data == nullptr) {
    return -INFINITY;
  }
  TensorStrides const& strides = params.sinks.strides;
  int64_t const offset = head * strides.head + row * strides.row;
  return params.sinks.is_fp32 ? static_cast<float const*>(params.sinks.data)[offset]
                              : float(static_cast<Element const*>(params.sinks.data)[offset]);
}

// A row of a tile.
template <class Element>
void merge_row(Forward::Params const& params, Parts const& parts, int row, int64_t batch,
               int64_t head, int64_t row_of_o) {
  float const sink = sink_of<Element>(params, head, row_of_o);
  float maximum = sink;
  auto const place = [&](int part) {
    return int64_t(parts.place(part)) * params.rows_of_part() + row;
  };
  for (int part = 0; part < parts.count(); ++part) {
    // NOTE: so that NaN, which nobody wrote over, shows.
    float const lse = params.lse_partial[place(part)];
    maximum = lse > maximum || lse != lse ? lse : maximum;
  }
  float const shift = maximum == -INFINITY ? 0.f : maximum;
  float sum = std::exp(sink - shift);
  std::vector<float> o(params.d_head);
  for (int part = 0; part < parts.count(); ++part) {
    float const weight = std::exp(params.lse_partial[place(part)] - shift);
    sum += weight;
    for (int column = 0; column < params.d_head; ++column) {
      o[column] += weight * params.o_partial[place(part) * params.d_head + column];
    }
  }
  Element* const to = static_cast<Element*>(params.o) + batch * params.o_strides.batch +
                      head * params.o_strides.head + row_of_o * params.o_strides.row;
  for (int column = 0; column < params.d_head; ++column) {
    to[column] = Element(sum == 0.f ? 0.f : o[column] / sum);
  }
  params.lse[batch * params.lse_strides.batch + head * params.lse_strides.head + row_of_o] =
      maximum + std::log(sum);
}

template <class Element>
void merge_shares_of(Forward::Params const& params) {
  auto const* const list = reinterpret_cast<int const*>(params.share_list);
  int const group = params.group_of_share();
  for (int share = 0; share < params.n_shares; ++share) {
    Parts const parts = parts_of(params.share_listing(), list, share);
    if (parts.count() == 0) {
      continue;
    }
    Rows const rows = params.q_sequences().rows_of(parts.sequence, HostLoader{});
    int const n_rows = std::min(rows.length * group, params.rows_of_part());
    for (int row = 0; row < n_rows; ++row) {
      merge_row<Element>(params, parts, row, params.q_sequences().tensor_batch(parts.sequence),
                         parts.head * group + row % group, rows.begin + row / group);
    }
  }
}

inline void merge_shares_on_host(Forward::Params const& params, DType dtype) {
  if (dtype == DType::FP16) {
    merge_shares_of<Float16>(params);
  } else {
    merge_shares_of<BFloat16>(params);
  }
}

}  // namespace pyflash
