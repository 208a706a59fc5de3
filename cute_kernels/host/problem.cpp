#include "cute_kernels/host/problem.h"

#include <algorithm>
#include <initializer_list>

#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/names.h"
#include "cute_kernels/host/options.h"

namespace pyflash {
namespace {

constexpr int kFewRows = 64;
using Element = uint16_t;  // any of 16 bits

// The only query, which is aligned with the last key.
void drop_keys_before_window(Problem& problem) {
  auto& params = problem.params;
  KvSource kv = params.kv();
  int const n_keys = kv.sequences.longest;
  int const n_dropped = params.mask().keys_from(n_keys - 1, n_keys).of_some(1).from_0().begin;
  for (KvTensor* tensor : {&kv.k, &kv.v}) {
    if (tensor->data != nullptr) {
      tensor->data = tensor->at<Element>(/*batch=*/0, /*head=*/0, n_dropped);
    }
  }
  kv.sequences = Sequences::padded(n_keys - n_dropped);
  params.set_kv(kv);
  params.set_mask({.window_right = params.mask().window_right});
}

// Whether the heads of q that share a head of k and v are as good as rows of one Q block: those of one query, each aligned with the
// same key.
bool heads_are_rows(Problem const& problem) {
  auto const& params = problem.params;
  // NOTE: in pages each sequence has its own window. Dropout counts heads, queries and keys as they were asked for.
  bool const has_windows = params.mask().cuts_left() && problem.kv().is_paged();
  bool const is_positional = params.alibi_slopes.data != nullptr;
  return params.q_sequences().longest == 1 && params.heads > params.heads_kv && !has_windows &&
         !is_positional && !params.dropout.drops();
}

}  // namespace

ProblemSize Problem::size() const {
  Sequences const q = params.q_sequences();
  ProblemSize size{.pairs = int64_t(params.batch) * params.heads,
                   .rows = q.longest,
                   .keys = params.kv().sequences.longest,
                   .packed = q.is_packed()};
  // Over pages, packed sequences of one query ask of a kernel what padded ones do, whose heads are rows by now.
  if (size.packed && q.longest == 1 && kv().is_paged()) {
    size.packed = false;
    if (heads_are_rows(*this)) {
      size.rows = params.heads / params.heads_kv;
      size.pairs /= size.rows;
    }
  }
  return size;
}

ProblemKind Problem::kind() const {
  return params.q_sequences().longest <= kFewRows ? ProblemKind::kFew : ProblemKind::kMany;
}

char const* name(ProblemKind kind) { return kind == ProblemKind::kFew ? "few" : "many"; }

Mask mask_of(Options const& options, Sequences const& q, KvSource const& kv) {
  Sequences const& k = kv.sequences;
  int64_t const left = options.window_left, right = options.causal ? 0 : options.window_right;
  Mask mask;
  if (left >= 0 && left < k.longest - 1) {
    mask.window_left = static_cast<int>(left);
  }
  if (right >= 0 && right < q.longest - 1) {
    mask.window_right = static_cast<int>(right);
  }
  // NOTE: a query that is aligned with no key is in no key's chunk. Where lengths differ, any sequence may be longer in q than in
  // k.
  bool const all_are_aligned = !q.is_packed() && !kv.is_paged() && q.longest <= k.longest;
  if (options.attention_chunk > 0 && !(all_are_aligned && options.attention_chunk >= k.longest)) {
    mask.chunk = static_cast<int>(std::min<int64_t>(options.attention_chunk, kNoWindow));
  }
  return mask;
}

void simplify_one_query(Problem& problem) {
  auto& params = problem.params;
  // NOTE: with dropout, as for heads.
  if (params.q_sequences().longest != 1 || params.dropout.drops()) {
    return;
  }
  if (params.mask().cuts_left()) {
    // In pages each sequence has its own window. Blocks and splits at fixed keys begin at the first key.
    if (problem.kv().is_paged() || params.has_fixed_splits) {
      return;
    }
    drop_keys_before_window(problem);
  }
  if (heads_are_rows(problem)) {
    int const group = params.heads / params.heads_kv;
    params.heads = params.heads_kv;
    params.set_q_sequences(Sequences::padded(group));
    for (TensorStrides* strides : {&params.q_strides, &params.o_strides}) {
      strides->row = strides->head;
      strides->head *= group;
    }
    params.lse_strides.head *= group;
    for_each_per_head_option([&](PerHeadOption const& option) {
      TensorStrides& strides = (params.*option.values).strides;
      strides.row = strides.head;
      strides.head *= group;
    });
  }
}

void check_config_fits(std::string_view text, DType dtype, int d_head, Problem const& problem) {
  require(dtype == problem.dtype, "config '", text, "' is for ", name(dtype), ", q is ",
          name(problem.dtype));
  require(d_head >= problem.params.d_head, "config '", text, "' is for d_head up to ", d_head,
          ", q has d_head ", problem.params.d_head);
}

}  // namespace pyflash
