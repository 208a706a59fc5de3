// How a backward kernel works: its tiles, stages and schedule, in the terms of the paper.
#pragma once

#include "cute_kernels/config.h"

// NOTE: outside namespace pyflash, as the forward's: config.h.
struct FlashBackwardSm90Config {
  DType dtype;
  int d_head;
  int B_r;          // queries of a block
  int B_c;          // keys that a CTA owns
  int n_consumers;  // warpgroups that compute, each for 64 keys
  int stages;       // blocks of Q and of dO in shared memory
  bool
      overlap;  // scores of a block beside dQ and dK of the one before; dK then reads dS from shared memory
};

// What a kernel can do beyond attention in which every query attends every key.
struct BackwardFeatures {
  bool right_window;  // causal too
  bool left_window;
};
