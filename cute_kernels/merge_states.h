// Attention over all keys from attention over parts of them, in 16 bits: what the kernel of merge_states.cu and the CPU do for each
// eight columns of a row. A kernel library exports pyflash_merge_states.
//   lse = ln(sum_i exp(lse_i)),  O = sum_i exp(lse_i - lse) O_i
#pragma once

#include <cmath>
#include <cstdint>

#include "cute_kernels/common/integers.h"
#include "cute_kernels/config.h"

#if defined(__CUDACC__)
#define PYFLASH_UNROLL _Pragma("unroll")
#else
#define PYFLASH_UNROLL
#endif

namespace pyflash {

// What is loaded and stored at once.
template <class Element>
struct alignas(16) MergedVector {
  Element elements[8];
};

struct MergeParams {
  static constexpr int kMostStates = 8;

  struct Strides {  // of O in vectors, of lse in elements
    int64_t batch;
    int64_t row;
    int64_t head;
  };
  struct State {
    void const* o;
    float const* lse;
    Strides of_o;
    Strides of_lse;
  };

  State states[kMostStates];
  int n_states;
  void* o;
  float* lse;
  Strides of_o;
  Strides of_lse;
  unsigned rows;
  unsigned heads;
  unsigned vectors;  // of a row of a head
  unsigned n;        // vectors in all
  DType dtype;

  // Merges the i-th vector.
  template <class Element>
  PYFLASH_HOST_DEVICE void merge(unsigned i) const {
    using Vector = MergedVector<Element>;
    constexpr int kElements = sizeof(Vector) / sizeof(Element);
    unsigned const of_head = i / vectors, vector = i % vectors;
    unsigned const of_row = of_head / heads, head = of_head % heads;
    unsigned const batch = of_row / rows, row = of_row % rows;
    auto const place = [&](Strides const& strides) {
      return batch * strides.batch + row * strides.row + head * strides.head;
    };
    // NOTE: all loads before anything waits for one. What a part without keys holds is not used.
    float lses[kMostStates];
    Vector values[kMostStates];
    PYFLASH_UNROLL
    for (int s = 0; s < kMostStates; ++s) {
      lses[s] = -INFINITY;
      if (s < n_states) {
        lses[s] = states[s].lse[place(states[s].of_lse)];
        values[s] = static_cast<Vector const*>(states[s].o)[place(states[s].of_o) + vector];
      }
    }
    float largest = -INFINITY;
    PYFLASH_UNROLL
    for (int s = 0; s < kMostStates; ++s) {
      largest = fmaxf(largest, lses[s]);
    }
    float const shift = largest == -INFINITY ? 0.f : largest;  // so that -inf - shift is no NaN
    float sum = 0.f;
    float merged[kElements] = {};
    PYFLASH_UNROLL
    for (int s = 0; s < kMostStates; ++s) {
      if (s < n_states && lses[s] != -INFINITY) {
        float const weight = expf(lses[s] - shift);
        sum += weight;
        PYFLASH_UNROLL
        for (int j = 0; j < kElements; ++j) {
          merged[j] += weight * float(values[s].elements[j]);
        }
      }
    }
    float const inverse = sum == 0.f ? 0.f : 1.f / sum;
    Vector result;
    PYFLASH_UNROLL
    for (int j = 0; j < kElements; ++j) {
      result.elements[j] = Element(merged[j] * inverse);
    }
    static_cast<Vector*>(o)[place(of_o) + vector] = result;
    if (vector == 0) {
      lse[place(of_lse)] = largest + logf(sum);
    }
  }
};

}  // namespace pyflash

#undef PYFLASH_UNROLL

// Runs on `stream` (a cudaStream_t) of the current device, without synchronising; returns a cudaError_t.
extern "C" __attribute__((visibility("default"))) int pyflash_merge_states(
    pyflash::MergeParams const* params, void* stream);
