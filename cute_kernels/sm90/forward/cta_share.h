// A CTA's equal share of the keys, as it lies in shared memory.
#pragma once

#include "cute_kernels/common/shares.h"

namespace pyflash::sm90 {

struct CtaShare {
  Share share;
  // Where it lies among all units.
  struct alignas(16) Place {
    int begin;
    int size;             // of a share
    int n_units_of_tile;  // of the tile that it begins in
    int unused;
  } place;
};

}  // namespace pyflash::sm90
