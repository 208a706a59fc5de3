// The gradients of attention without dropout, as kernels see them: tensors, workspace, and how rows of the workspace lie.
#pragma once

#include <cstdint>

#include "cute_kernels/backward_shape.h"
#include "cute_kernels/common/blocked_rows.h"
#include "cute_kernels/params.h"

namespace pyflash {

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
  // The order in which blocks of keys add, and in which their tiles start. From the last keys on, tiles begin with their first
  // queries: under a causal mask each reaches the queries of the tile before it some blocks later, and waits for nothing. From the
  // first keys on, tiles begin with their last queries, and the longest tile is the first, so that the last to start are short.
  bool first_keys_first;
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
  // recycles: whether heads have their sums of dQ in the same memory, one after another.
  constexpr void set_shape(BackwardShape const& shape, bool recycles) {
    block_q = shape.B_r;
    padded_q = int(blocked_queries().n_rows(batch));
    columns = shape.d_head;
    block_k = shape.B_c;
    lanes_are_neighbours = shape.lanes_are_neighbours;
    // Heads of k and v that serve several of q are few. Above d_head 64 the first keys first were measured to be faster under a causal
    // mask, but where steps of tiles do not overlap and add in one order: SM90's 192, up to a quarter slower.
    bool const waits_in_turn = deterministic && columns == 192 && !lanes_are_neighbours;
    first_keys_first = heads > heads_kv ||
                       (columns > 64 && mask.cuts_right() && !mask.cuts_left() && !waits_in_turn);
    // A tile of a group takes the time of all of the group's heads: heads of k and v wait less where twice as many have sums.
    int const n_ctas = group() > 1 ? 2 * kCtasAtATime : kCtasAtATime;
    set_heads_with_sums(recycles ? n_ctas : 0,
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
  // A block of keys adds once the turn is at most this, and gives it on as one less.
  PYFLASH_HOST_DEVICE constexpr int turn_of(int n_block) const {
    return first_keys_first ? -n_block : n_block;
  }
  // The turn of the first block of keys to add to the sums of a block of queries, of those that some of them attend.
  PYFLASH_HOST_DEVICE constexpr int first_turn(int first_query, int n_queries, int n_keys) const {
    int const n = smaller(block_q, n_queries - first_query);
    if (n <= 0) {
      return turn_of(0);
    }
    int const aligned = aligned_column(first_query, n_queries, n_keys);
    Interval const blocks = mask.keys_from(aligned, n_keys).of_some(n).blocks_touched(block_k);
    return turn_of(first_keys_first ? blocks.begin : blocks.end - 1);
  }
};

}  // namespace pyflash
