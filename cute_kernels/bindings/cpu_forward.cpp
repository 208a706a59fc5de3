// FlashAttention forward (Dao 2023, algorithm 1) in fp32 on tiles that were converted from the
// 16-bit type once:
//   for each K/V block, last first:
//     S = Q K^T;  m, l, P = online softmax(S), P rounded;  O = diag(correction) O + P V
//   O / l, lse = m + ln(l)
#include "cute_kernels/bindings/cpu_forward.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

namespace pyflash {
namespace {

// Compiled for each of these, chosen when the library is loaded.
#if defined(__x86_64__) && defined(__gnu_linux__)
#define PYFLASH_CPU_CLONES \
  __attribute__((target_clones("default", "arch=haswell", "arch=skylake-avx512")))
#else
#define PYFLASH_CPU_CLONES
#endif

constexpr int kLanes = 16;
typedef float Vector __attribute__((vector_size(kLanes * sizeof(float)), aligned(sizeof(float))));
constexpr int kGemmRows = 4;  // with one Vector of columns: accumulators that stay in registers

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2e = 1.44269504088896340736f;

int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// C += A B; A: (rows,depth), B: (depth,columns), C: (rows,columns), all row-major; rows a multiple
// of kGemmRows, columns of kLanes.
PYFLASH_CPU_CLONES void gemm(float* C, float const* A, float const* B, int rows, int columns,
                             int depth) {
  for (int row = 0; row < rows; row += kGemmRows) {
    for (int column = 0; column < columns; column += kLanes) {
      Vector acc[kGemmRows];
      for (int i = 0; i < kGemmRows; ++i) {
        acc[i] = reinterpret_cast<Vector const&>(C[(row + i) * columns + column]);
      }
      for (int k = 0; k < depth; ++k) {
        Vector const b = reinterpret_cast<Vector const&>(B[k * columns + column]);
        for (int i = 0; i < kGemmRows; ++i) {
          acc[i] += A[(row + i) * depth + k] * b;
        }
      }
      for (int i = 0; i < kGemmRows; ++i) {
        reinterpret_cast<Vector&>(C[(row + i) * columns + column]) = acc[i];
      }
    }
  }
}

// A row-major fp32 matrix that is a whole number of GEMM tiles; what the problem does not fill is
// zero.
struct Tile {
  int rows;
  int columns;
  std::vector<float> data;

  Tile(int min_rows, int min_columns)
      : rows(round_up(min_rows, kLanes)),
        columns(round_up(min_columns, kLanes)),
        data(size_t(rows) * columns) {}

  float* row(int r) { return data.data() + size_t(r) * columns; }
  void clear() { std::fill(data.begin(), data.end(), 0.f); }
};

void accumulate(Tile& C, Tile const& A, Tile const& B) {
  gemm(C.data.data(), A.data.data(), B.data.data(), C.rows, C.columns, A.columns);
}

// One head of one batch of q, k or v, (rows,d_head).
template <class Element>
struct HeadMatrix {
  Element const* base;
  int64_t row_stride;

  HeadMatrix(void const* tensor, TensorStrides const& strides, int batch, int head)
      : base(static_cast<Element const*>(tensor) + batch * strides.batch + head * strides.head),
        row_stride(strides.row) {}

  void load(Tile& tile, int first_row, int n_rows, int n_columns) const {
    tile.clear();
    for (int r = 0; r < n_rows; ++r) {
      Element const* const source = base + (first_row + r) * row_stride;
      std::copy(source, source + n_columns, tile.row(r));
    }
  }
  void load_transposed(Tile& tile, int first_row, int n_rows, int n_columns) const {
    tile.clear();
    for (int r = 0; r < n_rows; ++r) {
      Element const* const source = base + (first_row + r) * row_stride;
      for (int c = 0; c < n_columns; ++c) {
        tile.row(c)[r] = source[c];
      }
    }
  }
};

// The tiles and the softmax state of one Q block.
template <class Element>
class QBlock {
 public:
  QBlock(ForwardParams const& params, FlashForwardKernelConfig const& config)
      : params_(params),
        config_(config),
        B_r_(std::min(config.B_r, params.seqlen_q)),
        B_c_(std::min(config.B_c, std::max(params.seqlen_k, 1))),
        Q_(B_r_, config.d_head),
        Kt_(config.d_head, B_c_),
        V_(B_c_, config.d_head),
        S_(B_r_, B_c_),
        O_(B_r_, config.d_head),
        row_max_(B_r_),
        row_sum_(B_r_) {}

  void forward(int batch, int head, int first_row) {
    int const n_rows = std::min(B_r_, params_.seqlen_q - first_row);
    int const d_head = config_.d_head;
    HeadMatrix<Element> const q(params_.q, params_.q_strides, batch, head);
    HeadMatrix<Element> const k(params_.k, params_.k_strides, batch, head);
    HeadMatrix<Element> const v(params_.v, params_.v_strides, batch, head);
    q.load(Q_, first_row, n_rows, d_head);
    O_.clear();
    std::fill(row_max_.begin(), row_max_.end(), -kInfinity);
    std::fill(row_sum_.begin(), row_sum_.end(), 0.f);
    int const n_blocks = (params_.seqlen_k + B_c_ - 1) / B_c_;
    for (int block = n_blocks - 1; block >= 0; --block) {
      int const n_columns = std::min(B_c_, params_.seqlen_k - block * B_c_);
      k.load_transposed(Kt_, block * B_c_, n_columns, d_head);
      v.load(V_, block * B_c_, n_columns, d_head);
      S_.clear();
      accumulate(S_, Q_, Kt_);
      bool const first = block == n_blocks - 1;
      for (int r = 0; r < n_rows; ++r) {
        config_.optimized_softmax ? update_optimized(r, n_columns, first) : update(r, n_columns);
      }
      accumulate(O_, S_, V_);
    }
    store(batch, head, first_row, n_rows);
  }

 private:
  // Scores scaled, exponential to the natural base, every block rescales.
  void update(int r, int n_columns) {
    float* const s = S_.row(r);
    for (int c = 0; c < n_columns; ++c) {
      s[c] *= params_.softmax_scale;
    }
    float const new_max = std::max(row_max_[r], max_of(s, n_columns));
    rescale(r, std::exp(row_max_[r] - new_max));
    row_max_[r] = new_max;
    row_sum_[r] +=
        exponentials(r, n_columns, [=](float score) { return std::exp(score - new_max); });
  }

  // log2(e) folded into the scale, base 2, the maximum over unscaled scores; the first block finds
  // no state.
  void update_optimized(int r, int n_columns, bool first) {
    float const scale = params_.softmax_scale * kLog2e;
    float const block_max = max_of(S_.row(r), n_columns);
    float const new_max = first ? block_max : std::max(row_max_[r], block_max);
    if (!first) {
      rescale(r, std::exp2((row_max_[r] - new_max) * scale));
    }
    row_max_[r] = new_max;
    float const offset = new_max * scale;
    row_sum_[r] +=
        exponentials(r, n_columns, [=](float score) { return std::exp2(score * scale - offset); });
  }

  static float max_of(float const* scores, int n) {
    float result = -kInfinity;
    for (int c = 0; c < n; ++c) {
      result = scores[c] > result ? scores[c] : result;
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

  // Turns the scores of a row into P, rounded, with zeros past the last column; returns their sum
  // before rounding.
  template <class Exponential>
  float exponentials(int r, int n_columns, Exponential&& exponential) {
    float* const s = S_.row(r);
    float sum = 0.f;
    for (int c = 0; c < n_columns; ++c) {
      float const p = exponential(s[c]);
      sum += p;
      s[c] = Element(p);
    }
    std::fill(s + n_columns, s + S_.columns, 0.f);
    return sum;
  }

  void store(int batch, int head, int first_row, int n_rows) {
    TensorStrides const& strides = params_.o_strides;
    Element* const o =
        static_cast<Element*>(params_.o) + batch * strides.batch + head * strides.head;
    float* const lse = params_.lse + (int64_t(batch) * params_.heads + head) * params_.seqlen_q;
    for (int r = 0; r < n_rows; ++r) {
      float const sum = row_sum_[r];
      float const inverse = sum == 0.f ? 0.f : 1.f / sum;
      float const scaled_max =
          config_.optimized_softmax ? row_max_[r] * params_.softmax_scale : row_max_[r];
      lse[first_row + r] = sum == 0.f ? -kInfinity : scaled_max + std::log(sum);
      std::transform(O_.row(r), O_.row(r) + config_.d_head, o + (first_row + r) * strides.row,
                     [=](float value) { return Element(value * inverse); });
    }
  }

  ForwardParams const& params_;
  FlashForwardKernelConfig const& config_;
  int const B_r_;  // no larger than the problem
  int const B_c_;
  Tile Q_;                      // (B_r,d_head)
  Tile Kt_;                     // (d_head,B_c)
  Tile V_;                      // (B_c,d_head)
  Tile S_;                      // (B_r,B_c), then P
  Tile O_;                      // (B_r,d_head)
  std::vector<float> row_max_;  // of S; scaled unless optimized_softmax
  std::vector<float> row_sum_;
};

int n_row_blocks(ForwardParams const& params, FlashForwardKernelConfig const& config) {
  return (int64_t(params.seqlen_q) + config.B_r - 1) / config.B_r;
}

template <class Element>
void forward_tasks(ForwardParams const& params, FlashForwardKernelConfig const& config,
                   int64_t begin, int64_t end) {
  QBlock<Element> q_block(params, config);
  int const n_blocks = n_row_blocks(params, config);
  for (int64_t task = begin; task < end; ++task) {
    int64_t const head_and_batch = task / n_blocks;
    q_block.forward(head_and_batch / params.heads, head_and_batch % params.heads,
                    task % n_blocks * config.B_r);
  }
}

}  // namespace

int64_t n_cpu_tasks(ForwardParams const& params, FlashForwardKernelConfig const& config) {
  return int64_t(params.batch) * params.heads * n_row_blocks(params, config);
}

void forward_cpu(ForwardParams const& params, FlashForwardKernelConfig const& config, int64_t begin,
                 int64_t end) {
  auto const run =
      config.dtype == DType::FP16 ? forward_tasks<c10::Half> : forward_tasks<c10::BFloat16>;
  run(params, config, begin, end);
}

}  // namespace pyflash
