#include "cute_kernels/host/call.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "cute_kernels/host/checks.h"
#include "cute_kernels/host/dropout.h"
#include "cute_kernels/host/errors.h"

namespace pyflash {
namespace {

// But for what padded and packed sequences set apart: batch, lengths, and the strides that depend on them.
void set_tensors(Problem& problem, Input const& q, Input const& k, Input const& v,
                 Sequences const& k_sequences) {
  int64_t const heads = q.extents[kHead], d_head = q.extents[kColumn];
  auto& params = problem.params;
  params.q = q.view.data;
  params.q_strides = q.tensor_strides();
  params.set_kv({.k = {k.view.data, k.tensor_strides()},
                 .v = {v.view.data, v.tensor_strides()},
                 .sequences = k_sequences,
                 .heads = static_cast<int>(k.extents[kHead])});
  params.o_strides = {.batch = 0, .row = heads * d_head, .head = d_head};
  params.heads = static_cast<int>(heads);
  params.d_head = static_cast<int>(d_head);
}

void set_padded_lengths(Problem& problem, Input const& q) {
  auto& params = problem.params;
  params.batch = static_cast<int>(q.extents[kBatch]);
  params.set_q_sequences(Sequences::padded(static_cast<int>(q.extents[kRow])));
  int64_t const rows_of_batch = params.heads * q.extents[kRow];
  params.o_strides.batch = rows_of_batch * params.d_head;
  params.lse_strides = {
      .batch = rows_of_batch, .head = q.extents[kRow], .split = params.batch * rows_of_batch};
}

Sequences packed_sequences(TensorView const& cu_seqlens, int64_t max_seqlen, Input const& rows) {
  int64_t const total = rows.extents[kRow];
  return Sequences::packed(static_cast<int const*>(cu_seqlens.data),
                           static_cast<int>(std::min(max_seqlen, total)), static_cast<int>(total));
}

void set_packed_lengths(Problem& problem, Sequences const& q_sequences, int64_t batch) {
  auto& params = problem.params;
  params.batch = static_cast<int>(batch);
  params.set_q_sequences(q_sequences);
  int64_t const total_q = q_sequences.total;
  params.lse_strides = {.batch = 0, .head = total_q, .split = params.heads * total_q};
}

// Paged: as many as the entries of the block table have room for.
Sequences sequences_of_keys(Call const& call, Input const& k) {
  int64_t const rows = k.extents[kRow];
  if (call.packing) {
    return packed_sequences(call.packing->cu_seqlens_k, call.packing->max_seqlen_k, k);
  }
  return Sequences::padded(
      static_cast<int>(call.paging ? rows * call.paging->block_table.sizes[1] : rows));
}

Pages pages_of(Paging const& paging, Input const& k) {
  TensorView const& table = paging.block_table;
  // NOTE: a table without entries may be nowhere, and is one still.
  static constexpr int kNoEntry = 0;
  auto const size = static_cast<unsigned>(k.extents[kRow]);
  return {.table = table.data != nullptr ? static_cast<int const*>(table.data) : &kNoEntry,
          .table_stride = table.strides[0],
          .lengths = static_cast<int const*>(paging.seqlens_k.data),
          .size = static_cast<int>(size),
          .log2_size = table.sizes[1] <= 1         ? Pages::kOnePage
                       : std::has_single_bit(size) ? std::countr_zero(size)
                                                   : -1,
          .number = static_cast<int>(k.extents[kBatch])};
}

KvScales kv_scales_of(Paging const& paging) {
  if (!paging.has_fp8()) {
    return {};
  }
  TensorView const &k = *paging.k_scale, &v = *paging.v_scale;
  auto const stride_of = [](TensorView const& scale) {
    return scale.rank == 0 || scale.sizes[0] <= 1 ? 0 : static_cast<int>(scale.strides[0]);
  };
  return {.k = static_cast<float const*>(k.data),
          .v = static_cast<float const*>(v.data),
          .k_stride = stride_of(k),
          .v_stride = stride_of(v)};
}

// Refuses lengths beyond the table, and numbers of no page among those that are read: of keys that some query of the sequence
// attends.
void check_values_of_pages(Problem const& problem, Paging const& paging, Input const& k) {
  auto const& params = problem.params;
  KvSource const kv = problem.kv();
  auto const lengths = static_cast<int const*>(paging.seqlens_k.data);
  for (int b = 0; b < params.batch; ++b) {
    require(lengths[b] >= 0 && lengths[b] <= kv.sequences.longest, paging.seqlens_k.name, "[", b,
            "] = ", lengths[b], ": expected a number from 0 to ", kv.sequences.longest, ", ",
            paging.block_table.sizes[1], " pages of ", kv.pages.size, " keys");
    int const n_queries = params.q_sequences().rows_of(b, HostLoader{}).length;
    if (n_queries == 0 || params.heads == 0) {
      continue;
    }
    int const aligned = aligned_column(0, n_queries, lengths[b]);
    Interval const keys = params.mask().keys_from(aligned, lengths[b]).of_some(n_queries).from_0();
    if (keys.size() == 0) {
      continue;
    }
    Interval const entries = keys.blocks_touched(kv.pages.size);
    for (int i = entries.begin; i < entries.end; ++i) {
      int const page = kv.pages.table[b * kv.pages.table_stride + i];
      require(kv.pages.exists(page), paging.block_table.name, "[", b, ", ", i, "] = ", page,
              ": expected the number of a page, from 0 to ", k.extents[kBatch] - 1, ", as ",
              paging.seqlens_k.name, "[", b, "] = ", lengths[b], " keys are there");
    }
  }
}

// tanh(x) as x P(x^2), a minimax fit with a relative error below 1.2e-6 for |x| <= 0.3, which is that of the kernels' tanh. Beyond,
// P(x^2) grows where tanh(x) / x falls. Far below the row's maximum that does not matter: the exponentials are too small, unless the
// maximum is itself among the lowest scores, or the cap is low. Within these limits none there is off by more than 2e-5 of its
// row's largest.
Softcap make_softcap(float softmax_scale, float cap) {
  constexpr double kLargest = 0.3, kLeastMax = -0.2, kLeastCap = 20;
  constexpr double kP[] = {9.99998839e-1, -3.33100217e-1, 1.26339457e-1};
  constexpr double kErrorOfTwo = 2e-5;  // of a score by two terms
  constexpr double kMostSquareOfTwo =
      0.02;  // so that under low caps it is 7e-6 of the score at most
  if (cap == 0) {
    return {};
  }
  double const inner = double(softmax_scale) / cap, outer = std::numbers::log2e * cap;
  double const x1 = outer * inner, x2 = inner * inner;
  // Two terms are for x^2 <= t. There the first two Chebyshev polynomials of x^2 stand for 2 / 15 x^4, the series' third term,
  // and are off by at most t^2 / 60.
  double const t = std::min(std::pow(60 * kErrorOfTwo / cap, 0.4), kMostSquareOfTwo);
  Softcap softcap{.cap = cap,
                  .inner = static_cast<float>(inner),
                  .outer = static_cast<float>(outer),
                  .largest = static_cast<float>(kLargest / inner),
                  .least_exponent = static_cast<float>(outer * std::tanh(kLeastMax)),
                  .constant = static_cast<float>(kP[0] * x1),
                  .linear = static_cast<float>(kP[1] * x1 * x2),
                  .quadratic = static_cast<float>(kP[2] * x1 * x2 * x2),
                  .largest_of_two = static_cast<float>(std::sqrt(t) / inner),
                  .constant_of_two = static_cast<float>((1 - t * t / 60) * x1),
                  .linear_of_two = static_cast<float>((-1. / 3 + 2. / 15 * t) * x1 * x2)};
  // NOTE: a quadratic term that underflows, times the square of a masked score, would be NaN.
  if (cap < kLeastCap || !std::isnormal(softcap.quadratic)) {
    softcap.least_exponent = std::numeric_limits<float>::infinity();
  }
  if (!std::isnormal(softcap.linear_of_two)) {
    softcap.largest_of_two = 0;
  }
  return softcap;
}

void set_options(Problem& problem, Options const& options) {
  auto& params = problem.params;
  double const default_scale = 1 / std::sqrt(static_cast<double>(params.d_head));
  params.softmax_scale = static_cast<float>(options.softmax_scale.value_or(default_scale));
  params.inverse_scale_log2 =
      static_cast<float>(std::min(1 / (std::numbers::log2e * params.softmax_scale), 1e28));
  params.softcap = make_softcap(params.softmax_scale, static_cast<float>(options.softcap));
  params.set_mask(mask_of(options, params.q_sequences(), problem.kv()));
  params.dropout = dropout_of(options);
  for_each_per_head_option([&](PerHeadOption const& option) {
    if (auto const& tensor = options.*option.member) {
      params.*option.values = per_head(*tensor);
    }
  });
}

}  // namespace

Problem problem_of(Call const& call, int64_t max_d_head) {
  Problem problem = problem_as_asked(call, max_d_head);
  if (!problem.params.q_sequences().is_packed()) {
    simplify_one_query(problem);
  }
  return problem;
}

Problem problem_as_asked(Call const& call, int64_t max_d_head) {
  bool const has_packed_queries = call.packing || (call.paging && call.paging->packed);
  DimensionNames const& dims_q = has_packed_queries ? kPackedDims : kPaddedDims;
  DimensionNames const& dims_k = call.paging ? kPageDims : dims_q;
  Options const& options = call.options;
  check_devices(call);
  DType const dtype = check_dtypes(call);
  Input const q(call.q, dims_q), k(call.k, dims_k), v(call.v, dims_k);
  check_shapes(q, k, v, max_d_head);
  int64_t const batch = call.packing         ? check_packing(*call.packing, q, k)
                        : has_packed_queries ? check_packed_queries(*call.paging->packed, q)
                                             : q.extents[kBatch];
  check_batch_times_heads(batch, q);
  for (Input const* input : {&q, &k, &v}) {
    check_memory(*input);
  }
  if (call.paging) {
    check_pages(*call.paging, batch, k);
    check_kv_scales(*call.paging, k);
  }
  check_options(options);
  check_per_head_options(options, batch, q);
  check_dropout(call);

  Problem problem{.dtype = dtype, .num_splits = static_cast<int>(options.num_splits), .params = {}};
  // NOTE: how many shares there are follows from the config.
  problem.params.n_shares = problem.num_splits == kSplitsByLength ? 1 : 0;
  problem.params.has_fixed_splits = problem.num_splits == kSplitsAtFixedKeys;
  set_tensors(problem, q, k, v, sequences_of_keys(call, k));
  if (call.paging) {
    problem.params.pages = pages_of(*call.paging, k);
    problem.params.kv_scales = kv_scales_of(*call.paging);
  }
  if (has_packed_queries) {
    auto const& [cu_seqlens, max_seqlen] =
        call.packing ? PackedQueries{call.packing->cu_seqlens_q, call.packing->max_seqlen_q}
                     : *call.paging->packed;
    set_packed_lengths(problem, packed_sequences(cu_seqlens, max_seqlen, q), batch);
  } else {
    set_padded_lengths(problem, q);
  }
  set_options(problem, options);
  if (call.paging && q.view.device.kind == Device::Kind::kCpu) {
    check_values_of_pages(problem, *call.paging, k);
  }
  return problem;
}

}  // namespace pyflash
