// Rows of K and V that go into pages: what the kernel of append_rows.cu and the CPU do for each. A kernel library exports
// pyflash_append_rows.
#pragma once

#include <cstdint>

#include "cute_kernels/common/integers.h"

namespace pyflash {

// What is copied at once.
struct alignas(16) AppendedVector {
  uint32_t words[4];
};

// In vectors.
struct AppendStrides {
  int64_t page;  // of a cache
  int64_t row;
  int64_t head;
};

struct AppendParams {
  struct Part {  // K, or V
    AppendedVector const* rows;
    AppendedVector* cache;
    AppendStrides of_rows;
    AppendStrides of_cache;
  };

  Part parts[2];
  void const* slots;  // int32 or int64
  bool slots_are_64_bits;
  int64_t slots_stride;
  int n_rows;
  unsigned heads;
  unsigned vectors;  // of a head
  int page_size;
  int64_t n_slots;

  // Of K, and of V.
  PYFLASH_HOST_DEVICE unsigned vectors_of_row() const { return heads * vectors; }

  PYFLASH_HOST_DEVICE int64_t slot(int row) const {
    int64_t const at = row * slots_stride;
    return slots_are_64_bits ? static_cast<int64_t const*>(slots)[at]
                             : static_cast<int32_t const*>(slots)[at];
  }

  // Copies the i-th vector of a row of K and of V, unless the row has no slot among those that are.
  PYFLASH_HOST_DEVICE void copy(int row, unsigned i) const {
    int64_t const to = slot(row);
    if (to < 0 || to >= n_slots) {
      return;
    }
    // NOTE: numbers of 32 bits are divided in a fraction of the time.
    bool const is_short = n_slots <= INT32_MAX;
    int64_t const page = is_short ? unsigned(to) / unsigned(page_size) : to / page_size;
    int64_t const place = to - page * page_size;
    unsigned const head = i / vectors, vector = i % vectors;
    for (Part const& part : parts) {
      auto const& [rows, cache, from, into] = part;
      cache[page * into.page + place * into.row + head * into.head + vector] =
          rows[row * from.row + head * from.head + vector];
    }
  }
};

}  // namespace pyflash

// Runs on `stream` (a cudaStream_t) of the current device, without synchronising; returns a cudaError_t.
extern "C" __attribute__((visibility("default"))) int pyflash_append_rows(
    pyflash::AppendParams const* params, void* stream);
