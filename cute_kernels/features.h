// What a kernel can do beyond attention in which every query attends every key. Combinations are compiled separately, so
// that a feature costs nothing in the kernels without it. Which ones are built: pyflash/config/features.py.
#pragma once

#include <compare>

#include "cute_kernels/feature_members.h"
#include "cute_kernels/params.h"

// NOTE: outside namespace pyflash for the same reason as the configs: config.h.
struct ForwardFeatures {
  bool right_window = false;  // causal too
  bool left_window = false;
  bool predicated_head_dim = false;  // d_head below that of the config
  bool softcap = false;
  bool sinks = false;
  bool alibi_slopes = false;
  bool paged_kv = false;      // K and V lie in pages
  bool listed_tiles = false;  // the tiles of sequences of different lengths, from a list
  bool fp8_kv = false;        // K and V are e4m3, with scales
  bool equal_shares = false;  // of the keys of all sequences, one for each CTA, from a list
  bool dropout = false;       // of P
  bool fixed_splits = false;  // at multiples of a number of keys
  bool gathered_kv = false;   // pages of K and V of any size, row by row

  friend auto operator<=>(ForwardFeatures const&, ForwardFeatures const&) = default;

  // A feature and its name in Python. The list has every member, once.
  struct Member {
    char const* name;
    bool ForwardFeatures::* value;
  };
  static constexpr Member kMembers[] = {
      {"right_window", &ForwardFeatures::right_window},
      {"left_window", &ForwardFeatures::left_window},
      {"predicated_head_dim", &ForwardFeatures::predicated_head_dim},
      {"softcap", &ForwardFeatures::softcap},
      {"sinks", &ForwardFeatures::sinks},
      {"alibi_slopes", &ForwardFeatures::alibi_slopes},
      {"paged_kv", &ForwardFeatures::paged_kv},
      {"listed_tiles", &ForwardFeatures::listed_tiles},
      {"fp8_kv", &ForwardFeatures::fp8_kv},
      {"equal_shares", &ForwardFeatures::equal_shares},
      {"dropout", &ForwardFeatures::dropout},
      {"fixed_splits", &ForwardFeatures::fixed_splits},
      {"gathered_kv", &ForwardFeatures::gathered_kv}};
  static constexpr bool ForwardFeatures::* kExact[] = {
      &ForwardFeatures::paged_kv, &ForwardFeatures::fp8_kv, &ForwardFeatures::equal_shares,
      &ForwardFeatures::dropout, &ForwardFeatures::fixed_splits};
};

namespace pyflash {

static_assert(lists_every_member_once<ForwardFeatures>(),
              "ForwardFeatures::kMembers lacks a feature, or has it twice");

// With num_splits > 1 whoever merges the splits adds the sinks.
// NOTE: where keys are shared, to tiles that no share has as a whole.
inline ForwardFeatures features_needed(ForwardParams const& params, int d_head_of_config) {
  return {.right_window = params.mask().cuts_right(),
          .left_window = params.mask().cuts_left(),
          .predicated_head_dim = params.d_head < d_head_of_config,
          .softcap = params.softcap.cap != 0,
          .sinks = params.sinks.data != nullptr && params.num_splits <= 1,
          .alibi_slopes = params.alibi_slopes.data != nullptr,
          .paged_kv = params.kv().is_paged()};
}
inline ForwardFeatures features_needed(ListedForwardParams const& params, int d_head_of_config) {
  ForwardFeatures needed =
      features_needed(static_cast<ForwardParams const&>(params), d_head_of_config);
  needed.listed_tiles = params.has_tile_list();
  needed.fp8_kv = params.has_fp8_kv();
  needed.equal_shares = params.has_shares();
  needed.dropout = params.dropout.drops();
  needed.fixed_splits = params.has_fixed_splits;
  // NOTE: kernels that read FP8 caches take pages of any size.
  needed.gathered_kv = params.kv().is_paged() && !params.pages.are_boxes() && !params.has_fp8_kv();
  return needed;
}

}  // namespace pyflash
