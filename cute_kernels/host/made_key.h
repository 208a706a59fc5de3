// What tells whether two calls have the same made before their kernels.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cute_kernels/host/made_store.h"
#include "cute_kernels/variant/arguments.h"
#include "cute_kernels/variant_row.h"

namespace pyflash {

// That captured tensors stay as they are.
struct Promise {
  int64_t number = 0;             // of who promises, and of no other in the process; 0: nobody does
  std::vector<int64_t> versions;  // of the tensors, as torch counts writes

  // numbers: the number and the versions, or nothing. Refuses a version too few or too many.
  static Promise of(std::optional<std::vector<int64_t>> const& numbers,
                    variant::Arguments const& captured);
};

// The key without device and stream; none, where what is made depends on memory of the device that nobody promises to leave as it
// is.
std::optional<MadeKey> made_key(void const* row, bool makes_of_tensors, MadeBefore const& made,
                                variant::Arguments const& captured, Promise const& promise);

}  // namespace pyflash
