// Rows of sequences as whole blocks of rows, for the host and the device. Packed sequence b begins in row starts[b] + b * block,
// rounded down to a whole block: it is found without a sum of lengths, and no two sequences share a block.
#pragma once

#include <cstdint>

#include "cute_kernels/common/sequence.h"

namespace pyflash {

struct BlockedRows {
  Sequences sequences;
  int block;

  // The rows of all packed sequences, or of a padded one.
  PYFLASH_HOST_DEVICE constexpr int64_t n_rows(int batch) const {
    return sequences.is_packed() ? (sequences.total + int64_t(batch) * block) / block * block
                                 : int64_t(ceil_div(sequences.longest, block)) * block;
  }

  // The first row of a sequence.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
  template <class Loader>
  PYFLASH_HOST_DEVICE constexpr int begin_of(int sequence, Loader const& load) const {
    return sequences.is_packed()
               ? (sequences.begin_of(sequence, load) + sequence * block) / block * block
               : 0;
  }

  // The last packed sequence that begins in no row behind this one. NOTE: where `starts` do not ascend, any.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
  template <class Loader>
  PYFLASH_HOST_DEVICE constexpr int sequence_at(int row, int batch, Loader const& load) const {
    int first = 0, end = batch;
    while (end - first > 1) {
      int const middle = first + (end - first) / 2;
      if (begin_of(middle, load) <= row) {
        first = middle;
      } else {
        end = middle;
      }
    }
    return first;
  }
};

}  // namespace pyflash
