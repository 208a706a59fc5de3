// Where K and V are, and where the keys of a sequence lie in them, for the host and the device. Only this file computes
// addresses of K and V.
#pragma once

#include <cstdint>

#include "cute_kernels/common/sequence.h"
#include "cute_kernels/common/tensor_strides.h"

namespace pyflash {

// K, or V: (batch, seqlen_k, heads_kv, d_head), packed, (total_k, heads_kv, d_head), or in pages, (num_pages, page_size,
// heads_kv, d_head), whose strides have pages for batches.
struct KvTensor {
  void const* data;  // nullptr: no elements
  TensorStrides strides;

  // A key's first element of a head.
  template <class Element>
  PYFLASH_HOST_DEVICE constexpr Element const* at(int batch, int head, int row) const {
    return strides.at(static_cast<Element const*>(data), batch, head, row);
  }
};

// Where a key is: an index along batches, or pages, and along rows.
struct KeyPlace {
  int batch;
  int row;
};

// The pages in which a sequence's keys lie, one page after the other.
struct Pages {
  // A sequence that has one page alone: its keys are rows of that, whatever its size. As log2_size.
  static constexpr int kOnePage = 30;

  int const* table = nullptr;    // (batch, entries) of page numbers; nullptr: there are none
  int64_t table_stride = 0;      // elements between sequences
  int const* lengths = nullptr;  // (batch), keys of the sequences
  int size = 0;                  // keys
  int log2_size = -1;            // -1: size is no power of two
  int number = 0;                // of pages in K and V

  PYFLASH_HOST_DEVICE constexpr bool exists(int page) const { return 0 <= page && page < number; }

  // Whether rows of a page are a TMA box, which takes as long where it has fewer; else each row is loaded by itself.
  static constexpr int kLog2FewestBoxRows = 2;
  PYFLASH_HOST_DEVICE constexpr bool are_boxes() const { return log2_size >= kLog2FewestBoxRows; }

  // longest: the keys that the entries of a sequence have room for, within which the length is.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
  template <class Loader>
  PYFLASH_HOST_DEVICE constexpr Rows rows_of(int sequence, int longest, Loader const& load) const {
    return {0, smaller(larger(load(lengths + sequence), 0), longest)};
  }
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
  template <class Loader>
  PYFLASH_HOST_DEVICE constexpr KeyPlace place_of(int sequence, int key, Loader const& load) const {
    int const entry = log2_size >= 0 ? key >> log2_size : key / size;
    return {load(table + sequence * table_stride + entry), key - entry * size};
  }
};

// A tensor without pages has one page for each sequence, of its own number: all of it where sequences are packed.
struct KvSource {
  KvTensor k;
  KvTensor v;
  Sequences sequences;  // of keys
  int heads;            // of K and V
  Pages pages = {};     // sequences: padded to all keys that the entries of a table have room for

  PYFLASH_HOST_DEVICE constexpr bool is_paged() const { return pages.table != nullptr; }

#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
  template <class Loader>
  PYFLASH_HOST_DEVICE constexpr Rows rows_of(int sequence, Loader const& load) const {
    if (!is_paged()) {
      return sequences.rows_of(sequence, load);
    }
    return pages.rows_of(sequence, sequences.longest, load);
  }

  // rows: of the sequence.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
  template <class Loader>
  PYFLASH_HOST_DEVICE constexpr KeyPlace place_of(int sequence, Rows const& rows, int key,
                                                  Loader const& load) const {
    if (!is_paged()) {
      return {sequences.tensor_batch(sequence), rows.begin + key};
    }
    return pages.place_of(sequence, key, load);
  }

  // The head of K and V that a head of Q attends. heads_q: a multiple of heads.
  PYFLASH_HOST_DEVICE constexpr int head_of(int head_q, int heads_q) const {
    return head_q / (heads_q / heads);
  }
};

}  // namespace pyflash
