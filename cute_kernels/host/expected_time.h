// How long a kernel takes for a problem, from what a few things cost it:
//   time = launch + (busy^3 + memory^3 + l2^3)^(1/3) + merge
//   busy    the tiles and steps of the slot that is busy longest (grid.h), as many times slower as CTAs share an SM, and the
//           part of `memory` that nothing hides
//   memory  the bytes of Q, O, K and V, over `memory`; K and V again for each tile where a section of heads exceeds L2
//   l2      what all tiles load and store, over `l2`
//   merge   of splits: once, for each, and for their partial results where no cluster of CTAs merges them
#pragma once

#include "cute_kernels/host/grid.h"
#include "cute_kernels/params.h"

namespace pyflash {

// In microseconds, where nothing else is said.
struct Costs {
  double launch;  // once
  double tile;    // a CTA beside its steps
  double step;    // a CTA over a block of keys, alone on its SM
  double share;   // of an SM that a CTA takes: c CTAs on one SM are max(1, c * share) times slower
  double rows;    // the part of a step that warpgroups without keys to attend spare
  double mask;    // steps that a tile takes more under a right window
  double capped;  // a step with a softcap, in steps
  double memory;  // terabytes per second
  double l2;      // terabytes per second
  double cold;    // the part of the time for memory that is not hidden
  double merge;   // splits, once
  double split;   // each of them
};

inline constexpr double Costs::* kCosts[] = {
    &Costs::launch, &Costs::tile,   &Costs::step, &Costs::share, &Costs::rows,  &Costs::mask,
    &Costs::capped, &Costs::memory, &Costs::l2,   &Costs::cold,  &Costs::merge, &Costs::split};

// In microseconds.
double expected_time(GridShape const& shape, Costs const& costs, ForwardParams const& params,
                     int n_sms, int num_splits);

}  // namespace pyflash
