// The op `backward` as its kernels see it: the gradients of q, k and v of attention, from those of O and lse.
#pragma once

#include <compare>
#include <cstdint>

#include "cute_kernels/attention_gradients.h"
#include "cute_kernels/common/head_slices.h"
#include "cute_kernels/config.h"
#include "cute_kernels/feature_members.h"
#include "cute_kernels/params.h"

// What a kernel can do beyond attention in which every query attends every key. Which combinations are built:
// pyflash/config/backward.py.
// NOTE: outside namespace pyflash for the same reason as the configs: config.h.
struct BackwardFeatures {
  bool right_window = false;  // causal too
  bool left_window = false;
  bool packed = false;
  bool softcap = false;
  bool alibi_slopes = false;
  bool deterministic = false;
  bool dropout = false;

  friend auto operator<=>(BackwardFeatures const&, BackwardFeatures const&) = default;

  // A feature and its name in Python. The list has every member, once.
  struct Member {
    char const* name;
    bool BackwardFeatures::* value;
  };
  static constexpr Member kMembers[] = {{"right_window", &BackwardFeatures::right_window},
                                        {"left_window", &BackwardFeatures::left_window},
                                        {"packed", &BackwardFeatures::packed},
                                        {"softcap", &BackwardFeatures::softcap},
                                        {"alibi_slopes", &BackwardFeatures::alibi_slopes},
                                        {"deterministic", &BackwardFeatures::deterministic},
                                        {"dropout", &BackwardFeatures::dropout}};
  // Kernels of sums in one order wait for turns, which other problems do not have; those with softcap divide by the cap.
  static constexpr bool BackwardFeatures::* kExact[] = {
      &BackwardFeatures::softcap, &BackwardFeatures::deterministic, &BackwardFeatures::dropout};
};

namespace pyflash {

static_assert(lists_every_member_once<BackwardFeatures>(),
              "BackwardFeatures::kMembers lacks a feature, or has it twice");

struct BackwardParams : AttentionGradients {
  static constexpr int kBytesOfElement = 2;  // of all but lse and its gradient

  Dropout dropout;  // of the forward pass

  // CTAs that divide the query heads of a head of k and v between them. Several of them add dK and dV up in memory.
  int ctas_of_group;
  int padded_k;  // rows of those sums for each head: keys in whole blocks
  // Workspace if there are several, else of no element: (2, batch, heads_kv, padded_k * columns), the sums of dK, and those of dV; how
  // they lie: sm80/backward/key_sums.h.
  float* dkv_sum;

  // Heads of k and v, counted through all batches, that the kernels run for: a slice of them, one slice after another, in the same
  // workspace. NOTE: its rows are numbered through all heads, and pointers to it are those of the first head's rows, which other slices
  // have.
  int first_head_of_slice;
  int heads_of_slice;  // before a slice is chosen: of each but the last, which may have fewer
  // Slices are problems of some heads of each batch instead.
  bool slices_are_problems;
  // Two slices run side by side, each in a workspace of its own.
  bool runs_two_slices;

  PYFLASH_HOST_DEVICE constexpr BlockedRows blocked_key_sums() const {
    return {k_sequences, larger(block_k, kQueriesOfPiece)};
  }
  constexpr void set_shape(BackwardShape const& shape) {
    AttentionGradients::set_shape(shape, recycles(shape));
    padded_k = int(blocked_key_sums().n_rows(batch));
    // NOTE: where tiles differ in length, CTAs of few groups end long after each other.
    bool const has_slices = group() == 1 || !tiles_differ() || slices_short_tiles(shape);
    divide(shape, kCtasAtATime, has_slices ? kBytesOfSlice : INT64_MAX);
  }
  // Whether heads have their sums of dQ in the same memory, one after another. Tiles of packed sequences differ in length, so that
  // heads would wait for each other's sums.
  constexpr bool recycles(BackwardShape const& shape) const {
    return may_recycle(shape) && !slices_short_tiles(shape);
  }
  constexpr bool may_recycle(BackwardShape const& shape) const {
    return shape.recycles_sums && !deterministic && !k_sequences.is_packed();
  }
  // NOTE: one CTA rounds recycled sums of a head. Under windows that are short beside the sequences it takes longer than the tiles of
  // all heads that have sums, and those of others would wait. What a variant's mask shows is not known here.
  constexpr bool slices_short_tiles(BackwardShape const& shape) const {
    int const n_queries = q_sequences.tensor_rows();
    bool const is_short = kWindowsOfLongSequence * mask.most_keys(1) <= n_queries;
    bool const may_be_short = shape.has_variant && n_queries >= kLongUnderVariant;
    return may_recycle(shape) && shape.runs_slices && (is_short || may_be_short);
  }
  // Divides heads into slices, and groups of query heads among CTAs. n_ctas: that run at a time. bytes: that the sums of a slice may
  // take.
  constexpr void divide(BackwardShape const& shape, int n_ctas, int64_t bytes) {
    // Deterministic kernels add dK and dV up in registers, in the order of the heads.
    int const most_ctas = shape.divides_groups && !deterministic ? group() : 1;
    slices_are_problems = shape.slices_are_problems && !dropout.drops() && !shape.has_variant;
    run_as_one_slice();
    ctas_of_group = 1;
    runs_two_slices = false;
    if (n_heads_of_keys() == 0) {
      return;
    }
    bool const runs_slices = shape.runs_slices && !recycles_sums();  // recycled sums are few
    int64_t const least = 2 * int64_t(n_ctas) / most_ctas;           // tiles of a slice
    if (runs_slices) {
      limit_slice(n_ctas, least, bytes);
    }
    if (most_ctas > 1) {
      divide_groups(n_ctas);
    }
    if (runs_slices && ctas_of_group > 1) {  // there are sums of dK and dV, too
      limit_slice(n_ctas, least, bytes);
      divide_groups(n_ctas);
    }
    runs_two_slices = n_slices() > 1 && halve_slice();
    if (n_slices() > 1 && !runs_two_slices) {
      heads_of_slice = slices(n_ctas, n_key_blocks() * ctas_of_group).filled(heads_of_slice);
    }
  }
  // So that two have as many heads as one had, or a unit each. NOTE: heads that run at a time wait for each other less than tiles of
  // one head whose sums have one order: with a fifth fewer heads in both, two slices were measured to be slower.
  constexpr bool halve_slice() {
    constexpr int kMany = 16;  // of which one is little
    int const n = heads_of_slice / unit_of_slice();
    bool const is_halved = n == 1 || n % 2 == 0 || n > kMany;
    if (is_halved && n > 1) {
      heads_of_slice = n / 2 * unit_of_slice();
    }
    return is_halved;
  }
  constexpr void run_as_one_slice() {
    first_head_of_slice = 0;
    heads_of_slice = int(n_heads_of_keys());
  }
  // Slices have multiples of as many heads.
  constexpr int unit_of_slice() const {
    return slices_are_problems ? k_sequences.tensor_batches(batch) : 1;
  }
  constexpr HeadSlices slices(int n_ctas, int64_t n_tiles) const {
    return {.n_heads = n_heads_of_keys(),
            .unit = unit_of_slice(),
            .n_tiles = n_tiles,
            .n_ctas = n_ctas};
  }
  constexpr void limit_slice(int n_ctas, int64_t least, int64_t bytes) {
    int64_t const key_rows = ctas_of_group > 1 ? 2 * int64_t(padded_k) : 0;
    int64_t const bytes_of_head =
        (int64_t(group()) * padded_q + key_rows) * columns * int(sizeof(float));
    heads_of_slice =
        slices(n_ctas, n_key_blocks()).limited(bytes_of_head, bytes, least, heads_of_slice);
  }
  constexpr bool tiles_differ() const {
    return mask.cuts_right() || mask.cuts_left() || k_sequences.is_packed();
  }
  // NOTE: CTAs whose tiles differ in length are each at another query head. L2 does not hold Q, dO and the sums of dQ of many.
  constexpr void divide_groups(int n_ctas) {
    constexpr int kMostHeads = 2;  // that a CTA goes through where tiles differ
    constexpr int64_t kMost = (int64_t(1) << 31) - 1;
    bool const differ = tiles_differ();
    int64_t const n_tiles = n_key_blocks() * heads_of_slice;
    int n = 1;
    while (n < group() &&
           ((differ && group() > kMostHeads * n) || n_tiles * n < 2 * int64_t(n_ctas))) {
      do {
        ++n;
      } while (group() % n != 0);
    }
    bool const has_numbers =
        n_tiles * n <= kMost && 2 * n_heads_of_keys() * blocked_key_sums().n_rows(batch) <= kMost;
    ctas_of_group = has_numbers ? n : 1;
  }

  constexpr int n_slices() const {
    return heads_of_slice > 0 ? int(ceil_div(n_heads_of_keys(), heads_of_slice)) : 1;
  }
  // That run side by side.
  constexpr int n_slices_at_a_time() const { return runs_two_slices ? 2 : 1; }
  // With the workspace of the i-th: where two run side by side, every other one's lies behind that of the one before.
  constexpr BackwardParams with_workspace_of(int i) const {
    BackwardParams params = *this;
    if (runs_two_slices && i % 2 == 1) {
      int64_t const rows = n_slice_rows();
      params.dq_sum += rows * columns;
      params.lse2 += rows;
      params.minus_delta += rows;
      params.turns += deterministic ? rows * columns / kSumsOfTurn : 0;
      params.dkv_sum += 2 * int64_t(n_key_rows()) * columns;
      params.order_of_keys += sorts_key_blocks() ? n_key_blocks() : 0;
    }
    return params;
  }
  // The i-th of them.
  constexpr BackwardParams slice(int i) const {
    if (slices_are_problems) {
      return n_slices() > 1 ? problem_of_slice(i) : *this;
    }
    BackwardParams params = with_workspace_of(i);
    params.first_head_of_slice = i * heads_of_slice;
    params.heads_of_slice =
        smaller(heads_of_slice, int(n_heads_of_keys()) - params.first_head_of_slice);
    params.runs_two_slices = false;
    int64_t const rows = int64_t(params.first_head_of_slice) * group() * padded_q;
    params.lse2 -= rows;
    params.minus_delta -= rows;
    params.dq_sum -= rows * columns;
    if (deterministic) {
      params.turns -= rows * columns / kSumsOfTurn;
    }
    if (n_key_rows() > 0) {
      params.dkv_sum -= int64_t(params.first_key_row()) * columns;
    }
    return params;
  }

  constexpr BackwardParams problem_of_slice(int i) const {
    int const heads_of_batch = heads_of_slice / k_sequences.tensor_batches(batch);
    int const first = i * heads_of_batch;  // of K and V, of each batch
    int64_t const first_q = int64_t(first) * group();
    BackwardParams params = with_workspace_of(i);
    params.heads_kv = smaller(heads_of_batch, heads_kv - first);
    params.heads = params.heads_kv * group();
    params.run_as_one_slice();
    params.heads_with_sums = params.heads_of_slice;
    params.q = skip(q, first_q * q_strides.head, kBytesOfElement);
    params.o = skip(o, first_q * o_strides.head, kBytesOfElement);
    params.grad_o = skip(grad_o, first_q * grad_o_strides.head, kBytesOfElement);
    params.dq = skip(dq, first_q * dq_strides.head, kBytesOfElement);
    params.k = skip(k, first * k_strides.head, kBytesOfElement);
    params.v = skip(v, first * v_strides.head, kBytesOfElement);
    params.dk = skip(dk, first * dk_strides.head, kBytesOfElement);
    params.dv = skip(dv, first * dv_strides.head, kBytesOfElement);
    params.lse += first_q * lse_strides.head;
    params.grad_lse += grad_lse != nullptr ? first_q * lse_strides.head : 0;
    for (PerHeadMember const& member : kPerHead) {
      PerHead& numbers = params.*member.value;
      numbers.data = skip(numbers.data, first_q * numbers.strides.head,
                          numbers.is_fp32 ? sizeof(float) : kBytesOfElement);
    }
    params.runs_two_slices = false;
    return params;
  }

  // The rows of the workspace that a slice has, and how many come before them.
  PYFLASH_HOST_DEVICE constexpr int64_t n_slice_rows() const {
    return int64_t(heads_of_slice) * group() * padded_q;
  }
  PYFLASH_HOST_DEVICE constexpr int first_slice_row() const {
    return first_head_of_slice * group() * padded_q;
  }
  // Those that have sums of dQ.
  PYFLASH_HOST_DEVICE constexpr int64_t n_slice_sum_rows() const {
    return recycles_sums() ? n_sum_rows() : n_slice_rows();
  }

  // The memory n elements of a tensor further on; none stays none.
  static constexpr void const* skip(void const* data, int64_t n, int bytes) {
    return data == nullptr ? data : static_cast<char const*>(data) + n * bytes;
  }
  static constexpr void* skip(void* data, int64_t n, int bytes) {
    return data == nullptr ? data : static_cast<char*>(data) + n * bytes;
  }

  // The rows of the sums of dK of a slice, and of those of dV, and how many come before them.
  PYFLASH_HOST_DEVICE constexpr int n_key_rows() const {
    return ctas_of_group > 1 ? heads_of_slice * padded_k : 0;
  }
  PYFLASH_HOST_DEVICE constexpr int first_key_row() const { return first_head_of_slice * padded_k; }
  // Pieces of kQueriesOfPiece rows of both.
  PYFLASH_HOST_DEVICE constexpr int n_key_pieces() const {
    return n_key_rows() / kQueriesOfPiece * 2;
  }
  // A row. tensor_batch: 0 where sequences are packed.
  PYFLASH_HOST_DEVICE constexpr int key_row(int tensor_batch, int head_kv, int row) const {
    return (tensor_batch * heads_kv + head_kv) * padded_k + row;
  }
};

inline BackwardFeatures features_needed(BackwardParams const& params, int /*d_head_of_config*/) {
  return {.right_window = params.mask.cuts_right(),
          .left_window = params.mask.cuts_left(),
          .packed = params.q_sequences.is_packed(),
          .softcap = params.softcap.cap != 0,
          .alibi_slopes = params.alibi_slopes.data != nullptr,
          .deterministic = params.deterministic,
          .dropout = params.dropout.drops()};
}

}  // namespace pyflash
