// Where rows of packed queries go in pages: what the kernel of find_slots.cu and the CPU do for each. A kernel library exports
// pyflash_find_slots.
#pragma once

#include <cstdint>

#include "cute_kernels/common/integers.h"

namespace pyflash {

struct SlotParams {
  struct Integers {  // int32 or int64
    void const* data;
    bool are_64_bits;
    int64_t stride;

    PYFLASH_HOST_DEVICE int64_t at(int64_t i) const {
      return are_64_bits ? static_cast<int64_t const*>(data)[i]
                         : static_cast<int32_t const*>(data)[i];
    }
    PYFLASH_HOST_DEVICE int64_t operator[](int64_t i) const { return at(i * stride); }
  };

  Integers table;  // (batch, max_pages), by rows
  int64_t table_column_stride;
  Integers lengths;  // (batch,)
  Integers starts;   // (batch + 1,)
  int batch;
  int max_pages;
  int page_size;
  int n_rows;
  int64_t* slots;  // (n_rows,)

  // -1 for a row of no sequence, and where there is no such page.
  PYFLASH_HOST_DEVICE int64_t slot(int row) const {
    int b = 0;
    for (int n = batch; n > 0;) {  // the first sequence that ends behind the row
      int const half = n / 2;
      bool const is_behind = starts[b + half + 1] > row;
      b = is_behind ? b : b + half + 1;
      n = is_behind ? half : n - half - 1;
    }
    if (b == batch) {
      return -1;
    }
    int64_t const key = lengths[b] - starts[b + 1] + row;
    int64_t const entry = key / page_size;
    if (key < 0 || entry >= max_pages) {
      return -1;
    }
    int64_t const page = table.at(b * table.stride + entry * table_column_stride);
    return page < 0 ? -1 : page * page_size + key % page_size;
  }
};

}  // namespace pyflash

// Runs on `stream` (a cudaStream_t) of the current device, without synchronising; returns a cudaError_t.
extern "C" __attribute__((visibility("default"))) int pyflash_find_slots(
    pyflash::SlotParams const* params, void* stream);
