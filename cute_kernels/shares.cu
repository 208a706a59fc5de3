// Makes the list of equal shares of the keys before the forward pass, by one CTA (common/shares.h), and merges the parts of tiles
// that the shares left after it:
//   lse = ln(sum_p exp(lse_p) + exp(sink)),  O = sum_p exp(lse_p - lse) O_p
// The order of summation follows from the number of a tile's parts and d_head, so that the result is the same every time.
#include <cuda_runtime_api.h>

#include "cute_kernels/common/shares.h"
#include "cute_kernels/forward.h"
#include "cute_kernels/merge_partial.cuh"
#include "cute_kernels/programmatic_launch.h"

namespace pyflash {
namespace {

constexpr int kListThreads = 1024;  // at most
constexpr int kThreads = 256;
constexpr int kChunk = 8;  // parts that a thread has in flight

struct CtaThreads {
  __device__ int index() const { return static_cast<int>(threadIdx.x); }
  __device__ int count() const { return static_cast<int>(blockDim.x); }
  __device__ void sync() const { __syncthreads(); }
};

struct GlobalLoader {
  __device__ int operator()(int const* address) const { return *address; }
};

__global__ void __launch_bounds__(kListThreads)
    list_shares_kernel(__grid_constant__ ShareListing const listing, int* list) {
  __shared__ ShareListStorage shared;
#if __CUDA_ARCH__ >= 900
  // As in list_tiles.cu.
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
  write_shares(listing, list, shared, CtaThreads{}, GlobalLoader{});
}

// How a CTA's threads share the rows, parts and columns of a tile: kThreads is the product of the three.
struct Tiling {
  // A CTA for each row of a tile would mostly find nothing. Beside another kernel tiles are of few parts.
  static constexpr int kMostGroups = 4, kMostGroupsBeside = 2;

  int columns;  // threads along a row
  int groups;   // of parts: part p is of group p % groups
  int rows;

  __host__ __device__ explicit Tiling(Forward::Params const& params)
      : columns(columns_of(params.d_head)),
        groups(smaller(params.runs_beside ? kMostGroupsBeside : kMostGroups, kThreads / columns)),
        rows(kThreads / columns / groups) {}
};

// What some parts come to, as if they were all.
struct Merged {
  float maximum = -INFINITY;  // of their lse
  float sum = 0;              // of exp(lse - maximum)
  float4 o{};                 // sum of exp(lse - maximum) O

  // NOTE: so that -inf - shift is no NaN.
  __device__ float shift() const { return maximum == -INFINITY ? 0.f : maximum; }
  __device__ void raise(float other) {
    if (other > maximum) {
      float const scale = __expf(maximum - other);
      maximum = other;
      sum *= scale;
      o = {o.x * scale, o.y * scale, o.z * scale, o.w * scale};
    }
  }
  __device__ void add(float lse, float4 const& values) {
    raise(lse);
    float const weight = __expf(lse - shift());
    sum += weight;
    pyflash::add(o, weight, values);
  }
  __device__ void add(Merged const& other) {
    raise(other.maximum);
    float const weight = __expf(other.maximum - shift());
    sum = fmaf(weight, other.sum, sum);
    pyflash::add(o, weight, other.o);
  }
};

// Rows of a tile from first_row on. merged: (groups,rows,columns). Every thread calls it.
template <class Element>
__device__ void merge_rows(Forward::Params const& params, Tiling const& tiling, Parts const& parts,
                           Rows const& q_rows, int first_row, Merged* merged) {
  int const tidx = static_cast<int>(threadIdx.x);
  int const column = tidx % tiling.columns * kVector;
  int const group = tidx / tiling.columns / tiling.rows;
  int const row = first_row + tidx / tiling.columns % tiling.rows;
  int const n_rows = params.rows_of_part();
  int const heads_of_tile = params.group_of_share();
  int const query = row / heads_of_tile;
  bool const exists = row < n_rows && query < q_rows.length && column < params.d_head;
  RowCoord const coord{params.q_sequences().tensor_batch(parts.sequence),
                       parts.head * heads_of_tile + row % heads_of_tile, q_rows.begin + query};
  float const sink = exists ? load_sink<Element>(params, coord) : -INFINITY;
  Merged mine;
  // NOTE: parts have rows that do not exist, so that no load of them waits for lengths.
  bool const is_in_part = row < n_rows && column < params.d_head;
  for (int part = group; is_in_part && part < parts.count(); part += kChunk * tiling.groups) {
    float lse[kChunk];
    float4 values[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      int const number = part + i * tiling.groups;
      bool const is_there = number < parts.count();
      int64_t const place = int64_t(parts.place(is_there ? number : part)) * n_rows + row;
      lse[i] = is_there ? params.lse_partial[place] : -INFINITY;
      values[i] =
          *reinterpret_cast<float4 const*>(params.o_partial + place * params.d_head + column);
    }
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      mine.add(lse[i], values[i]);
    }
  }
  merged[tidx] = mine;
  __syncthreads();
  if (group != 0 || !exists) {
    return;
  }
  for (int i = 1; i < tiling.groups; ++i) {
    mine.add(merged[tidx + i * tiling.rows * tiling.columns]);
  }
  mine.add(sink, float4{});
  float const inverse = mine.sum == 0.f ? 0.f : 1.f / mine.sum;
  Element* const o = static_cast<Element*>(params.o) + offset_in_o(params, coord) + column;
  *reinterpret_cast<uint2*>(o) = uint2{pack2(mine.o.x * inverse, mine.o.y * inverse, Element{}),
                                       pack2(mine.o.z * inverse, mine.o.w * inverse, Element{})};
  if (column == 0) {
    params.lse[coord.batch * params.lse_strides.batch + coord.head * params.lse_strides.head +
               coord.row] = mine.maximum + __logf(mine.sum);
  }
}

// CTAs (x, y) merge the rows of the tile that is cut first where share x begins, tiling.rows at a time.
template <class Element>
__global__ void __launch_bounds__(kThreads)
    merge_shares_kernel(__grid_constant__ Forward::Params const params) {
  __shared__ Merged merged[kThreads];  // (groups,rows,columns)
  Tiling const tiling(params);
  // NOTE: the list and the lengths are there since before the kernel that this one follows has begun.
  Parts const parts =
      parts_of(params.share_listing(), reinterpret_cast<int const*>(params.share_list),
               static_cast<int>(blockIdx.x));
  if (parts.count() == 0 && blockIdx.x > 0) {
    return;
  }
  Rows const q_rows = params.q_sequences().rows_of(parts.sequence, GlobalLoader{});
#if __CUDA_ARCH__ >= 900
  // Launched while the parts are computed. The first share begins no part, and waits, so that this kernel ends after that one
  // always.
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // and the next kernel while they are merged
#endif
  if (parts.count() == 0) {
    return;
  }
  int const n_rows = smaller(q_rows.length * params.group_of_share(), params.rows_of_part());
  int first_row = static_cast<int>(blockIdx.y) * tiling.rows;
  // NOTE: the first rows whether they exist or not, so that no load of them waits for lengths.
  do {
    merge_rows<Element>(params, tiling, parts, q_rows, first_row, merged);
    first_row += static_cast<int>(gridDim.y) * tiling.rows;
    __syncthreads();  // `merged` is free
  } while (first_row < n_rows);
}

// Launches a kernel behind the one before it in the stream, early where the device's code waits.
template <class... Parameters, class... Arguments>
int launch(void (*kernel)(Parameters...), dim3 const& grid, int n_threads, void* stream,
           Arguments&&... arguments) {
  bool waits = false;
  if (cudaError_t const error = waits_for_previous_kernel(waits); error != cudaSuccess) {
    return error;
  }
  cudaLaunchAttribute attribute = programmatic_launch();
  cudaLaunchConfig_t launch{};
  launch.gridDim = grid;
  launch.blockDim = dim3(n_threads);
  launch.stream = static_cast<cudaStream_t>(stream);
  launch.attrs = &attribute;
  launch.numAttrs = waits && supports_programmatic_launch() ? 1 : 0;
  return cudaLaunchKernelEx(&launch, kernel, Parameters(arguments)...);
}

}  // namespace

int list_shares(Forward::Params const& params, DType, void* stream) {
  // A thread for each sequence and each share: barriers of more take longer.
  int const n = larger(params.batch, params.n_shares);
  int const n_threads = smaller(ceil_div(n, 32) * 32, kListThreads);
  return launch(list_shares_kernel, dim3(1), n_threads, stream, params.share_listing(),
                reinterpret_cast<int*>(params.share_list));
}

int merge_shares(Forward::Params const& params, DType dtype, void* stream) {
  auto const kernel =
      dtype == DType::FP16 ? merge_shares_kernel<__half> : merge_shares_kernel<__nv_bfloat16>;
  if (params.rows_of_part() == 0) {
    return cudaSuccess;
  }
  // Beside another kernel, whose sequences have more rows, most of a tile's are not there, but for those of one query.
  int const n_rows = params.runs_beside ? params.group_of_share() : params.rows_of_part();
  dim3 const grid(params.n_shares, ceil_div(n_rows, Tiling(params).rows));
  return launch(kernel, grid, kThreads, stream, params);
}

}  // namespace pyflash
