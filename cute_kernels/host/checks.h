// What the ops accept of tensors. A refusal names the argument, what was expected and what came.
#pragma once

#include "cute_kernels/config.h"
#include "cute_kernels/host/call.h"
#include "cute_kernels/params.h"

namespace pyflash {

enum Axis { kBatch, kRow, kHead, kColumn, kNAxes };

// The dimensions of q, k and v.
struct DimensionNames {
  int rank;  // the last ones of kNAxes
  char const* dims;
  char const* axes[kNAxes];
};
inline constexpr DimensionNames kPaddedDims{
    4, "(batch, seqlen, heads, d_head)", {"batch", "seqlen", "heads", "d_head"}};
inline constexpr DimensionNames kPackedDims{
    3, "(total, heads, d_head)", {"", "total", "heads", "d_head"}};
inline constexpr DimensionNames kPageDims{
    4, "(num_pages, page_size, heads, d_head)", {"num_pages", "page_size", "heads", "d_head"}};

// q, k or v, with an axis for each of kNAxes: packed sequences are one batch.
struct Input {
  TensorView const& view;
  DimensionNames const& dims;
  int64_t extents[kNAxes];
  int64_t strides[kNAxes];

  // Refuses a tensor of another rank than the dimensions'.
  Input(TensorView const& view, DimensionNames const& dims);

  TensorStrides tensor_strides() const {
    return {.batch = strides[kBatch], .row = strides[kRow], .head = strides[kHead]};
  }
};

// Checks every tensor of the call.
void check_devices(Call const& call);
// Checks q, k and v.
DType check_dtypes(Call const& call);
// Pages are of no batch.
void check_shapes(Input const& q, Input const& k, Input const& v, int64_t max_d_head);
void check_batch_times_heads(int64_t batch, Input const& q);
void check_memory(Input const& input);

// Returns the number of sequences. The values of cu_seqlens are checked on the CPU only: reading them on a GPU would
// wait for the stream.
int64_t check_packing(Packing const& packing, Input const& q, Input const& k);
// The same of packed queries on pages.
int64_t check_packed_queries(PackedQueries const& packed, Input const& q);

// Checks the scales of caches in e4m3, and what such caches need of d_head.
void check_kv_scales(Paging const& paging, Input const& k);

// Checks the block table and the lengths of `batch` sequences.
void check_pages(Paging const& paging, int64_t batch, Input const& k);

// Checks every option that is a tensor with a number for each head.
void check_per_head_options(Options const& options, int64_t batch, Input const& q);

}  // namespace pyflash
