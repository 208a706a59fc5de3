// What one CTA owns of a problem: the coordinates of its block, the lengths of its sequence, and where that lies in
// memory.
#pragma once

#include <cute/tensor_impl.hpp>

#include "cute_kernels/common/kv_source.h"
#include "cute_kernels/common/tile_list.h"
#include "cute_kernels/device.h"
#include "cute_kernels/sm80/copy.h"

namespace pyflash::sm80 {

using namespace cute;

struct BlockCoord {
  int m_block;
  int split;
  int head;
  int batch;
};

// Which part of the grid (grid.h) this CTA is. Neighbouring CTAs share a head, so that its K and V stay in L2.
//
// With kLongestFirst, for masks that leave the last Q blocks the most to do: the CTAs of a section of heads, as many as
// have their K and V in L2 together, go from the last Q block to the first, so that the short ones fill up the SMs at the
// end. Head by head, causal took up to 1.16 times as long on an H200.
template <class Traits, bool kLongestFirst>
CUTE_DEVICE BlockCoord block_coord(Sequences const& q, KvSource const& kv, int num_splits,
                                   int heads, int batch) {
  constexpr int kBlockM = Traits::kBlockM;
  int const n_m_blocks = ceil_div(q.longest, kBlockM);
  int m_block = device::block_idx() % n_m_blocks;
  int rest = device::block_idx() / n_m_blocks;  // split, head and batch
  if constexpr (kLongestFirst) {
    constexpr int kL2Rows = (32 << 20) / (2 * Traits::kHeadDim * sizeof(typename Traits::Element));
    int const n_rest = num_splits * heads * batch;
    int64_t const heads_in_L2 =
        int64_t(kL2Rows / max(kv.sequences.longest, 1)) * (heads / kv.heads);
    int const per_section = max(int(min(heads_in_L2, int64_t(n_rest))), 1);
    int const first = device::block_idx() / (per_section * n_m_blocks) * per_section;
    int const in_section = device::block_idx() - first * n_m_blocks;
    int const section = min(per_section, n_rest - first);  // the last may be smaller
    m_block = n_m_blocks - 1 - in_section / section;
    rest = first + in_section % section;
  }
  int const split = rest % num_splits;
  rest /= num_splits;
  return {.m_block = m_block, .split = split, .head = rest % heads, .batch = rest / heads};
}

// The same where tiles are listed (common/tile_list.h). Neighbouring CTAs have the same tile in all heads. m_block is -1 past
// the last tile.
CUTE_DEVICE BlockCoord listed_coord(int const* list, int num_splits, int heads) {
  int const n_rest = num_splits * heads;
  int const place = device::block_idx() / n_rest;
  int const rest = device::block_idx() % n_rest;
  if (place >= device::load(list)) {
    return {.m_block = -1, .split = 0, .head = 0, .batch = 0};
  }
  ListedTile const tile = device::load(reinterpret_cast<ListedTile const*>(list) + 1 + place);
  return {.m_block = tile.m_block,
          .split = rest % num_splits,
          .head = rest / num_splits,
          .batch = tile.sequence};
}

// One head of one sequence of Q or O as a matrix, (rows,columns).
template <class Element, class Pointer>
CUTE_DEVICE auto head_matrix(Pointer* base, TensorStrides const& strides, BlockCoord const& coord,
                             Rows const& rows) {
  Element* const tensor = static_cast<Element*>(base);
  return head_matrix(strides.at(tensor, coord.batch, coord.head, rows.begin), strides, rows);
}

// Rows of one head of K, or of V, in pages, by their keys. NOTE: pages hold anything where no row of the Q block attends a key,
// and tables where there is no key of these; a number may be that of no page.
template <class Element>
struct PagedRows {
  Pages const& pages;
  KvTensor tensor;
  int batch;
  int head;
  Interval keys;  // that some row of the Q block attends

  CUTE_DEVICE SourceRow<Element> operator()(int key) const {
    KeyPlace place{-1, 0};
    if (keys.begin <= key && key < keys.end) {
      place = pages.place_of(batch, key, device::Loader{});
    } else {
      device::leave_out();
    }
    bool const exists = pages.exists(place.batch);
    return {tensor.template at<Element>(exists ? place.batch : 0, head, place.row), exists};
  }
};

}  // namespace pyflash::sm80
