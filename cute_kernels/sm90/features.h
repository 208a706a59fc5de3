// What a problem needs beyond attention in which every query attends every key. The combinations that are built are
// compiled separately, so that masking cannot slow the unmasked kernel.
#pragma once

#include <compare>

struct Features {
  bool right_window = false;         // causal, and windows to the right
  bool left_window = false;          // windows to the left
  bool predicated_head_dim = false;  // d_head of the problem below that of the config
  bool softcap = false;
  bool sinks = false;  // a logit per head that enters the softmax denominator alone

  friend auto operator<=>(Features const&, Features const&) = default;
};
