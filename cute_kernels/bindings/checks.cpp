#include "cute_kernels/bindings/checks.h"

#include <algorithm>
#include <cmath>

#include "cute_kernels/bindings/packing_checks.h"
#include "cute_kernels/bindings/tensor_checks.h"
#include "cute_kernels/host/errors.h"

namespace pyflash {
namespace {

float check_softmax_scale(std::optional<double> softmax_scale, int d_head) {
  if (!softmax_scale) {
    return static_cast<float>(1 / std::sqrt(static_cast<double>(d_head)));
  }
  float const scale = static_cast<float>(*softmax_scale);
  require(std::isfinite(scale) && scale > 0, "softmax_scale = ", *softmax_scale,
          ": expected a finite number above 0");
  return scale;
}

void check_window(char const* name, int64_t size) {
  require(size >= -1, name, " = ", size, ": expected a number of keys, or -1 for no limit");
}

float check_softcap(double softcap) {
  float const cap = static_cast<float>(softcap);
  require(std::isfinite(cap) && cap >= 0, "softcap = ", softcap,
          ": expected a finite number above 0, or 0 for no cap");
  return cap;
}

int check_num_splits(int64_t num_splits) {
  require(num_splits >= 0 && num_splits <= kMaxSplits, "num_splits = ", num_splits,
          ": expected a number from 1 to ", kMaxSplits, ", or 0 to have it chosen");
  return static_cast<int>(num_splits);
}

// But for what padded and packed problems set apart: batch, lengths, and the strides that depend on them.
ForwardParams params_of(Input const& q, Input const& k, Input const& v) {
  int64_t const heads = q.extents[kHead], d_head = q.extents[kColumn];
  ForwardParams params{};
  params.q = q.data;
  params.k = k.data;
  params.v = v.data;
  params.q_strides = q.tensor_strides();
  params.k_strides = k.tensor_strides();
  params.v_strides = v.tensor_strides();
  params.o_strides = {.batch = 0, .row = heads * d_head, .head = d_head};
  params.heads = static_cast<int>(heads);
  params.heads_kv = static_cast<int>(k.extents[kHead]);
  params.d_head = static_cast<int>(d_head);
  return params;
}

}  // namespace

void apply_options(Options const& options, Problem& problem) {
  ForwardParams& params = problem.params;
  params.softmax_scale = check_softmax_scale(options.softmax_scale, params.d_head);
  check_window("window_left", options.window_left);
  check_window("window_right", options.window_right);
  require(!options.causal || options.window_right <= 0,
          "causal = True sets window_right = 0, which came as ", options.window_right,
          ": expected -1 or 0");
  set_windows(params, options.window_left, options.causal ? 0 : options.window_right);
  params.softcap = check_softcap(options.softcap);
  problem.num_splits = check_num_splits(options.num_splits);
}

Problem check_padded(Inputs const& inputs, Options const& options) {
  check_devices(inputs.q, {{"k", inputs.k}, {"v", inputs.v}});
  DType const dtype = check_dtypes(inputs.q, {{"k", inputs.k}, {"v", inputs.v}});
  Input const q("q", inputs.q, kPadded), k("k", inputs.k, kPadded), v("v", inputs.v, kPadded);
  check_shapes(q, k, v, kPadded);
  check_batch_times_heads(q.extents[kBatch], q);
  check_memory(q);
  check_memory(k);
  check_memory(v);

  Problem problem{.dtype = dtype, .num_splits = 0, .params = params_of(q, k, v)};
  ForwardParams& params = problem.params;
  params.batch = static_cast<int>(q.extents[kBatch]);
  params.seqlen_q = static_cast<int>(q.extents[kRow]);
  params.seqlen_k = static_cast<int>(k.extents[kRow]);
  int64_t const rows_of_batch = int64_t(params.heads) * params.seqlen_q;
  params.o_strides.batch = rows_of_batch * params.d_head;
  params.lse_strides = {
      .batch = rows_of_batch, .head = params.seqlen_q, .split = params.batch * rows_of_batch};
  apply_options(options, problem);
  simplify_one_query(params);
  return problem;
}

Problem check_packed(Inputs const& inputs, Packing const& packing, Options const& options) {
  check_devices(inputs.q, {{"k", inputs.k},
                           {"v", inputs.v},
                           {"cu_seqlens_q", packing.cu_seqlens_q},
                           {"cu_seqlens_k", packing.cu_seqlens_k}});
  DType const dtype = check_dtypes(inputs.q, {{"k", inputs.k}, {"v", inputs.v}});
  Input const q("q", inputs.q, kPacked), k("k", inputs.k, kPacked), v("v", inputs.v, kPacked);
  check_shapes(q, k, v, kPacked);
  int64_t const batch = check_packing(packing, q, k);
  check_batch_times_heads(batch, q);
  check_memory(q);
  check_memory(k);
  check_memory(v);

  Problem problem{.dtype = dtype, .num_splits = 0, .params = params_of(q, k, v)};
  ForwardParams& params = problem.params;
  params.cu_seqlens_q = static_cast<int const*>(packing.cu_seqlens_q.const_data_ptr());
  params.cu_seqlens_k = static_cast<int const*>(packing.cu_seqlens_k.const_data_ptr());
  params.batch = static_cast<int>(batch);
  params.total_q = static_cast<int>(q.extents[kRow]);
  params.total_k = static_cast<int>(k.extents[kRow]);
  params.seqlen_q = static_cast<int>(std::min(packing.max_seqlen_q, q.extents[kRow]));
  params.seqlen_k = static_cast<int>(std::min(packing.max_seqlen_k, k.extents[kRow]));
  params.lse_strides = {
      .batch = 0, .head = params.total_q, .split = int64_t(params.heads) * params.total_q};
  apply_options(options, problem);
  return problem;
}

}  // namespace pyflash
