// The places where a kernel touches memory, by tensor and path (global, shared, registers), and those where it issues MMAs
// or works on their registers; reports are given per site.
#pragma once

namespace pyflash::device {

enum class Site {
  Q_g2s,
  K_g2s,
  V_g2s,
  Q_s2r,
  K_s2r,
  V_s2r,
  O_r2s,
  O_s2g,
  O_r2g,
  lse_r2g,
  part_r2s,  // of a tile whose splits a cluster merges
  part_s2r,
  sinks_g2r,
  slopes_g2r,  // of ALiBi
  dropout_g2r,
  QK_g2r,  // scores that are computed once more
  V_r2s,
  QK,
  PV,
  softmax,
  O_rescale,
  P_convert,
  dO_g2s,  // of a backward, as are those that follow
  lse_s2r,
  dP,
  dV,
  dK,
  dQ,
  dS,
  dS_r2s,
  dQ_r2s,
  dQ_s2g,
  rows_r2s,  // of dQ, dK and dV on their way out
  rows_s2g,
  tail_r2s,  // zeros in place of rows of the next sequence
  lse_g2s,   // with delta
  dO_s2r,
  P_r2s,
  P_s2r,
  dS_s2r,
  captured_r2g,  // gradients of what a variant captures
  dKV_r2g        // to sums of dK and dV
};

inline constexpr char const* kSiteNames[] = {
    "Q_g2s",       "K_g2s",  "V_g2s",   "Q_s2r",    "K_s2r",    "V_s2r",        "O_r2s",
    "O_s2g",       "O_r2g",  "lse_r2g", "part_r2s", "part_s2r", "sinks_g2r",    "slopes_g2r",
    "dropout_g2r", "QK_g2r", "V_r2s",   "QK",       "PV",       "softmax",      "O_rescale",
    "P_convert",   "dO_g2s", "lse_s2r", "dP",       "dV",       "dK",           "dQ",
    "dS",          "dS_r2s", "dQ_r2s",  "dQ_s2g",   "rows_r2s", "rows_s2g",     "tail_r2s",
    "lse_g2s",     "dO_s2r", "P_r2s",   "P_s2r",    "dS_s2r",   "captured_r2g", "dKV_r2g"};
static_assert(sizeof(kSiteNames) == sizeof(char const*) * (static_cast<int>(Site::dKV_r2g) + 1));

}  // namespace pyflash::device
