// The configuration key, field for field pyflash.config.FlashForwardKernelConfig, and the class-type template argument
// of every kernel. New fields go at the end, each with a default.
#pragma once

#include <compare>

// NOTE: outside namespace pyflash because nvcc 13.0 writes a host stub that does not compile for a kernel whose
// class-type template argument lives in a namespace.

// c10::ScalarType ids.
enum class DType : int { FP16 = 5, BF16 = 15 };

struct FlashForwardKernelConfig {
  DType dtype;
  int d_head;
  int B_r;
  int B_c;
  int n_warps;
  bool async_copy;
  bool eager_load_blocks;
  bool swizzled;
  int Q_mma_load_K_tiles;
  int K_mma_load_K_tiles;
  int V_mma_load_K_tiles;
  bool mma_double_buffer_loads;
  bool optimized_softmax;
  int kv_stages = 1;

  friend auto operator<=>(FlashForwardKernelConfig const&,
                          FlashForwardKernelConfig const&) = default;
};
