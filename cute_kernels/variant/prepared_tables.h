// The tables of a variant's prepared fields, with entries for all indices that tiles of whole blocks have, so that kernels read
// nothing outside of them.
#pragma once

#include <cstdint>

#include "cute_kernels/common/integers.h"
#include "cute_kernels/variant/block_lists.h"
#include "cute_kernels/variant/prepared.h"

namespace pyflash::variant {

// (batches, heads, length), the first of `first`.
struct PreparedShape {
  int batches;
  int heads;
  int first;
  int64_t length;

  PYFLASH_HOST_DEVICE constexpr int64_t size() const { return length * heads * batches; }
};

PYFLASH_HOST_DEVICE constexpr PreparedShape prepared_shape(PreparedField const& field,
                                                           ListedProblem const& problem) {
  constexpr int kVector = 4;  // of which each is aligned
  bool const per_batch = field.reads_batch || (field.reads_lengths && problem.has_lengths());
  int const queries = problem.q.most_blocks(problem.n_queries) * problem.n_queries;
  int const keys = problem.k.most_blocks(problem.B_c) * problem.B_c;
  int64_t length = 0;
  int first = 0;
  if (field.along == Along::query) {
    length = queries;
  } else if (field.along == Along::key) {
    length = keys;
  } else {
    bool const is_aligned = field.along == Along::aligned;
    first = -queries - (is_aligned ? problem.k.longest : 0);
    length = int64_t(keys) + (is_aligned ? problem.q.longest : 0) - first;
  }
  return {.batches = per_batch ? problem.batch : 1,
          .heads = field.reads_head ? problem.heads : 1,
          .first = first,
          .length = ceil_div(length, int64_t(kVector)) * kVector};
}

template <int kFields>
struct PreparedTables {
  int const* data[kFields];  // of index 0, batch 0 and head 0
  int64_t batch_strides[kFields];
  int64_t head_strides[kFields];

  PYFLASH_HOST_DEVICE int const* of(int field, int batch, int head) const {
    return data[field] + batch * batch_strides[field] + head * head_strides[field];
  }
};
template <>
struct PreparedTables<0> {};

template <class Variant>
PYFLASH_HOST_DEVICE constexpr int64_t prepared_size(ListedProblem const& problem) {
  int64_t size = 0;
  for (int i = 0; i < Variant::kPrepared; ++i) {
    size += prepared_shape(Variant::prepared_field(i), problem).size();
  }
  return size;
}

// The tables at `memory`, of 16-byte alignment.
template <class Variant>
PreparedTables<Variant::kPrepared> prepared_tables(ListedProblem const& problem,
                                                   int const* memory) {
  PreparedTables<Variant::kPrepared> tables{};
  if constexpr (Variant::kPrepared > 0) {
    for (int i = 0; i < Variant::kPrepared; ++i) {
      PreparedShape const shape = prepared_shape(Variant::prepared_field(i), problem);
      tables.data[i] = memory - shape.first;
      tables.batch_strides[i] = shape.batches > 1 ? shape.length * shape.heads : 0;
      tables.head_strides[i] = shape.heads > 1 ? shape.length : 0;
      memory += shape.size();
    }
  }
  return tables;
}

// Writes int `index` of the tables at `memory`. load: reads an int at an address.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class Variant, class Loader>
PYFLASH_HOST_DEVICE void write_prepared(typename Variant::Params const& captured,
                                        ListedProblem const& problem, int* memory, int64_t index,
                                        Loader const& load) {
  int64_t place = index;
  for (int i = 0; i < Variant::kPrepared; ++i) {
    PreparedShape const shape = prepared_shape(Variant::prepared_field(i), problem);
    if (place < shape.size()) {
      int const at = shape.first + int(place % shape.length);
      int const head = int(place / shape.length % shape.heads);
      int const batch = int(place / shape.length / shape.heads);
      Lengths const lengths{problem.q.rows_of(batch, load).length,
                            problem.k_rows(batch, load).length, 0, 0};
      memory[index] = Variant::prepare(i, captured, lengths, batch, head, at);
      return;
    }
    place -= shape.size();
  }
}

}  // namespace pyflash::variant
