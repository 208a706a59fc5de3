// The op `backward` as its kernels see it: the gradients of q, k and v of attention, from those of O and lse.
#pragma once

#include <compare>
#include <cstdint>

#include "cute_kernels/common/blocked_rows.h"
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

// How a config cuts a problem into tiles.
struct BackwardShape {
  int B_r;                            // queries of a block
  int B_c;                            // keys per CTA
  int d_head;                         // columns of a tile
  bool lanes_are_neighbours = false;  // in the sums of dQ
  bool recycles_sums = false;         // heads may have their sums of dQ in the same memory
  bool divides_groups = false;        // CTAs may divide the query heads of a group
  bool runs_slices = false;          // of heads, one after another, whose sums have the same memory
  bool slices_are_problems = false;  // with runs_slices: kernels see the heads of a slice alone
  // The time of a column, beside that of the SM90 family where both run: selection takes the least columns times this.
  int slowness = 1;
};

// That of a config's kernel with a variant: what is captured goes by the numbers of heads of the whole problem.
constexpr BackwardShape with_variant(BackwardShape shape) {
  shape.runs_slices = shape.runs_slices && !shape.slices_are_problems;
  return shape;
}

// Queries of a part of the workspace: blocks have a multiple of it. Keys, too, where dK and dV are summed there.
inline constexpr int kQueriesOfPiece = 64;

// Floats of the sums of dQ that one warp adds at a time, which has a turn of its own.
inline constexpr int kSumsOfTurn = 1024;

// What recycled sums of dQ may take, to stay in L2 beside Q and dO, and the CTAs that run at a time on the largest device; on
// others they wait a little, or not.
inline constexpr int64_t kBytesOfRecycledSums = 32 << 20;
inline constexpr int64_t kBytesOfShortTiles = 64 << 20;  // under a left window
inline constexpr int kCtasAtATime = 132;
// What the sums of a slice of heads may take.
inline constexpr int64_t kBytesOfSlice = 64 << 20;
// That add to the sums of a query head for a block of keys.
inline constexpr int kMostCtasOfBlock = 2;

// Each block of keys is compared with each other where they are sorted.
inline constexpr int kMostSortedBlocks = 4096;

// The gradients of attention without dropout. Strides are in elements. k, v, dk and dv have heads_kv heads, the others have
// heads. Packed sequences are one batch of the tensors: (total, heads, d_head).
// NOTE: the order of members is that in which kernels load them; what the SM90 kernel gets of a problem stays as it is where
// nothing is dropped.
struct AttentionGradients {
  void const* q;          // (batch, seqlen_q, heads, d_head)
  void const* k;          // (batch, seqlen_k, heads_kv, d_head)
  void const* v;          // (batch, seqlen_k, heads_kv, d_head)
  void const* o;          // (batch, seqlen_q, heads, d_head)
  void const* grad_o;     // (batch, seqlen_q, heads, d_head)
  float const* lse;       // (batch, heads, seqlen_q), natural log; packed: (heads, total_q)
  float const* grad_lse;  // the same, by lse_strides; nullptr: zeros
  void* dq;               // (batch, seqlen_q, heads, d_head)
  void* dk;               // (batch, seqlen_k, heads_kv, d_head)
  void* dv;               // (batch, seqlen_k, heads_kv, d_head)

  // Workspace: padded_q rows of each head, and of each batch of the tensors.
  // (heads_with_sums, group, padded_q * columns), as sums_of says
  float* dq_sum;
  float* lse2;  // (batch, heads, padded_q): lse in base 2; +inf: no such query, or no key for it
  float* minus_delta;  // (batch, heads, padded_q): dlse - rowsum(dO * O); 0 where there is no query

  TensorStrides q_strides;
  TensorStrides k_strides;
  TensorStrides v_strides;
  TensorStrides o_strides;
  TensorStrides grad_o_strides;
  TensorStrides dq_strides;
  TensorStrides dk_strides;
  TensorStrides dv_strides;
  LseStrides lse_strides;

  Sequences q_sequences;  // both are packed, or neither is
  Sequences k_sequences;
  int batch;     // sequences
  int heads;     // a multiple of heads_kv
  int heads_kv;  // head h of q attends head h / (heads / heads_kv)
  int d_head;    // a multiple of 8, at most that of the config
  Mask mask;
  float softmax_scale;
  float inverse_scale_log2;  // as in the forward pass
  Softcap softcap;
  PerHead alibi_slopes;

  // A member with a number for each head, and its name in Python. The list has every one.
  struct PerHeadMember {
    char const* name;
    PerHead AttentionGradients::* value;
  };
  static constexpr PerHeadMember kPerHead[] = {{"alibi_slopes", &AttentionGradients::alibi_slopes}};

  // What follows from the config that runs it.
  int block_q;   // queries of a block
  int padded_q;  // rows of the workspace for each head: queries in whole blocks
  int columns;   // d_head of the config
  int block_k;   // keys of a CTA

  bool deterministic;  // the sums of dQ are added in one order of their blocks of keys
  // How the sums of dQ lie: as sums_of says, or as the SM80 family has them (sm80/backward/sums.h).
  bool lanes_are_neighbours;
  // Workspace if deterministic, else of no element: for each kSumsOfTurn of the sums the turn, by turn_of, of the block of keys of its
  // sequence that is next to add to them. Blocks are numbers below 2^24. -inf: in any order, since starts of sequences do not ascend.
  float* turns;

  // Heads of k and v, of all batches, whose sums of dQ have room at a time. Head i and head i + heads_with_sums have the same memory,
  // one after the other (sm90/backward/recycled_sums.h).
  int heads_with_sums;
  // Workspace if sums are recycled, else of no element: for each of heads_with_sums, minus how many CTAs have added all that they add
  // to them, have rounded them and have cleared a share, of all heads that had them. A number below 2^24.
  float* added;

  // Workspace if blocks of keys are sorted, else of no element: the blocks of all packed sequences in the order in which their tiles
  // start, numbered through the blocks that blocked_keys has. Those that the most blocks of queries attend are the first.
  float* order_of_keys;

  PYFLASH_HOST_DEVICE constexpr BlockedRows blocked_queries() const {
    return {q_sequences, block_q};
  }
  PYFLASH_HOST_DEVICE constexpr BlockedRows blocked_keys() const { return {k_sequences, block_k}; }
  constexpr void set_shape(BackwardShape const& shape) {
    block_q = shape.B_r;
    padded_q = int(blocked_queries().n_rows(batch));
    columns = shape.d_head;
    block_k = shape.B_c;
    lanes_are_neighbours = shape.lanes_are_neighbours;
    // Tiles of packed sequences differ in length, so that heads would wait for each other's sums.
    bool const recycles = shape.recycles_sums && !deterministic && !k_sequences.is_packed();
    set_heads_with_sums(recycles ? kCtasAtATime : 0,
                        mask.cuts_left() ? kBytesOfShortTiles : kBytesOfRecycledSums);
  }
  // n_ctas: that run at a time; 0: no sums are recycled.
  // NOTE: a section of heads, whose tiles are dealt out together, has at most half of them (sm90/backward/plan.h): so a CTA waits
  // only for CTAs that start before it. CTAs at a time have tiles of so many heads that the others have been added up by then.
  constexpr void set_heads_with_sums(int64_t n_ctas, int64_t bytes) {
    int64_t const all = n_heads_of_keys();
    int64_t const n_blocks = n_key_blocks();
    heads_with_sums = int(all);
    if (n_ctas > 0 && all > 0 && n_blocks > 0 && padded_q > 0) {
      int64_t const bytes_of_head = int64_t(group()) * padded_q * columns * int(sizeof(float));
      int64_t const n =
          2 * int64_t(larger(int(bytes / bytes_of_head / 2), int(ceil_div(n_ctas, n_blocks))));
      constexpr int64_t kMostAdded = 1 << 24;
      int64_t const most_added = (2 * kMostCtasOfBlock * n_blocks * group() + 1) * ceil_div(all, n);
      heads_with_sums = int(n < all && most_added < kMostAdded ? n : all);
    }
  }

  PYFLASH_HOST_DEVICE constexpr int group() const { return heads / heads_kv; }
  // Blocks of keys of a head of k and v, and these heads of all batches.
  PYFLASH_HOST_DEVICE constexpr int64_t n_key_blocks() const {
    return k_sequences.tensor_rows() == 0 ? 0 : blocked_keys().n_rows(batch) / block_k;
  }
  // Whether tiles start in the order of their lengths, which packed sequences have many of. Sums in one order have their own.
  PYFLASH_HOST_DEVICE constexpr bool sorts_key_blocks() const {
    return k_sequences.is_packed() && !deterministic && n_key_blocks() <= kMostSortedBlocks;
  }
  PYFLASH_HOST_DEVICE constexpr int64_t n_heads_of_keys() const {
    return int64_t(heads_kv) * k_sequences.tensor_batches(batch);
  }

  // The rows of the workspace, and those of the sums of dQ.
  constexpr int64_t n_workspace_rows() const {
    return int64_t(q_sequences.tensor_batches(batch)) * heads * blocked_queries().n_rows(batch);
  }
  PYFLASH_HOST_DEVICE constexpr int64_t n_sum_rows() const {
    return int64_t(heads_with_sums) * group() * padded_q;
  }
  PYFLASH_HOST_DEVICE constexpr bool recycles_sums() const {
    return heads_with_sums < n_heads_of_keys();
  }
  // The last head to use the n-th of recycled sums.
  PYFLASH_HOST_DEVICE constexpr int last_head_in(int n) const {
    return n + (int(n_heads_of_keys()) - 1 - n) / heads_with_sums * heads_with_sums;
  }
  // How far the sums of a head of k and v, counted through all batches, are before its rows of the workspace.
  PYFLASH_HOST_DEVICE constexpr int rows_before_sums(int head) const {
    return head / heads_with_sums * heads_with_sums * group() * padded_q;
  }
  // One of them. tensor_batch: 0 where sequences are packed. NOTE: memory has no room for 2^31 of them.
  PYFLASH_HOST_DEVICE constexpr int workspace_row(int tensor_batch, int head, int row) const {
    return (tensor_batch * heads + head) * padded_q + row;
  }
  // The sums of kQueriesOfPiece rows from `row` on are pieces of some columns, side by side: each has what a warpgroup computes at a
  // time, a warp after the other, four values of each lane at a time in the order of MMA accumulators.
  PYFLASH_HOST_DEVICE constexpr float* sums_of(int row) const {
    return dq_sum + int64_t(row) * columns;
  }
  // The order in which blocks of keys add, and in which their tiles start. From the last keys on, tiles begin with their first
  // queries: under a causal mask each reaches the queries of the tile before it some blocks later, and waits for nothing. From the first
  // keys on, tiles begin with their last queries, and the longest tile is the first, so that the last to start are short: heads of k
  // and v that serve several of q are few, and above d_head 64 it was measured to be faster under a causal mask.
  PYFLASH_HOST_DEVICE constexpr bool first_keys_first() const {
    return heads > heads_kv ||
           (columns > 64 && mask.cuts_right() && !mask.cuts_left() && !waits_in_turn());
  }
  // Of SM90's kernels of d_head 192 in one order, whose steps do not overlap: tiles behind each other were measured to lose up to a
  // quarter of causal attention.
  PYFLASH_HOST_DEVICE constexpr bool waits_in_turn() const {
    return deterministic && columns == 192 && !lanes_are_neighbours;
  }
  // A block of keys adds once the turn is at most this, and gives it on as one less.
  PYFLASH_HOST_DEVICE constexpr int turn_of(int n_block) const {
    return first_keys_first() ? -n_block : n_block;
  }
  // The turn of the first block of keys to add to the sums of a block of queries, of those that some of them attend.
  PYFLASH_HOST_DEVICE constexpr int first_turn(int first_query, int n_queries, int n_keys) const {
    int const n = smaller(block_q, n_queries - first_query);
    if (n <= 0) {
      return turn_of(0);
    }
    int const aligned = aligned_column(first_query, n_queries, n_keys);
    Interval const blocks = mask.keys_from(aligned, n_keys).of_some(n).blocks_touched(block_k);
    return turn_of(first_keys_first() ? blocks.begin : blocks.end - 1);
  }
};

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
  // Then: each in a workspace of its own.
  bool runs_two_slices;

  PYFLASH_HOST_DEVICE constexpr BlockedRows blocked_key_sums() const {
    return {k_sequences, larger(block_k, kQueriesOfPiece)};
  }
  constexpr void set_shape(BackwardShape const& shape) {
    AttentionGradients::set_shape(shape);
    padded_k = int(blocked_key_sums().n_rows(batch));
    // NOTE: where tiles differ in length, CTAs of few groups end long after each other.
    bool const has_slices = group() == 1 || !tiles_differ();
    divide(shape, kCtasAtATime, has_slices ? kBytesOfSlice : INT64_MAX);
  }
  // Divides heads into slices, and groups of query heads among CTAs. n_ctas: that run at a time. bytes: that the sums of a slice may
  // take.
  constexpr void divide(BackwardShape const& shape, int n_ctas, int64_t bytes) {
    // Deterministic kernels add dK and dV up in registers, in the order of the heads.
    int const most_ctas = shape.divides_groups && !deterministic ? group() : 1;
    slices_are_problems = shape.slices_are_problems;
    run_as_one_slice();
    ctas_of_group = 1;
    runs_two_slices = false;
    if (n_heads_of_keys() == 0) {
      return;
    }
    // NOTE: bytes of dropout depend on the number of heads, and sums that are recycled are few.
    bool const runs_slices =
        shape.runs_slices && !(slices_are_problems && (recycles_sums() || dropout.drops()));
    int64_t const least = 2 * int64_t(n_ctas) / most_ctas;  // tiles of a slice
    if (runs_slices) {
      limit_slice(n_ctas, least, bytes);
    }
    runs_two_slices = slices_are_problems && n_slices() > 1 && halve_slice();
    if (most_ctas > 1) {
      divide_groups(n_ctas);
    }
    if (runs_slices && ctas_of_group > 1) {  // there are sums of dK and dV, too
      limit_slice(n_ctas, least, bytes);
      divide_groups(n_ctas);
    }
    if (heads_of_slice < n_heads_of_keys() && !runs_two_slices) {
      heads_of_slice = slices(n_ctas, n_key_blocks() * ctas_of_group).filled(heads_of_slice);
    }
  }
  // So that two have as many heads as one had, or one of each batch each. NOTE: heads that run at a time wait for each other less than
  // tiles of one head whose sums have one order: with fewer heads in both, two slices were measured to be slower.
  constexpr bool halve_slice() {
    int const of_each_batch = k_sequences.tensor_batches(batch);
    int const n = heads_of_slice / of_each_batch;
    bool const is_halved = n == 1 || n % 2 == 0;
    heads_of_slice = is_halved ? (n + 1) / 2 * of_each_batch : heads_of_slice;
    return is_halved;
  }
  constexpr void run_as_one_slice() {
    first_head_of_slice = 0;
    heads_of_slice = int(n_heads_of_keys());
  }
  constexpr HeadSlices slices(int n_ctas, int64_t n_tiles) const {
    return {.n_heads = n_heads_of_keys(),
            .unit = slices_are_problems ? k_sequences.tensor_batches(batch) : 1,
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
  // The i-th of them.
  constexpr BackwardParams slice(int i) const {
    if (slices_are_problems) {
      return n_slices() > 1 ? problem_of_slice(i) : *this;
    }
    BackwardParams params = *this;
    params.first_head_of_slice = i * heads_of_slice;
    params.heads_of_slice =
        smaller(heads_of_slice, int(n_heads_of_keys()) - params.first_head_of_slice);
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
    BackwardParams params = *this;
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
    if (runs_two_slices && i % 2 == 1) {
      params.take_second_workspace(*this);
    }
    return params;
  }
  // What lies behind the workspace of a slice. all: the problem that has slices.
  constexpr void take_second_workspace(BackwardParams const& all) {
    int64_t const rows = all.n_slice_rows();
    dq_sum += rows * columns;
    lse2 += rows;
    minus_delta += rows;
    turns += deterministic ? rows * columns / kSumsOfTurn : 0;
    order_of_keys += sorts_key_blocks() ? n_key_blocks() : 0;
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
