// FlashAttention forward (Dao 2023, algorithm 1) in fp32 on tiles that were converted from the
// 16-bit type once:
//   for each K/V block of which some row attends a part, last first:
//     S = Q K^T, capped, and what a variant makes of it;  m, l, P = online softmax(what of S each row attends), P rounded
//     O = diag(correction) O + P V
//   l += exp(sink - m), O / l, lse = m + ln(l)
// With dropout O takes what is kept of P, times 1 / (1 - p); l takes all.
#include "cute_kernels/host/cpu_forward.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "cute_kernels/host/cpu_matrix.h"
#include "cute_kernels/host/dropout.h"
#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/float16.h"
#include "cute_kernels/host/short_form.h"
#include "cute_kernels/ops.h"

namespace pyflash {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2e = 1.44269504088896340736f;
// The rules of configs that apply on the CPU: a block consists of whole mma tiles and is not larger than any kernel's,
// which bounds what a thread allocates.
constexpr int kBlockMultiple = 16;
constexpr int kMaxBlock = 256;

void check_block(AnyConfig const& config, char const* name, int rows) {
  require(rows % kBlockMultiple == 0 && rows <= kMaxBlock, "config '", short_form(config), "' has ",
          name, " = ", rows, ": expected a multiple of ", kBlockMultiple, " up to ", kMaxBlock);
}

// The tiles and the softmax state of one Q block.
template <class Element>
class QBlock {
 public:
  QBlock(Problem const& problem, CpuConfig const& config, CpuVariant const* variant)
      : params_(problem.params),
        kv_(problem.kv()),
        config_(config),
        raw_scale_(params_.softcap.cap > 0 ? params_.softcap.cap : params_.softmax_scale),
        scale_(variant ? 1.f : raw_scale_),
        B_r_(std::min(config.B_r, params_.q_sequences().longest)),
        B_c_(std::min(config.B_c, std::max(kv_.sequences.longest, 1))),
        Q_(B_r_, params_.d_head),
        Kt_(params_.d_head, B_c_),
        V_(B_c_, params_.d_head),
        S_(B_r_, B_c_),
        O_(B_r_, params_.d_head),
        row_max_(B_r_),
        row_sum_(B_r_) {
    if (variant != nullptr) {
      variant_.emplace(*variant);
    }
  }

  // first_row: in the sequence, which may have ended before.
  void forward(int batch, int head, int first_row) {
    Rows const q_rows = params_.q_sequences().rows_of(batch, HostLoader{});
    Rows const k_rows = kv_.rows_of(batch, HostLoader{});
    int const n_rows = std::min(B_r_, q_rows.length - first_row);
    if (n_rows <= 0) {
      return;
    }
    int const d_head = params_.d_head;
    int const head_kv = kv_.head_of(head, params_.heads);
    load_rows(Q_, 0, n_rows, d_head, [&](int r) {
      return params_.q_strides.at(static_cast<Element const*>(params_.q), batch, head,
                                  q_rows.begin + first_row + r);
    });
    std::optional<DropoutRow> dropped;
    if (params_.dropout.drops()) {
      dropped.emplace(params_.dropout, params_.heads, batch, head);
    }
    O_.clear();
    std::fill(row_max_.begin(), row_max_.end(), -kInfinity);
    std::fill(row_sum_.begin(), row_sum_.end(), 0.f);

    int const n_keys = k_rows.length;
    int const aligned = aligned_column(first_row, q_rows.length, n_keys);
    auto const keys = params_.mask().keys_from(aligned, n_keys);
    Interval const attended = keys.of_some(n_rows).from_0();
    Interval const blocks = attended.blocks_touched(B_c_);
    for (int block = blocks.end - 1; block >= blocks.begin; --block) {
      int const first_key = block * B_c_;
      int const n_columns = std::min(B_c_, n_keys - first_key);
      // NOTE: what no row attends may not be there, or be NaN.
      int const begin_loaded = std::max(attended.begin - first_key, 0);
      int const end_loaded = std::min(attended.end - first_key, n_columns);
      auto const load_K_and_V = [&]<class KvElement>(KvElement) {
        auto const rows_of = [&](KvTensor const& tensor) {
          return [&](int r) {
            KeyPlace const place = kv_.place_of(batch, k_rows, first_key + r, HostLoader{});
            return tensor.at<KvElement>(place.batch, head_kv, place.row);
          };
        };
        load_transposed(Kt_, begin_loaded, end_loaded, d_head, rows_of(kv_.k));
        load_rows(V_, begin_loaded, end_loaded, d_head, rows_of(kv_.v));
      };
      if (params_.has_fp8_kv()) {
        load_K_and_V(Float8E4M3{});
      } else {
        load_K_and_V(Element{});
      }
      S_.clear();
      accumulate(S_, Q_, Kt_);
      if (params_.has_fp8_kv()) {
        float const scale = params_.kv_scales.k[head_kv * params_.kv_scales.k_stride];
        std::for_each(S_.data.begin(), S_.data.end(), [=](float& s) { s *= scale; });
      }
      for (int r = 0; r < n_rows; ++r) {
        add_alibi(r, batch, head, aligned + r - first_key);
        int const begin = std::clamp(keys.begin(r) - first_key, 0, n_columns);
        Interval const columns{begin, std::clamp(keys.end(r) - first_key, begin, n_columns)};
        cap(r, columns);
        if (variant_) {
          apply_variant(r, columns,
                        {.batch = batch,
                         .head = head,
                         .query = first_row + r,
                         .lengths = {q_rows.length, n_keys, 0, 0},
                         .first_key = first_key + columns.begin});
        }
        update(r, columns);
        if (dropped) {
          drop(r, columns, dropped->kept(first_row + r, first_key + columns.begin, columns.size()));
        }
      }
      if (variant_) {
        drop_hidden_rows_of_V(n_rows, n_columns);
      }
      accumulate(O_, S_, V_);
    }
    float const kept_scale = dropped ? params_.dropout.factor : 1.f;
    float const v_scale =
        kept_scale *
        (params_.has_fp8_kv() ? params_.kv_scales.v[head_kv * params_.kv_scales.v_stride] : 1.f);
    store(batch, head, first_row, q_rows.begin, n_rows, v_scale);
  }

 private:
  // Turns the scores of a row into P, rounded, zero where it does not attend, and brings m, l and O up to date with them.
  void update(int r, Interval columns) {
    float const m = row_max_[r];
    if (config_.optimized_softmax) {
      // log2(e) folded into the scale, base 2, the maximum over unscaled scores.
      float const scale = scale_ * kLog2e;
      float const shift = shift_by(row_max_[r] = std::max(m, max_of(r, columns)));
      float const offset = shift * scale;
      rescale(r, std::exp2((m - shift) * scale));
      row_sum_[r] +=
          exponentials(r, columns, [=](float s) { return std::exp2(s * scale - offset); });
    } else {
      std::for_each(S_.row(r) + columns.begin, S_.row(r) + columns.end,
                    [=, this](float& s) { s *= scale_; });
      float const shift = shift_by(row_max_[r] = std::max(m, max_of(r, columns)));
      rescale(r, std::exp(m - shift));
      row_sum_[r] += exponentials(r, columns, [=](float s) { return std::exp(s - shift); });
    }
  }

  // kept: of each of the columns.
  void drop(int r, Interval columns, char const* kept) {
    for (int c = columns.begin; c < columns.end; ++c) {
      S_.row(r)[c] = kept[c - columns.begin] ? S_.row(r)[c] : 0.f;
    }
  }

  // aligned: the column that the row is aligned with.
  void add_alibi(int r, int64_t batch, int64_t head, int aligned) {
    if (params_.alibi_slopes.data != nullptr) {
      float const slope = number_of(params_.alibi_slopes, batch, head, 0) / scale_;
      for (int c = 0; c < S_.columns; ++c) {
        S_.row(r)[c] -= slope * std::abs(static_cast<float>(aligned - c));
      }
    }
  }

  // Leaves scores that the cap scales.
  void cap(int r, Interval columns) {
    if (params_.softcap.cap > 0) {
      float const scale = params_.softcap.inner;
      std::for_each(S_.row(r) + columns.begin, S_.row(r) + columns.end,
                    [=](float& s) { s = std::tanh(s * scale); });
    }
  }

  // Turns raw scores, once capped, into the variant's.
  void apply_variant(int r, Interval columns, ScoreRow const& row) {
    float* const scores = S_.row(r) + columns.begin;
    std::for_each(scores, scores + columns.size(), [this](float& s) { s *= raw_scale_; });
    variant_->apply(row, scores, columns.size());
  }

  // NOTE: what the variant hides from every row may be NaN, too.
  void drop_hidden_rows_of_V(int n_rows, int n_columns) {
    for (int c = 0; c < n_columns; ++c) {
      bool hidden = true;
      for (int r = 0; hidden && r < n_rows; ++r) {
        hidden = S_.row(r)[c] == 0.f;
      }
      if (hidden) {
        std::fill(V_.row(c), V_.row(c) + V_.columns, 0.f);
      }
    }
  }

  // Where all scores are -inf, 0 makes the exponentials 0 instead of NaN.
  static float shift_by(float row_max) { return row_max == -kInfinity ? 0.f : row_max; }

  float max_of(int r, Interval columns) {
    float const* const s = S_.row(r);
    float result = -kInfinity;
    for (int c = columns.begin; c < columns.end; ++c) {
      result = s[c] > result ? s[c] : result;
    }
    return result;
  }

  void rescale(int r, float correction) {
    row_sum_[r] *= correction;
    float* const o = O_.row(r);
    for (int c = 0; c < O_.columns; ++c) {
      o[c] *= correction;
    }
  }

  // Returns the sum of P before rounding.
  template <class Exponential>
  float exponentials(int r, Interval columns, Exponential&& exponential) {
    float* const s = S_.row(r);
    float sum = 0.f;
    std::fill(s, s + columns.begin, 0.f);
    for (int c = columns.begin; c < columns.end; ++c) {
      float const p = exponential(s[c]);
      sum += p;
      s[c] = static_cast<float>(Element(p));
    }
    std::fill(s + columns.end, s + S_.columns, 0.f);
    return sum;
  }

  // Finalises a row of O, and its lse.
  struct Final {
    float scale;
    float lse;
  };

  Final finalise(int r, float sink) const {
    float m = config_.optimized_softmax ? row_max_[r] * scale_ : row_max_[r];
    float l = row_sum_[r];
    float correction = 1.f;
    if (sink != -kInfinity) {
      m = l == 0.f ? -kInfinity : m;  // a row that attended nothing has no maximum
      float const new_max = std::max(m, sink);
      correction = std::exp(m - new_max);
      l = l * correction + std::exp(sink - new_max);
      m = new_max;
    }
    return {l == 0.f ? 0.f : correction / l, l == 0.f ? -kInfinity : m + std::log(l)};
  }

  // row: in the sequence. -inf: there is no sink.
  float sink_of(int64_t head, int64_t row) const {
    return params_.sinks.data == nullptr ? -kInfinity : number_of(params_.sinks, 0, head, row);
  }

  float number_of(PerHead const& numbers, int64_t batch, int64_t head, int64_t row) const {
    int64_t const i = numbers.strides.offset_of(batch, head, row);
    return numbers.is_fp32 ? static_cast<float const*>(numbers.data)[i]
                           : static_cast<float>(static_cast<Element const*>(numbers.data)[i]);
  }

  // first_row: in the sequence, which begins at sequence_row of the tensor.
  void store(int64_t batch, int64_t head, int64_t first_row, int64_t sequence_row, int n_rows,
             float v_scale) {
    TensorStrides const& strides = params_.o_strides;
    Element* const o =
        static_cast<Element*>(params_.o) + strides.offset_of(batch, head, sequence_row);
    float* const lse = params_.lse + batch * params_.lse_strides.batch +
                       head * params_.lse_strides.head + sequence_row;
    for (int r = 0; r < n_rows; ++r) {
      int64_t const row = first_row + r;
      Final const final = finalise(r, sink_of(head, row));
      lse[row] = final.lse;
      std::transform(O_.row(r), O_.row(r) + params_.d_head, o + row * strides.row,
                     [=](float value) { return Element(value * final.scale * v_scale); });
    }
  }

  Forward::Params const& params_;
  KvSource const kv_;
  CpuConfig const& config_;
  float const raw_scale_;  // of S, once capped
  float const scale_;      // of S as the softmax gets it
  int const B_r_;          // no larger than the problem, as B_c
  int const B_c_;
  Tile Q_;                      // (B_r,d_head)
  Tile Kt_;                     // (d_head,B_c)
  Tile V_;                      // (B_c,d_head)
  Tile S_;                      // (B_r,B_c), then P
  Tile O_;                      // (B_r,d_head)
  std::vector<float> row_max_;  // of S; scaled unless optimized_softmax
  std::vector<float> row_sum_;
  std::optional<VariantRunner> variant_;
};

int64_t n_row_blocks(Problem const& problem, CpuConfig const& config) {
  return problem.params.q_sequences().most_blocks(config.B_r);
}

template <class Element>
void forward_tasks(Problem const& problem, CpuConfig const& config, CpuVariant const* variant,
                   int64_t begin, int64_t end) {
  QBlock<Element> q_block(problem, config, variant);
  int const heads = problem.params.heads;
  int64_t const n_blocks = n_row_blocks(problem, config);
  for (int64_t task = begin; task < end; ++task) {
    int64_t const head_and_batch = task / n_blocks;
    q_block.forward(static_cast<int>(head_and_batch / heads),
                    static_cast<int>(head_and_batch % heads),
                    static_cast<int>(task % n_blocks * config.B_r));
  }
}

}  // namespace

CpuConfig cpu_config(ConfigOf<Forward> const& config) {
  return std::visit(
      [&](auto const& c) {
        check_block(any_config(config), "B_r", c.B_r);
        check_block(any_config(config), "B_c", c.B_c);
        return CpuConfig{c.dtype, c.B_r, c.B_c, optimized_softmax(c)};
      },
      config);
}

int64_t n_cpu_tasks(Problem const& problem, CpuConfig const& config) {
  return n_row_blocks(problem, config) * problem.params.heads * problem.params.batch;
}

void forward_cpu(Problem const& problem, CpuConfig const& config, CpuVariant const* variant,
                 int64_t begin, int64_t end) {
  auto const run = config.dtype == DType::FP16 ? forward_tasks<Float16> : forward_tasks<BFloat16>;
  run(problem, config, variant, begin, end);
}

}  // namespace pyflash
