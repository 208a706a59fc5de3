#include "cute_kernels/host/made_key.h"

#include <bit>

#include "cute_kernels/host/errors.h"

namespace pyflash {

Promise Promise::of(std::optional<std::vector<int64_t>> const& numbers,
                    variant::Arguments const& captured) {
  if (!numbers) {
    return {};
  }
  size_t const n_tensors = captured.tensors.size();
  require(numbers->size() == 1 + n_tensors, "promise has ", numbers->size(),
          " numbers: expected its own and the versions of ", n_tensors, " tensors");
  return {numbers->front(), {numbers->begin() + 1, numbers->end()}};
}

std::optional<MadeKey> made_key(void const* row, bool makes_of_tensors, MadeBefore const& made,
                                variant::Arguments const& captured, Promise const& promise) {
  bool const is_of_tensors = makes_of_tensors && !captured.tensors.empty();
  if (!made.is_of_host || (is_of_tensors && promise.number == 0)) {
    return std::nullopt;
  }
  MadeKey key;
  auto& words = key.words;
  auto const add_all = [&](auto const& numbers) {
    words.push_back(numbers.size());
    for (auto const number : numbers) {
      words.push_back(static_cast<uint64_t>(number));
    }
  };
  words.push_back(reinterpret_cast<uintptr_t>(row));  // of a library, which is never unloaded
  add_all(made.numbers);
  words.push_back(captured.reals.size());
  for (double const real : captured.reals) {
    words.push_back(std::bit_cast<uint64_t>(real));
  }
  add_all(captured.integers);
  if (is_of_tensors) {
    key.promise = promise.number;
    add_all(promise.versions);
    for (variant::TensorArgument const& tensor : captured.tensors) {
      words.push_back(reinterpret_cast<uintptr_t>(tensor.data));
      words.push_back(tensor.rank);
      for (int axis = 0; axis < tensor.rank; ++axis) {
        words.push_back(static_cast<uint64_t>(tensor.extents[axis]));
        words.push_back(static_cast<uint64_t>(tensor.strides[axis]));
      }
    }
  }
  return key;
}

}  // namespace pyflash
