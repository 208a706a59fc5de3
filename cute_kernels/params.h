// The problem as a kernel sees it: pointers, strides, extents.
#pragma once

#include <cstdint>

#include "cute_kernels/common/dropout.h"
#include "cute_kernels/common/kv_source.h"
#include "cute_kernels/common/mask.h"
#include "cute_kernels/common/sequence.h"
#include "cute_kernels/common/shares.h"
#include "cute_kernels/common/tensor_strides.h"
#include "cute_kernels/common/tile_list.h"

namespace pyflash {

// The strides of lse, whose rows are adjacent.
struct LseStrides {
  int64_t batch;  // 0 where sequences are packed
  int64_t head;
  int64_t split;  // of lse_partial: the number of elements of lse
};

// A number for each head of q, of fp32 or of q's type. That of a row is data[strides.offset_of(batch, head, row)], row being
// that of the Q block's sequence: where heads of q are rows of one Q block, so are their numbers. strides.batch is 0 where all
// sequences share them.
struct PerHead {
  void const* data;  // nullptr: none
  TensorStrides strides;
  bool is_fp32;
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

// A warp merges this many splits of a row at most.
inline constexpr int kMaxSplits = 128;

// As a number of splits: of each sequence as many as its length asks for, which the device sees.
inline constexpr int kSplitsByLength = -1;

// As a number of splits: of each sequence those of so many keys, or of the blocks that they have room for, from its first key
// on. What a split has does not depend on lengths, nor does a row's result on how many there are: those without a key that it
// attends change no bit. The last of kMaxSplits has all keys that follow.
inline constexpr int kSplitsAtFixedKeys = -2;
inline constexpr int kKeysOfFixedSplit = 1024;
PYFLASH_HOST_DEVICE constexpr int blocks_of_fixed_split(int B_c) {
  return B_c < kKeysOfFixedSplit ? kKeysOfFixedSplit / B_c : 1;
}
PYFLASH_HOST_DEVICE constexpr Interval fixed_split(Interval const& blocks, int split, int B_c) {
  int const n_blocks = blocks_of_fixed_split(B_c);
  int const begin = split * n_blocks;
  int const end = split + 1 == kMaxSplits ? blocks.end : begin + n_blocks;
  return {larger(blocks.begin, begin), smaller(blocks.end, end)};
}

// A problem but for pages of K and V, which kernels of other features do not read.
// NOTE: the order of members is that in which kernels load them best. mask(), q_sequences() and kv() are made
// of some of them, which nothing else reads.
struct ForwardParamsWithoutPages {
  void const* q;  // (batch, seqlen_q, heads, d_head)
  struct {
    void const* k;  // (batch, seqlen_k, heads_kv, d_head)
    void const* v;  // (batch, seqlen_k, heads_kv, d_head)
  } kv_data;
  void* o;     // (batch, seqlen_q, heads, d_head)
  float* lse;  // (batch, heads, seqlen_q), natural log; packed: (heads, total_q)

  struct {
    int const* q;
    int const* k;
  } sequence_starts;

  // Where num_splits > cluster, what each split of the keys makes of them goes here, and o and lse are merged from it.
  float* o_partial;    // (num_splits, elements of lse, d_head)
  float* lse_partial;  // (num_splits, elements of lse)

  TensorStrides q_strides;
  struct {
    TensorStrides k;
    TensorStrides v;
  } kv_strides;
  TensorStrides o_strides;
  LseStrides lse_strides;

  int batch;
  int heads;     // of q and o: a multiple of heads_kv
  int heads_kv;  // of k and v: head h of q attends head h / (heads / heads_kv)
  struct {
    int longest_q;
    int longest_k;
    int total_q;
    int total_k;
  } sequence_lengths;
  int d_head;  // a multiple of 8, at most that of the config

  struct {
    int left;
    int right;
  } windows;

  int num_splits;  // from 1 to kMaxSplits
  int cluster;     // CTAs that share a tile, a split each, and merge them: num_splits, or 1

  float softmax_scale;
  float inverse_scale_log2;  // 1 / (softmax_scale * log2(e)), at most 1e28
  Softcap softcap;

  PerHead sinks;  // logits that join the softmax denominator only
  int attention_chunk;
  PerHead alibi_slopes;

  PYFLASH_HOST_DEVICE constexpr Mask mask() const {
    return {.window_left = windows.left, .window_right = windows.right, .chunk = attention_chunk};
  }
  constexpr void set_mask(Mask const& mask) {
    windows = {.left = mask.window_left, .right = mask.window_right};
    attention_chunk = mask.chunk;
  }

  // Where the sequences of q, o and lse lie, and K and V with theirs. Both are packed, or neither is; keys in pages are not.
  PYFLASH_HOST_DEVICE constexpr Sequences q_sequences() const {
    return {sequence_starts.q, sequence_lengths.longest_q, sequence_lengths.total_q};
  }
  PYFLASH_HOST_DEVICE constexpr KvSource kv() const {
    return {.k = {kv_data.k, kv_strides.k},
            .v = {kv_data.v, kv_strides.v},
            .sequences = {sequence_starts.k, sequence_lengths.longest_k, sequence_lengths.total_k},
            .heads = heads_kv};
  }
  constexpr void set_q_sequences(Sequences const& sequences) {
    sequence_starts.q = sequences.starts;
    sequence_lengths.longest_q = sequences.longest;
    sequence_lengths.total_q = sequences.total;
  }
  // The first element of a key's row of a head of K, and of V.
  // NOTE: of kv(), kernels have other code, and the same function.
  template <class Element>
  PYFLASH_HOST_DEVICE constexpr Element const* k_at(int batch, int head, int row) const {
    return kv_strides.k.at(static_cast<Element const*>(kv_data.k), batch, head, row);
  }
  template <class Element>
  PYFLASH_HOST_DEVICE constexpr Element const* v_at(int batch, int head, int row) const {
    return kv_strides.v.at(static_cast<Element const*>(kv_data.v), batch, head, row);
  }
  constexpr void set_kv(KvSource const& kv) {
    kv_data = {.k = kv.k.data, .v = kv.v.data};
    kv_strides = {.k = kv.k.strides, .v = kv.v.strides};
    sequence_starts.k = kv.sequences.starts;
    sequence_lengths.longest_k = kv.sequences.longest;
    sequence_lengths.total_k = kv.sequences.total;
    heads_kv = kv.heads;
  }
  // K and V from a head of a sequence on, or of a page. Elements have 16 bits.
  constexpr void skip_kv(int batch, int head) {
    kv_data = {.k = k_at<uint16_t>(batch, head, 0), .v = v_at<uint16_t>(batch, head, 0)};
  }
};

// NOTE: the members of the base stay where they are in kernels without pages.
struct ForwardParams : ForwardParamsWithoutPages {
  Pages pages;  // of K and V

  PYFLASH_HOST_DEVICE constexpr KvSource kv() const {
    KvSource source = ForwardParamsWithoutPages::kv();
    source.pages = pages;
    return source;
  }
  constexpr void set_kv(KvSource const& kv) {
    ForwardParamsWithoutPages::set_kv(kv);
    pages = kv.pages;
  }
};

// What elements of K and V in e4m3 count: a number for each of their heads, on the device.
struct KvScales {
  float const* k = nullptr;  // nullptr: K and V are of q's type
  float const* v = nullptr;
  int k_stride = 0;  // elements between heads; 0: all share one
  int v_stride = 0;
};

// A problem, and the list of its tiles, or of equal shares of its keys, where the device makes one.
// NOTE: kernels without lists get ForwardParams alone, in which members have their places.
struct ListedForwardParams : ForwardParams {
  float* tile_list = nullptr;  // ints: common/tile_list.h
  int tile_queries = 0;        // of a tile of the list; 0: there is none
  int tile_keys = 0;           // of a block
  int least_listed_rows = 0;   // sequences of fewer are another kernel's

  KvScales kv_scales = {};

  Beside beside = {};  // of the listed tiles

  constexpr bool has_fp8_kv() const { return kv_scales.k != nullptr; }

  constexpr bool has_tile_list() const { return tile_queries > 0; }
  constexpr TileListing tile_listing() const {
    return {.q = q_sequences(),
            .k = kv().sequences,
            .pages = pages,
            .mask = mask(),
            .batch = batch,
            .n_queries = tile_queries,
            .B_c = tile_keys,
            .least_rows = least_listed_rows,
            .beside = beside,
            .shares = shares_beside};
  }

  // Equal shares of the blocks of keys, whose parts are o_partial, (2 * n_shares, rows_of_part(), d_head), and lse_partial,
  // (2 * n_shares, rows_of_part()). Where the attention kernel merges them, two columns of O, and a row's lse, are 16 bytes with the
  // launch's tag.
  float* share_list = nullptr;       // ints: common/shares.h
  int n_shares = 0;                  // one for each CTA; 0: there are none
  int share_heads = 0;               // of a sequence's tiles
  int heads_abreast = 1;             // of them
  int share_queries = 0;             // of a tile
  int share_keys = 0;                // of a block
  bool is_share_list_given = false;  // the caller made it
  bool runs_beside = false;          // the kernel before it, of the sequences of more rows
  bool merges_shares = false;        // the attention kernel does, whose CTAs find their shares
  uint64_t tag = 0;                  // of the launch, where it does: host/launch_tag.h

  bool has_fixed_splits =
      false;  // kSplitsAtFixedKeys: parts of rows that attend nothing are not written

  constexpr bool has_shares() const { return n_shares > 0; }
  constexpr ShareListing share_listing() const {
    return {.q = q_sequences(),
            .k = kv().sequences,
            .pages = pages,
            .mask = mask(),
            .batch = batch,
            .heads = share_heads,
            .abreast = heads_abreast,
            .n_queries = share_queries,
            .B_c = share_keys,
            .n_shares = n_shares / heads_abreast};
  }
  // Row r of a part is query r / group, head r % group of those that the tile packs.
  constexpr int group_of_share() const { return share_heads > 0 ? heads / share_heads : 1; }
  constexpr int rows_of_part() const {
    return group_of_share() * smaller(q_sequences().longest, share_queries);
  }

  Dropout dropout = {};

  ShareListing shares_beside = {};  // that beside.list has
};

}  // namespace pyflash
