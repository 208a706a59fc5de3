// ALiBi (Press et al. 2021), as a kernel adds it: a score loses slope * |aligned key - key|. Raw scores are multiplied by
// softmax_scale later, slopes are not.
#pragma once

#include <cmath>

#include "cute_kernels/per_head.h"
#include "cute_kernels/row_softmax.h"

namespace pyflash {

// The slope of a row of a head of a sequence, for raw scores. inverse_scale_log2: 1 / (softmax_scale * log2(e)).
template <class Element>
CUTE_DEVICE float load_slope(PerHead const& slopes, float inverse_scale_log2, int batch, int head) {
  device::at(device::Site::slopes_g2r);
  float const slope = load_per_head<Element>(slopes, batch, head, /*row=*/0);
  return slope * (kLog2e * inverse_scale_log2);
}

// scores: those of row r. distance: from the key that the row is aligned with to the thread's first column. column_of: the
// columns, counted from the first.
template <class Scores, class ColumnOf>
CUTE_DEVICE void add_alibi(Scores& scores, int r, float slope, int distance,
                           ColumnOf const& column_of) {
  float const first = static_cast<float>(distance);
  CUTE_UNROLL
  for (int c = 0; c < cute::size<1>(scores); ++c) {
    scores(r, c) = fmaf(-slope, fabsf(first - static_cast<float>(column_of(c))), scores(r, c));
  }
}

}  // namespace pyflash
