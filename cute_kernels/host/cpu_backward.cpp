// FlashAttention backward (Dao 2023, algorithm 2) in fp32 on rows that were converted from the 16-bit type once. Of each head
// of q:
//   delta = rowsum(dO * O) - dlse
//   for each block of keys, for each block of queries of which some attends a part of it:
//     P = exp(S - lse), dS = P (dO V^T - delta), where a query attends a key; else both are 0
//     dV += P^T dO, dK += dS^T Q, dQ += dS K
//   dq = softmax_scale dQ, dk = softmax_scale dK
// With dropout, dO V^T and the P of dV are what is kept of them, times 1 / (1 - p).
#include "cute_kernels/host/cpu_backward.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "cute_kernels/host/cpu_matrix.h"
#include "cute_kernels/host/dropout.h"
#include "cute_kernels/host/float16.h"

namespace pyflash {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kB_r = 64;
constexpr int kB_c = 64;

int heads_of_a_group(BackwardParams const& params) {
  return params.heads / larger(params.heads_kv, 1);
}

// Where a head of q leaves its dK and dV: rows of the tensors of k, each of d_head columns.
struct HeadSums {
  BackwardParams const& params;

  int64_t n_rows() const {
    Sequences const& keys = params.k_sequences;
    return int64_t(keys.tensor_batches(params.batch)) * keys.tensor_rows();
  }
  int64_t size() const { return 2 * params.heads * n_rows() * params.d_head; }
  // which: 0 of dK, 1 of dV. row: of the tensor.
  int64_t offset_of(int which, int head, int tensor_batch, int row) const {
    int64_t const of_head = (which * int64_t(params.heads) + head) * n_rows();
    int64_t const of_batch = int64_t(tensor_batch) * params.k_sequences.tensor_rows();
    return (of_head + of_batch + row) * params.d_head;
  }
};

// A head of q of a sequence.
template <class Element>
class HeadBackward {
 public:
  HeadBackward(BackwardParams const& params, float* sums)
      : params_(params),
        sums_(sums),
        group_(heads_of_a_group(params)),
        Q_(padded(params.q_sequences.longest, kB_r), params.d_head),
        dO_(Q_.rows, params.d_head),
        dQ_(Q_.rows, params.d_head),
        lse_(Q_.rows),
        delta_(Q_.rows),
        K_(kB_c, params.d_head),
        Kt_(params.d_head, kB_c),
        Vt_(params.d_head, kB_c),
        P_(kB_r, kB_c),
        dS_(kB_r, kB_c),
        dK_(kB_c, params.d_head),
        dV_(kB_c, params.d_head) {}

  void run(int sequence, int head) {
    head_ = head;
    sequence_ = sequence;
    queries_ = params_.q_sequences.rows_of(sequence, HostLoader{});
    keys_ = params_.k_sequences.rows_of(sequence, HostLoader{});
    queries_.length = smaller(queries_.length, params_.q_sequences.longest);
    keys_.length = smaller(keys_.length, params_.k_sequences.longest);
    dropped_.reset();
    if (params_.dropout.drops()) {
      dropped_.emplace(params_.dropout, params_.heads, sequence, head);
    }
    load_queries();
    for (int first_key = 0; first_key < keys_.length; first_key += kB_c) {
      int const n_keys = smaller(kB_c, keys_.length - first_key);
      dK_.clear();
      dV_.clear();
      Interval const attending = attending_of(first_key, n_keys);
      if (attending.size() > 0) {
        load_keys(first_key, n_keys);
      }
      Interval const blocks = attending.blocks_touched(kB_r);
      for (int block = blocks.begin; attending.size() > 0 && block < blocks.end; ++block) {
        int const first_query = block * kB_r;
        int const n_queries = smaller(kB_r, queries_.length - first_query);
        add_block(first_query, first_key,
                  {larger(attending.begin - first_query, 0),
                   smaller(attending.end - first_query, n_queries)},
                  n_keys);
      }
      store_keys(first_key, n_keys);
    }
    store_queries();
  }

 private:
  static int64_t padded(int64_t n, int64_t multiple) { return ceil_div(n, multiple) * multiple; }

  int tensor_batch() const { return params_.q_sequences.tensor_batch(sequence_); }

  // The queries of which some attend one of these keys.
  Interval attending_of(int first_key, int n_keys) const {
    auto const queries = params_.mask.queries_from(first_key, queries_.length, keys_.length);
    Interval const some = queries.of_some(n_keys).from_0();
    return {some.begin, smaller(some.end, queries_.length)};
  }

  void load_queries() {
    auto const row_of = [&](void const* tensor, TensorStrides const& strides, int r) {
      return strides.at(static_cast<Element const*>(tensor), tensor_batch(), head_,
                        queries_.begin + r);
    };
    int const d_head = params_.d_head;
    load_rows(Q_, 0, queries_.length, d_head,
              [&](int r) { return row_of(params_.q, params_.q_strides, r); });
    load_rows(dO_, 0, queries_.length, d_head,
              [&](int r) { return row_of(params_.grad_o, params_.grad_o_strides, r); });
    dQ_.clear();
    int64_t const first = tensor_batch() * params_.lse_strides.batch +
                          head_ * params_.lse_strides.head + queries_.begin;
    for (int r = 0; r < queries_.length; ++r) {
      Element const* const o = row_of(params_.o, params_.o_strides, r);
      float sum = 0.f;
      for (int c = 0; c < d_head; ++c) {
        sum += dO_.row(r)[c] * static_cast<float>(o[c]);
      }
      lse_[r] = params_.lse[first + r];
      delta_[r] = sum - (params_.grad_lse == nullptr ? 0.f : params_.grad_lse[first + r]);
    }
  }

  void load_keys(int first_key, int n_keys) {
    int const head_kv = head_ / group_;
    auto const row_of = [&](void const* tensor, TensorStrides const& strides, int r) {
      return strides.at(static_cast<Element const*>(tensor), tensor_batch(), head_kv,
                        keys_.begin + first_key + r);
    };
    auto const k_row = [&](int r) { return row_of(params_.k, params_.k_strides, r); };
    load_rows(K_, 0, n_keys, params_.d_head, k_row);
    load_transposed(Kt_, 0, n_keys, params_.d_head, k_row);
    load_transposed(Vt_, 0, n_keys, params_.d_head,
                    [&](int r) { return row_of(params_.v, params_.v_strides, r); });
  }

  // Adds what the block is of dQ, dK and dV. rows: the queries of the block of which some attend keys of it.
  void add_block(int first_query, int first_key, Interval rows, int n_keys) {
    int const aligned =
        aligned_column(first_query + rows.begin, queries_.length, keys_.length) - first_key;
    // Keys of the block that row rows.begin + i of it attends.
    auto const band = params_.mask.keys_from(aligned + first_key, keys_.length);
    auto const columns_of = [&](int i) {
      int const begin = std::clamp(band.begin(i) - first_key, 0, n_keys);
      return Interval{begin, std::clamp(band.end(i) - first_key, begin, n_keys)};
    };
    Interval const some{columns_of(0).begin, columns_of(rows.size() - 1).end};
    if (some.size() == 0) {
      return;
    }
    // Whole tiles, with zeros beside what is attended.
    Interval const row_tiles{rows.begin / kRowsMultiple * kRowsMultiple,
                             int(padded(rows.end, kRowsMultiple))};
    Interval const column_tiles{some.begin / kColumnsMultiple * kColumnsMultiple,
                                int(padded(some.end, kColumnsMultiple))};
    int const d_head = params_.d_head;
    P_.clear();
    dS_.clear();
    int64_t const from = first_query + row_tiles.begin;
    accumulate(P_.part(row_tiles.begin, column_tiles.begin), Q_.part(from),
               Kt_.part(0, column_tiles.begin), row_tiles.size(), column_tiles.size(), d_head);
    accumulate(dS_.part(row_tiles.begin, column_tiles.begin), dO_.part(from),
               Vt_.part(0, column_tiles.begin), row_tiles.size(), column_tiles.size(), d_head);
    for (int r = row_tiles.begin; r < row_tiles.end; ++r) {
      bool const attends = r >= rows.begin && r < rows.end && lse_[first_query + r] != -kInfinity;
      Interval columns = attends ? columns_of(r - rows.begin) : Interval{0, 0};
      columns.begin = std::clamp(columns.begin, column_tiles.begin, column_tiles.end);
      columns.end = std::clamp(columns.end, columns.begin, column_tiles.end);
      char const* const kept = dropped_ ? drop_dP(r, first_query + r, first_key, columns) : nullptr;
      to_dS(r, first_query + r, columns, aligned + r - rows.begin);
      if (kept != nullptr) {
        drop(P_, r, columns, kept);
      }
      for (Tile* tile : {&P_, &dS_}) {
        std::fill(tile->row(r) + column_tiles.begin, tile->row(r) + columns.begin, 0.f);
        std::fill(tile->row(r) + columns.end, tile->row(r) + column_tiles.end, 0.f);
      }
    }
    accumulate(dQ_.part(from), dS_.part(row_tiles.begin, some.begin), K_.part(some.begin),
               row_tiles.size(), dQ_.columns, some.size());
    accumulate_transposed(dK_.part(column_tiles.begin), dS_.part(rows.begin, column_tiles.begin),
                          Q_.part(first_query + rows.begin), column_tiles.size(), dK_.columns,
                          rows.size());
    accumulate_transposed(dV_.part(column_tiles.begin), P_.part(rows.begin, column_tiles.begin),
                          dO_.part(first_query + rows.begin), column_tiles.size(), dV_.columns,
                          rows.size());
  }

  // Leaves what is kept of a row, times 1 / (1 - p). kept: of each of the columns.
  void drop(Tile& tile, int r, Interval columns, char const* kept) const {
    for (int c = columns.begin; c < columns.end; ++c) {
      tile.row(r)[c] = kept[c - columns.begin] ? tile.row(r)[c] * params_.dropout.factor : 0.f;
    }
  }

  // Returns what is kept.
  char const* drop_dP(int r, int query, int first_key, Interval columns) {
    char const* const kept = dropped_->kept(query, first_key + columns.begin, columns.size());
    drop(dS_, r, columns, kept);
    return kept;
  }

  // Turns what of a row of S and of dP is attended into P and dS. aligned: the column that the row is aligned with.
  void to_dS(int r, int query, Interval columns, int aligned) {
    float* const P = P_.row(r);
    float* const dS = dS_.row(r);
    float const lse = lse_[query], delta = delta_[query], scale = params_.softmax_scale;
    if (params_.softcap.cap > 0) {
      for (int c = columns.begin; c < columns.end; ++c) {
        float const t = std::tanh(P[c] * params_.softcap.inner);
        P[c] = std::exp(t * params_.softcap.cap - lse);
        dS[c] = P[c] * (dS[c] - delta) * ((1.f - t) * (1.f + t));
      }
      return;
    }
    float const slope = slope_of_head();
    for (int c = columns.begin; c < columns.end; ++c) {
      float const bias = slope * std::abs(static_cast<float>(aligned - c));
      P[c] = std::exp(P[c] * scale - bias - lse);
      dS[c] = P[c] * (dS[c] - delta);
    }
  }

  float slope_of_head() const {
    PerHead const& slopes = params_.alibi_slopes;
    if (slopes.data == nullptr) {
      return 0.f;
    }
    int64_t const i = slopes.strides.offset_of(sequence_, head_, 0);
    return slopes.is_fp32 ? static_cast<float const*>(slopes.data)[i]
                          : static_cast<float>(static_cast<Element const*>(slopes.data)[i]);
  }

  void store_queries() {
    for (int r = 0; r < queries_.length; ++r) {
      Element* const to = params_.dq_strides.at(static_cast<Element*>(params_.dq), tensor_batch(),
                                                head_, queries_.begin + r);
      store_row<Element>(dQ_.row(r), to, params_.softmax_scale);
    }
  }

  void store_keys(int first_key, int n_keys) {
    for (int r = 0; r < n_keys; ++r) {
      int const row = keys_.begin + first_key + r;
      if (group_ > 1) {
        HeadSums const places{params_};
        std::copy_n(dK_.row(r), params_.d_head,
                    sums_ + places.offset_of(0, head_, tensor_batch(), row));
        std::copy_n(dV_.row(r), params_.d_head,
                    sums_ + places.offset_of(1, head_, tensor_batch(), row));
        continue;
      }
      store_row<Element>(
          dK_.row(r),
          params_.dk_strides.at(static_cast<Element*>(params_.dk), tensor_batch(), head_, row),
          params_.softmax_scale);
      store_row<Element>(
          dV_.row(r),
          params_.dv_strides.at(static_cast<Element*>(params_.dv), tensor_batch(), head_, row),
          1.f);
    }
  }

  template <class To>
  void store_row(float const* from, To* to, float factor) const {
    std::transform(from, from + params_.d_head, to, [=](float x) { return To(x * factor); });
  }

  BackwardParams const& params_;
  float* const sums_;
  int const group_;  // heads of q that share a head of k and v
  int head_ = 0;
  int sequence_ = 0;
  Rows queries_{};
  Rows keys_{};
  Tile Q_;  // (seqlen_q,d_head), as dO and dQ
  Tile dO_;
  Tile dQ_;
  std::vector<float> lse_;  // of each query, as delta
  std::vector<float> delta_;
  Tile K_;   // (B_c,d_head)
  Tile Kt_;  // (d_head,B_c), as V^T
  Tile Vt_;
  Tile P_;   // (B_r,B_c): S, then P
  Tile dS_;  // (B_r,B_c): dP, then dS
  Tile dK_;  // (B_c,d_head), as dV
  Tile dV_;
  std::optional<DropoutRow> dropped_;
};

template <class Element>
void backward_tasks(BackwardParams const& params, float* sums, int64_t begin, int64_t end) {
  HeadBackward<Element> head(params, sums);
  for (int64_t task = begin; task < end; ++task) {
    head.run(static_cast<int>(task / params.heads), static_cast<int>(task % params.heads));
  }
}

template <class Element>
void sum_heads(BackwardParams const& params, float const* sums, int64_t begin, int64_t end) {
  HeadSums const places{params};
  int const group = heads_of_a_group(params), d_head = params.d_head;
  std::vector<float> sum(d_head);
  for (int64_t task = begin; task < end; ++task) {
    auto const sequence = static_cast<int>(task / params.heads_kv);
    auto const head_kv = static_cast<int>(task % params.heads_kv);
    Rows const keys = params.k_sequences.rows_of(sequence, HostLoader{});
    int const batch = params.k_sequences.tensor_batch(sequence);
    auto const add_up = [&](int which, void* tensor, TensorStrides const& strides, float factor) {
      int const n_keys = smaller(keys.length, params.k_sequences.longest);
      for (int row = keys.begin; row < keys.begin + n_keys; ++row) {
        std::fill(sum.begin(), sum.end(), 0.f);
        for (int head = head_kv * group; head < (head_kv + 1) * group; ++head) {
          float const* const of_head = sums + places.offset_of(which, head, batch, row);
          std::transform(sum.begin(), sum.end(), of_head, sum.begin(), std::plus<>{});
        }
        Element* const to = strides.at(static_cast<Element*>(tensor), batch, head_kv, row);
        std::transform(sum.begin(), sum.end(), to, [=](float x) { return Element(x * factor); });
      }
    };
    add_up(0, params.dk, params.dk_strides, params.softmax_scale);
    add_up(1, params.dv, params.dv_strides, 1.f);
  }
}

}  // namespace

int64_t n_cpu_backward_tasks(BackwardParams const& params) {
  return int64_t(params.batch) * params.heads;
}

int64_t n_cpu_backward_sums(BackwardParams const& params) {
  return heads_of_a_group(params) > 1 ? HeadSums{params}.size() : 0;
}

void backward_cpu(BackwardParams const& params, DType dtype, float* sums, int64_t begin,
                  int64_t end) {
  auto const run = dtype == DType::FP16 ? backward_tasks<Float16> : backward_tasks<BFloat16>;
  run(params, sums, begin, end);
}

int64_t n_cpu_sum_tasks(BackwardParams const& params) {
  return heads_of_a_group(params) > 1 ? int64_t(params.batch) * params.heads_kv : 0;
}

void sum_heads_cpu(BackwardParams const& params, DType dtype, float const* sums, int64_t begin,
                   int64_t end) {
  auto const run = dtype == DType::FP16 ? sum_heads<Float16> : sum_heads<BFloat16>;
  run(params, sums, begin, end);
}

}  // namespace pyflash
