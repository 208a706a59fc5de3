// What a kernel with a variant gets: what it gets without one, and at the end what the variant captures and what was made for
// it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cute_kernels/variant/block_lists.h"
#include "cute_kernels/variant/none.h"
#include "cute_kernels/variant/prepared_tables.h"

namespace pyflash::variant {

// What is made before the kernel runs.
template <class Variant>
struct Made {
  BlockLists lists;
  PreparedTables<Variant::kPrepared> prepared;
  int const* order_of_tiles = nullptr;  // of tiles (tile_order.h); nullptr: there is none
  uint32_t const* bits = nullptr;       // of the mask (mask_bits.h); nullptr: there are none
  BlockSpans spans;
};

template <class Base, class Variant>
struct WithVariant : Base, Made<Variant> {
  typename Variant::Params captured;
};

template <class Base, class Variant>
struct ParamsWith {
  using type = WithVariant<Base, Variant>;
};
template <class Base>
struct ParamsWith<Base, NoVariant> {
  using type = Base;
};
// Base itself where there is no variant.
template <class Base, class Variant>
using ParamsOf = typename ParamsWith<Base, Variant>::type;

// The blocks that a tile walks through, by their places in its list, where a mask lists them; else they are their own
// places.
template <class Variant>
struct Walk {
  int const* list;

  PYFLASH_HOST_DEVICE ListedBlock operator[](int place) const {
    if constexpr (Variant::kHasMask) {
      return ListedBlock::of(list[1 + place]);
    }
    return {place, false};
  }
};
template <class Variant, class Params>
PYFLASH_HOST_DEVICE Walk<Variant> walk_of(Params const& params, int batch, int head, int tile) {
  if constexpr (Variant::kHasMask) {
    return {params.lists.list(batch, head, tile)};
  }
  return {nullptr};
}

}  // namespace pyflash::variant
