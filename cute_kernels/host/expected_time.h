// The expected time of a kernel for a problem, from a few costs:
//   time = launch + busy + megabytes * megabyte + merge
//   busy    waves of the mean tile, each as many times slower as CTAs share an SM, and no less than the longest tile (grid.h)
//   merge   of splits: once, for each, and for partial results that another kernel merges
// The cost of a megabyte includes, by the fit, how much of the memory traffic the work hides.
#pragma once

#include "cute_kernels/host/grid.h"

namespace pyflash {

// In microseconds, where nothing else is said.
struct Costs {
  double launch;  // once
  double tile;    // a CTA beside its steps
  double step;    // a CTA over a block of keys, alone on its SM
  double share;   // of an SM that a CTA takes: c CTAs on one SM are max(1, c * share) times slower
  double rows;    // the part of a step that warpgroups without keys to attend spare
  double mask;    // further steps of a tile under a right window
  double capped;  // a step with a softcap, in steps
  double megabyte;  // of Q, K, V and O, beside what the work hides
  double merge;     // splits, once
  double split;     // each of them
  double partial;   // a megabyte of partial results, written and read
};

inline constexpr double Costs::* kCosts[] = {
    &Costs::launch, &Costs::tile,     &Costs::step,  &Costs::share, &Costs::rows,   &Costs::mask,
    &Costs::capped, &Costs::megabyte, &Costs::merge, &Costs::split, &Costs::partial};

// In microseconds.
double expected_time(GridShape const& shape, Costs const& costs, Problem const& problem, int n_sms,
                     int num_splits);

}  // namespace pyflash
