// Dropout in host code: the option as kernels get it, and the rows of its mask.
#pragma once

#include <cstdint>
#include <vector>

#include "cute_kernels/common/dropout.h"
#include "cute_kernels/host/call.h"

namespace pyflash {

// Refuses a state that is missing, or that kernels cannot read.
void check_dropout(Call const& call);

// options: checked.
Dropout dropout_of(Options const& options);

// Whether each key of a row is kept. `dropout` has a state in host memory.
class DropoutRow {
 public:
  DropoutRow(Dropout const& dropout, int heads, int sequence, int head);

  // From first_key on; the pointer is valid until the next call.
  char const* kept(int query, int first_key, int n_keys);

 private:
  DropoutBytes const bytes_;
  uint32_t const largest_kept_;
  std::vector<char> kept_;
};

}  // namespace pyflash
