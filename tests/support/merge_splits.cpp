// Runs the kernel of merge_splits.cu on the CPU, a thread of the host for each of a CTA's. A line of input is a problem:
//   is_fixed num_splits batch heads seqlen d_head has_sinks, lse of each split, O of each split, sinks
// A line of output has the bits of O, in bf16, and those of lse.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <barrier>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kWarp = 32, kCta = 256;

std::barrier<> cta_barrier(kCta);
struct Warp {
  std::barrier<> barrier{kWarp};
  float values[kWarp];
};
Warp warps[kCta / kWarp];
thread_local struct {
  unsigned x, y;
} threadIdx, blockIdx;

// The number of an error in the kernel, or 0.
int const planted_error = [] {
  char const* const number = std::getenv("PLANTED");
  return number != nullptr ? std::atoi(number) : 0;
}();

void __syncthreads() { cta_barrier.arrive_and_wait(); }

float __shfl_xor_sync(unsigned, float value, int lanes) {
  Warp& warp = warps[threadIdx.x / kWarp];
  warp.values[threadIdx.x % kWarp] = value;
  warp.barrier.arrive_and_wait();
  float const other = warp.values[(threadIdx.x % kWarp) ^ lanes];
  warp.barrier.arrive_and_wait();
  return other;
}

bool __any_sync(unsigned all, bool value) {
  float any = value;
  for (int lanes = 1; lanes < kWarp; lanes *= 2) {
    any = std::fmax(any, __shfl_xor_sync(all, any, lanes));
  }
  return any > 0;
}

template <class Kernel, class Params>
cudaError_t launch_on_host(cudaLaunchConfig_t const* launch, Kernel kernel, Params const& params) {
  std::vector<std::jthread> threads;
  for (unsigned thread = 0; thread < launch->blockDim.x; ++thread) {
    threads.emplace_back([=, &params] {
      threadIdx = {thread, 0};
      for (unsigned y = 0; y < launch->gridDim.y; ++y) {
        for (unsigned x = 0; x < launch->gridDim.x; ++x) {
          blockIdx = {x, y};
          kernel(params);
          cta_barrier.arrive_and_wait();  // the next CTA has the same shared memory
        }
      }
    });
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  return *value = 8, cudaSuccess;
}

#define __expf(x) std::exp(x)
#define __logf(x) std::log(x)
#define PLANTED(number) (planted_error == (number))
#undef __shared__
#undef __launch_bounds__
#define __shared__ static
#define __launch_bounds__(n)
#define cudaLaunchKernelEx launch_on_host
#include "cute_kernels/merge_splits.cu"

using namespace pyflash;

namespace {

// NOTE: streams do not read nan and inf.
std::vector<float> read(size_t n) {
  std::vector<float> values(n);
  std::string word;
  for (float& value : values) {
    std::cin >> word;
    value = std::strtof(word.c_str(), nullptr);  // denormals, too
  }
  return values;
}

}  // namespace

int main() {
  bool is_fixed = false, has_sinks = false;
  ListedForwardParams params{};
  int seqlen = 0;
  while (std::cin >> is_fixed >> params.num_splits >> params.batch >> params.heads >> seqlen >>
         params.d_head >> has_sinks) {
    params.has_fixed_splits = is_fixed;
    params.cluster = 1;
    params.set_q_sequences(Sequences::padded(seqlen));
    int64_t const of_head = seqlen, n_rows = int64_t(params.batch) * params.heads * seqlen;
    params.lse_strides = {.batch = params.heads * of_head, .head = of_head, .split = n_rows};
    params.o_strides = {.batch = params.heads * of_head * params.d_head,
                        .row = int64_t(params.heads) * params.d_head,
                        .head = params.d_head};
    auto lse_partial = read(params.num_splits * n_rows);
    auto o_partial = read(params.num_splits * n_rows * params.d_head);
    auto const sinks = read(has_sinks ? params.heads : 0);
    params.lse_partial = lse_partial.data();
    params.o_partial = o_partial.data();
    params.sinks = {};
    if (has_sinks) {
      params.sinks.data = sinks.data();
      params.sinks.is_fp32 = true;
      params.sinks.strides = {.batch = 0, .row = 0, .head = 1};
    }
    std::vector<uint16_t> o(n_rows * params.d_head, 0x7fff);
    std::vector<float> lse(n_rows, NAN);
    params.o = o.data();
    params.lse = lse.data();
    if (merge_splits(params, DType::BF16, nullptr) != 0) {
      return 1;
    }
    for (uint16_t const bits : o) {
      std::cout << bits << ' ';
    }
    for (float const value : lse) {
      std::cout << std::bit_cast<uint32_t>(value) << ' ';
    }
    std::cout << '\n';
  }
}
