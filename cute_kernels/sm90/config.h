// The SM90 forward family's configuration key, and the class-type template argument of its kernels. New fields go at the
// end, each with a default.
#pragma once

#include <compare>

#include "cute_kernels/config.h"

// NOTE: outside namespace pyflash because nvcc 13.0 writes a host stub that does not compile for a kernel whose
// class-type template argument lives in a namespace.

struct FlashForwardSm90Config {
  DType dtype;
  int d_head;       // a multiple of 64
  int B_r;          // Q rows per CTA: 64 per consumer warpgroup
  int B_c;          // K/V rows per block: a multiple of 16
  int n_consumers;  // consumer warpgroups
  int stages;       // blocks of K, and of V, in shared memory
  bool overlap;     // QK^T of the next block runs during the softmax of this one
  bool pingpong;    // consumer warpgroups take turns on the tensor cores
  bool
      persistent;  // a CTA per SM takes tiles in turn; the next tile's QK^T overlaps this one's last PV
  int exp2_fma_percent;    // exponentials computed by a polynomial on the FMA units
  bool rescale_threshold;  // O is rescaled where the maximum grows by more than 2^8 only
  bool pack_gqa;           // the query heads of a K/V head share Q tiles
  int ctas_per_sm = 1;

  friend auto operator<=>(FlashForwardSm90Config const&, FlashForwardSm90Config const&) = default;
};
