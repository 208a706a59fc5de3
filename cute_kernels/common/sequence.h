// Where the sequences of a batch lie in a tensor, for the host and the device. Sequences are padded, (batch, seqlen, ...), all
// of one length, or packed, (total, ...), one after the other. Only this file knows how the length of a sequence is found.
#pragma once

#include "cute_kernels/common/integers.h"

namespace pyflash {

// The rows of one sequence.
struct Rows {
  int begin;  // in the packed tensor; 0 where sequences are padded
  int length;
};

struct Sequences {
  int const* starts;  // (batch + 1), ascending from 0 to total; nullptr: padded
  int longest;        // an upper bound of the lengths
  int total;          // rows of all packed sequences; 0: padded

  static PYFLASH_HOST_DEVICE constexpr Sequences padded(int length) {
    return {.starts = nullptr, .longest = length, .total = 0};
  }
  static PYFLASH_HOST_DEVICE constexpr Sequences packed(int const* starts, int longest, int total) {
    return {.starts = starts, .longest = longest, .total = total};
  }

  PYFLASH_HOST_DEVICE constexpr bool is_packed() const { return starts != nullptr; }

  // The blocks of so many rows that the longest sequence has.
  PYFLASH_HOST_DEVICE constexpr int most_blocks(int n_rows) const {
    return ceil_div(longest, n_rows);
  }

  // The tensor's extents along rows and along batches.
  PYFLASH_HOST_DEVICE constexpr int tensor_rows() const { return is_packed() ? total : longest; }
  PYFLASH_HOST_DEVICE constexpr int tensor_batches(int batch) const {
    return is_packed() ? 1 : batch;
  }
  // A sequence's index along batches.
  PYFLASH_HOST_DEVICE constexpr int tensor_batch(int sequence) const {
    return is_packed() ? 0 : sequence;
  }

  PYFLASH_HOST_DEVICE constexpr double mean_length(int batch) const {
    return is_packed() ? double(total) / batch : longest;
  }

  // All rows of a padded sequence; those of a packed one, within [0, total) whatever `starts` holds.
  // load: reads an int at an address (device::Loader, HostLoader).
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
  template <class Loader>
  PYFLASH_HOST_DEVICE constexpr Rows rows_of(int sequence, Loader const& load) const {
    int const length = longest, n_rows = total;
    if (starts == nullptr) {
      return {0, length};
    }
    int const begin = smaller(larger(load(starts + sequence), 0), n_rows);
    int const end = smaller(larger(load(starts + sequence + 1), begin), n_rows);
    return {begin, end - begin};
  }

  // The first row of a sequence, for which no length is read.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
  template <class Loader>
  PYFLASH_HOST_DEVICE constexpr int begin_of(int sequence, Loader const& load) const {
    return Sequences{starts, 0, total}.rows_of(sequence, load).begin;
  }
};

// Reads the host's own memory.
struct HostLoader {
  constexpr int operator()(int const* address) const { return *address; }
};

}  // namespace pyflash
