// The variant of a call: its text, and what it captures.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cute_kernels/host/options.h"
#include "cute_kernels/host/tensor_view.h"
#include "cute_kernels/host/variant_program.h"
#include "cute_kernels/variant/arguments.h"

namespace pyflash {

struct VariantCall {
  std::string text;  // portable
  std::vector<TensorView> tensors;
  std::vector<double> reals;
  std::vector<int64_t> integers;
};

// As parse_variant. The programs of recent texts are kept.
std::shared_ptr<VariantProgram const> known_variant(std::string const& text);

// Refuses slopes of ALiBi beside a variant.
void refuse_beside_variant(Options const& options);

// Refuses values that are not of the variant's parameters, tensors that are not where q is, and options that do not go with
// a variant.
variant::Arguments check_variant(VariantCall const& call, VariantProgram const& program,
                                 Device device, Options const& options);

// Sets where gradients of captured tensors are summed: a float32 tensor for each of `places`, which ascend, contiguous
// and of the captured tensor's shape. Refuses others.
void set_sums(variant::Arguments& arguments, std::vector<TensorView> const& sums,
              std::vector<int64_t> const& places);

}  // namespace pyflash
