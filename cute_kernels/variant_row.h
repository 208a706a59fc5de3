// What a kernel library has of variants: for a variant and a config, kernels and how they are launched.
#pragma once

#include <array>
#include <cstdint>

#include "cute_kernels/backward.h"
#include "cute_kernels/forward.h"
#include "cute_kernels/registry.h"
#include "cute_kernels/variant/arguments.h"

namespace pyflash {

// What is made before a kernel with a variant: tables, bits, spans, lists, and the order of tiles.
struct MadeBefore {
  static constexpr int kNumbers = 16;

  int64_t n_ints = 0;       // of memory
  bool is_of_host = false;  // it follows from these numbers, the row, and what is captured
  std::array<int, kNumbers> numbers{};
};

template <class Op>
struct VariantRowOf {
  char const* key;     // of the variant's normal form
  int most_positions;  // of a sequence
  ConfigMapRow<Op> row;
  bool makes_of_tensors;  // what is made may depend on captured tensors, if there are any
  // Of a problem.
  MadeBefore (*made)(typename Op::Params const& params);
  // Runs the kernel of the row's i-th combination of features, what goes before it and what follows, on `stream` (a cudaStream_t)
  // of the current device, without synchronising; returns a cudaError_t. memory: of what is made; is_made: it holds that of such
  // a call already.
  int (*run)(VariantRowOf const& row, size_t i, typename Op::Params const& params,
             variant::Arguments const& captured, int* memory, bool is_made, void* stream);
};
using VariantRow = VariantRowOf<Forward>;
using GradientRow = VariantRowOf<Backward>;  // of gradients, of which what is captured has none

}  // namespace pyflash

extern "C" {
__attribute__((visibility("default"))) pyflash::Span<pyflash::VariantRow> const*
pyflash_variant_rows();
__attribute__((visibility("default"))) pyflash::Span<pyflash::GradientRow> const*
pyflash_gradient_rows();
}
