#include "cute_kernels/host/dropout.h"

#include <cmath>

#include "cute_kernels/host/errors.h"

namespace pyflash {

void check_dropout(Call const& call) {
  Options const& options = call.options;
  if (options.dropout_p == 0) {
    return;
  }
  require(!call.paging, "dropout_p = ", options.dropout_p,
          " came with pages of keys: expected 0, because caches are not trained on");
  require(options.num_splits != kSplitsByLength, "dropout_p = ", options.dropout_p,
          " came with num_splits = ", options.num_splits, ": expected a number from 0 to ",
          kMaxSplits);
  bool const has_data = call.q.device.kind != Device::Kind::kOther;
  require(options.dropout_state || !has_data, "dropout_p = ", options.dropout_p,
          " came without dropout_state: expected a tensor of seed and offset");
  if (!options.dropout_state) {
    return;
  }
  TensorView const& state = *options.dropout_state;
  require(state.dtype == ElementType::kInt64 || state.dtype == ElementType::kUInt64, state.name,
          " is ", state.dtype, ": expected int64 or uint64");
  require(state.rank == 1 && state.sizes[0] == 2 && state.strides[0] == 1, state.name,
          " has shape ", ShapeOf{state}, ": expected (2,), contiguous: seed and offset");
}

Dropout dropout_of(Options const& options) {
  float const kept = 1.f - static_cast<float>(options.dropout_p);
  return {.state = options.dropout_state ? static_cast<uint64_t const*>(options.dropout_state->data)
                                         : nullptr,
          .p = static_cast<float>(options.dropout_p),
          .factor = 1.f / kept,
          .largest_kept = static_cast<uint32_t>(std::floor(kept * 255.0))};
}

DropoutRow::DropoutRow(Dropout const& dropout, int heads, int sequence, int head)
    : bytes_(dropout.state[0], dropout.state[1], heads, sequence, head),
      largest_kept_(dropout.largest_kept) {}

char const* DropoutRow::kept(int query, int first_key, int n_keys) {
  constexpr int kKeys = 32;
  int const first_block = first_key / kKeys, end_block = ceil_div(first_key + n_keys, kKeys);
  kept_.resize((end_block - first_block) * kKeys);
  for (int block = first_block; block < end_block; ++block) {
    char* const of_block = kept_.data() + (block - first_block) * kKeys;
    for (int pair = 0; pair < 4; ++pair) {
      Random128 const random =
          bytes_.of_lane(query / 16, block, DropoutBytes::lane_of(query, 2 * pair));
      for (int tile = 0; tile < 4; ++tile) {
        for (int i = 0; i < 2; ++i) {
          uint32_t const byte = DropoutBytes::byte_of(random.words[tile], query / 8 % 2, i);
          of_block[8 * tile + 2 * pair + i] = byte <= largest_kept_;
        }
      }
    }
  }
  return kept_.data() + (first_key - first_block * kKeys);
}

}  // namespace pyflash
