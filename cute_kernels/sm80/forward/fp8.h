// Attention over K and V in e4m3, in pages: elements become those of Q on their way from shared memory to the MMA, which is
// exact. Otherwise as forward_kernel.cuh; scores are multiplied by the scale of K, O by that of V.
//
// A warp owns 16 rows and takes all keys, or, where a tile has 16 rows or fewer, as in decoding, the warps share the keys: each
// takes its part of every block, which it loads itself, and they merge what they have at the end.
#pragma once

#include <cute/algorithm/clear.hpp>
#include <cute/tensor_impl.hpp>

#include "cute_kernels/alibi.h"
#include "cute_kernels/device.h"
#include "cute_kernels/features.h"
#include "cute_kernels/params.h"
#include "cute_kernels/sinks.h"
#include "cute_kernels/sm80/copy.h"
#include "cute_kernels/sm80/forward/mask.h"
#include "cute_kernels/sm80/forward/problem.h"
#include "cute_kernels/sm80/forward/softmax.h"
#include "cute_kernels/sm80/forward/traits.h"
#include "cute_kernels/sm80/gemm.h"

namespace pyflash::sm80 {

using namespace cute;
using device::Site;

// Blocks of K and V in e4m3 in shared memory, in which a stage of 16-bit elements has room for two, and the parts of O of warps
// that share keys in place of them.
template <class Traits>
struct Fp8Blocks {
  static constexpr int kHeadDim = Traits::kHeadDim;
  static constexpr int kStages = 2 * Traits::kKVStages;
  static constexpr int kBytes = Traits::kBlockN * kHeadDim;        // of a block of K
  static constexpr int kStep = Traits::kBlockN / Traits::kNWarps;  // a warp's keys of a block
  static constexpr int kChunk = 16;                                // bytes
  static constexpr int kChunks = kHeadDim / kChunk;                // of a row
  static constexpr int kCopies = kStep * kChunks / 32;             // of a lane, in a warp's keys
  static constexpr bool kEvenCopies = 32 % kChunks == 0;           // of whole rows, in one column
  static_assert(Traits::kBlockN % (16 * Traits::kNWarps) == 0 && Traits::kTilesM == 1,
                "FP8 caches need 16 rows for each warp, and 16 keys of each block: B_r = 16 * "
                "n_warps, and B_c a multiple of that");
  static constexpr int kPartBytes = Traits::kNWarps * 16 * kHeadDim * int(sizeof(float));
  static_assert(kPartBytes <= 2 * kStages * kBytes);

  // Chunks are permuted among rows so that those of one place in 8 rows are in 32 different banks.
  static constexpr int kPermuted = cute::min(kChunks & -kChunks, 8);
  static constexpr int kRowsOfBanks = 8 / kPermuted;
  CUTE_DEVICE static int offset(int row, int chunk) {
    int const permutation = static_cast<uint32_t>(row) / kRowsOfBanks % kPermuted;
    return row * kHeadDim + (chunk ^ permutation) * kChunk;
  }
};

// The columns of O of chunk c that a lane has in the accumulator, of row r of its two: four neighbours. Tile 2c has the even
// columns of a chunk of V, tile 2c + 1 the odd ones.
template <class AccO>
CUTE_DEVICE float4 columns_of_O(AccO const& acc, int r, int c) {
  return {acc(2 * r, 0, 2 * c), acc(2 * r, 0, 2 * c + 1), acc(2 * r + 1, 0, 2 * c),
          acc(2 * r + 1, 0, 2 * c + 1)};
}

template <class Traits, ForwardFeatures kFeatures>
CUTE_DEVICE void fp8_cta(ListedForwardParams const& params) {
  using Element = typename Traits::Element;
  using MmaAtom = typename Traits::MmaAtom;
  using Blocks = Fp8Blocks<Traits>;
  using Vector = typename Traits::Vector;
  constexpr int kBlockM = Traits::kBlockM;
  constexpr int kBlockN = Traits::kBlockN;
  constexpr int kHeadDim = Traits::kHeadDim;
  constexpr int kNWarps = Traits::kNWarps;
  constexpr int kStages = Blocks::kStages;
  constexpr int kStep = Blocks::kStep;
  constexpr int kChunks = Blocks::kChunks;
  constexpr int kMmaK = Traits::kMmaK;
  static_assert(kFeatures.paged_kv, "caches in e4m3 are in pages");

  constexpr bool kMaskEnds = kFeatures.right_window;
  constexpr bool kMaskBegins = kFeatures.left_window;

  device::launch_dependents();  // who merges splits waits for the end of this kernel

  // Coordinates and early exit.
  int const lane = device::thread_idx() % 32;
  int const warp = device::thread_idx() / 32;
  BlockCoord const coord = block_coord<Traits, kMaskEnds>(
      params.q_sequences(), params.kv(), params.num_splits, params.heads, params.batch);
  int const m_block = coord.m_block;
  Rows const q_rows = params.q_sequences().rows_of(coord.batch, device::Loader{});
  Rows const k_rows =
      params.pages.rows_of(coord.batch, params.kv().sequences.longest, device::Loader{});
  int const rows_left = q_rows.length - m_block * kBlockM;
  if (rows_left <= 0) {
    return;
  }
  bool const shares_keys = rows_left <= Traits::kMmaM;
  int const aligned = aligned_column(m_block * kBlockM, q_rows.length, k_rows.length);
  ScoreMask<kStep, kMaskEnds, kMaskBegins> const mask(params.mask(), k_rows.length,
                                                      min(rows_left, kBlockM), aligned);
  Interval const keys = mask.keys.of_some(mask.n_rows).from_0();
  Interval const blocks = keys.blocks_touched(kBlockN);
  int const blocks_per_split = ceil_div(blocks.end - blocks.begin, params.num_splits);
  int const begin_block = blocks.begin + coord.split * blocks_per_split;
  int const end_block = min(begin_block + blocks_per_split, blocks.end);

  int const head_kv = params.kv().head_of(coord.head, params.heads);
  KvScales const& scales = params.kv_scales;
  float const k_scale = device::load(scales.k + head_kv * scales.k_stride);
  float const v_scale = device::load(scales.v + head_kv * scales.v_stride);

  auto& smem = device::dynamic_smem<typename Traits::SharedStorage>();
  auto* const sK = reinterpret_cast<uint8_t*>(smem.k);  // (kBlockN,kHeadDim,kStages)
  auto* const sV = reinterpret_cast<uint8_t*>(smem.v);  // (kBlockN,kHeadDim,kStages)

  // Fragments, and where in a block the accumulators' first row and column are.
  Tensor tSrQ = make_tensor<uint32_t>(typename Traits::FragmentQ{});  // (MMA,MMA_M,MMA_K)
  Tensor acc_O = make_tensor<float>(typename Traits::FragmentO{});    // (MMA,MMA_M,MMA_K)
  using FragmentS = typename Traits::template Fragment<4, 1, kStep / 8>;
  using AccRows = typename Traits::AccRows;
  using AccColumnsS = Layout<Shape<_2, Int<kStep / 8>>, Stride<_1, _8>>;
  int const warp_row = shares_keys ? 0 : warp * Traits::kMmaM;
  Coord const acc_coord = lane_coord<typename Traits::AccLanes>(warp_row);

  using TileSoftmax = Softmax<Element, Traits::kRowsPerThread, Traits::kOptimizedSoftmax,
                              Traits::kRescaleThreshold, kFeatures.softcap>;
  TileSoftmax softmax(params.softmax_scale, params.inverse_scale_log2, params.softcap);
  softmax.reset();
  clear(acc_O);

  // A warp loads its keys of a block: number of the lane's copy -> row of these, and chunk.
  auto copied = [&](int i) {
    int const index = i * 32 + lane;
    return Coord{index / kChunks, index % kChunks};
  };
  auto key_of = [&](int n_block, int row) { return n_block * kBlockN + warp * kStep + row; };
  // Where the keys of a lane's copies are; where all keys of the warp are in one page, the first of these.
  // NOTE: table entries of keys that nobody attends may hold anything.
  bool const in_one_page =
      Blocks::kEvenCopies && kStep <= 1ll << params.pages.log2_size && params.pages.log2_size >= 0;
  KeyPlace places[Blocks::kCopies];
  auto find_place = [&](int i, int key, bool is_attended) {
    places[i] = {-1, 0};
    if (is_attended) {
      places[i] = params.pages.place_of(coord.batch, key, device::Loader{});
    } else {
      device::leave_out();
    }
  };
  auto find_places = [&](int n_block) {
    device::at(Site::K_g2s);
    if (in_one_page) {
      int const key = key_of(n_block, 0);
      find_place(0, key, n_block >= begin_block && keys.begin < key + kStep && key < keys.end);
      return;
    }
    CUTE_UNROLL
    for (int i = 0; i < Blocks::kCopies; ++i) {
      int const key = key_of(n_block, copied(i).row);
      find_place(i, key, n_block >= begin_block && keys.begin <= key && key < keys.end);
    }
  };
  auto load = [&](KvTensor const& tensor, int n_block, uint8_t* block) {
    TensorStrides const& strides = tensor.strides;
    auto copy = [&](int i, uint8_t const* source, bool exists) {
      auto const [row, chunk] = copied(i);
      exists = exists && (!kFeatures.predicated_head_dim || chunk * Blocks::kChunk < params.d_head);
      issue<typename Traits::AsyncCopyAtomOrZeros>(
          as<Vector>(*source), as<Vector>(block[Blocks::offset(warp * kStep + row, chunk)]),
          exists);
    };
    auto chunk_of_row = [&](KeyPlace const& place, int i) {
      auto const* const data = tensor.template at<uint8_t>(place.batch, head_kv, place.row);
      return data + copied(i).column * Blocks::kChunk;
    };
    if (in_one_page) {
      bool const has_page = params.pages.exists(places[0].batch);
      uint8_t const* source =
          chunk_of_row({has_page ? places[0].batch : 0, places[0].row + copied(0).row}, 0);
      CUTE_UNROLL
      for (int i = 0; i < Blocks::kCopies; ++i) {
        int const key = key_of(n_block, copied(i).row);
        copy(i, source, has_page && keys.begin <= key && key < keys.end);
        source += (32 / kChunks) * strides.row;
      }
      return;
    }
    CUTE_UNROLL
    for (int i = 0; i < Blocks::kCopies; ++i) {
      bool const has_page = params.pages.exists(places[i].batch);
      copy(i, chunk_of_row({has_page ? places[i].batch : 0, places[i].row}, i), has_page);
    }
  };
  // As one group, empty where there are no more blocks; and finds the keys of the block after it.
  auto load_block = [&](int n_block) {
    if (n_block >= begin_block) {
      int const stage = static_cast<uint32_t>(n_block) % kStages;
      device::at(Site::K_g2s);
      load(params.kv().k, n_block, sK + stage * Blocks::kBytes);
      device::at(Site::V_g2s);
      load(params.kv().v, n_block, sV + stage * Blocks::kBytes);
    }
    device::async_commit();
    find_places(n_block - 1);
  };
  auto sync = [&] {
    if (shares_keys) {
      device::sync_warp();
    } else {
      device::sync_threads();
    }
  };

  // The row and the chunk of a lane in the tiles of 16 keys x 2 chunks that ldmatrix loads at a time.
  int const tile_row = lane % 16;
  int const tile_chunk = lane / 16;
  auto load_tiles = [&](auto ldmatrix, uint8_t const* block, int first_row, int chunk,
                        uint32_t (&words)[4]) {
    uint8_t const& row = block[Blocks::offset(first_row + tile_row, chunk + tile_chunk)];
    issue<decltype(ldmatrix)>(as<uint128_t>(row), words[0], words[1], words[2], words[3]);
  };

  // A warp's rows by the keys of a step: `share` of a block. NOTE: as in forward_kernel.cuh, it is to be inlined.
  auto step = [&](int n_block, int share, auto masked) __attribute__((always_inline)) {
    int const stage = static_cast<uint32_t>(n_block) % kStages;
    int const first_row = share * kStep;
    // A lane's columns of a step of the MMA are four neighbours of a chunk, of K as of Q.
    Tensor acc_S = make_tensor<float>(FragmentS{});  // (MMA,MMA_M,MMA_N)
    clear(acc_S);
    Tensor tSrK = make_tensor<uint32_t>(
        typename Traits::template Fragment<2, kStep / 8, kHeadDim / kMmaK>{});  // (MMA,MMA_N,MMA_K)
    device::at(Site::K_s2r);
    CUTE_UNROLL
    for (int c = 0; c < kChunks; c += 2) {
      CUTE_UNROLL
      for (int n = 0; n < kStep / 8; n += 2) {
        uint32_t words[4];
        load_tiles(typename Traits::SmemCopyAtom{}, sK + stage * Blocks::kBytes, first_row + 8 * n,
                   c, words);
        CUTE_UNROLL
        for (int i = 0; i < 4; ++i) {
          tSrK(0, n + i % 2, c + i / 2) = device::unpack_e4m3<false>(words[i], Element{});
          tSrK(1, n + i % 2, c + i / 2) = device::unpack_e4m3<true>(words[i], Element{});
        }
      }
      gemm_step<MmaAtom>(acc_S, tSrQ, tSrK, c);
      gemm_step<MmaAtom>(acc_S, tSrQ, tSrK, c + 1);
    }
    CUTE_UNROLL
    for (int i = 0; i < size(acc_S); ++i) {
      acc_S(i) *= k_scale;
    }

    int const n_step = n_block * kNWarps + share;
    if constexpr (kFeatures.alibi_slopes) {
      if (params.alibi_slopes.data != nullptr) {
        float const slope = load_slope<Element>(params.alibi_slopes, params.inverse_scale_log2,
                                                coord.batch, coord.head);
        Tensor S = rows_by_columns(acc_S);
        CUTE_UNROLL
        for (int r = 0; r < size<0>(S); ++r) {
          int const m = acc_coord.row + AccRows{}(r);
          add_alibi(S, r, slope, aligned + m - n_step * kStep - acc_coord.column, AccColumnsS{});
        }
      }
    }
    if constexpr (masked.value) {
      mask.template apply<AccRows, AccColumnsS>(rows_by_columns(acc_S), acc_coord, n_step);
    }
    softmax.template begin<false, masked.value>(acc_S, acc_O);

    // O += P V, 16 keys at a time.
    auto multiply_PV = [&](auto two_terms) {
      Tensor tOrP = make_tensor<uint32_t>(OperandOf<decltype(acc_S)>{});  // (MMA,MMA_M,MMA_K)
      Tensor tOrV = make_tensor<uint32_t>(
          typename Traits::template Fragment<2, kHeadDim / 8,
                                             kStep / kMmaK>{});  // (MMA,MMA_N,MMA_K)
      CUTE_UNROLL
      for (int k = 0; k < kStep / kMmaK; ++k) {
        device::at(Site::V_s2r);
        CUTE_UNROLL
        for (int c = 0; c < kChunks; c += 2) {
          uint32_t words[4];  // of two keys, two neighbouring columns each
          load_tiles(typename Traits::SmemCopyAtomTransposed{}, sV + stage * Blocks::kBytes,
                     first_row + kMmaK * k, c, words);
          CUTE_UNROLL
          for (int i = 0; i < 4; ++i) {
            uint32_t const pairs = device::swap_inner_bytes(words[i]);
            int const n = 2 * (c + i / 2);
            tOrV(i % 2, n, k) = device::unpack_e4m3<false>(pairs, Element{});
            tOrV(i % 2, n + 1, k) = device::unpack_e4m3<true>(pairs, Element{});
          }
        }
        softmax.template exponentiate<two_terms.value>(acc_S, k);
        pack_step<Element>(acc_S, tOrP, k);
        gemm_step<MmaAtom>(acc_O, tOrP, tOrV, k);
      }
    };
    if constexpr (TileSoftmax::template kMayLeaveScores<false, masked.value>) {
      if (softmax.leaves_scores()) {
        multiply_PV(true_type{});
        return;
      }
    }
    multiply_PV(false_type{});
  };

  if (begin_block < end_block) {
    // Prologue: Q, and blocks ahead.
    device::at(Site::Q_g2s);
    BlockCopy<Traits, kBlockM> const copy_M;
    Tensor tQgQ =
        copy_M.partition(head_matrix<Element const>(params.q, params.q_strides, coord, q_rows));
    copy_M.template g2s<true, kFeatures.predicated_head_dim>(tQgQ(_, _, m_block), smem.q,
                                                             {rows_left, params.d_head});
    device::async_commit();
    find_places(end_block - 1);
    CUTE_UNROLL
    for (int i = 1; i < kStages; ++i) {
      load_block(end_block - i);
    }
    device::async_wait<kStages - 1>();
    device::sync_threads();  // Q is visible
    device::at(Site::Q_s2r);
    CUTE_UNROLL
    for (int k = 0; k < kHeadDim / kMmaK; ++k) {
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        int const row = warp_row + lane / 4 + 8 * (i % 2);
        int const column = k * kMmaK + 4 * (lane % 4) + 2 * (i / 2);
        issue<typename Traits::SmemCopyAtomO>(
            as<uint32_t>(smem.q[typename Traits::SmemLayoutQ{}(row, column)]), tSrQ(i, 0, k));
      }
    }

    Interval const uncut = mask.uncut_blocks();  // in steps
    for (int n_block = end_block - 1; n_block >= begin_block; --n_block) {
      device::async_wait<kStages - 2>();
      // K and V of n_block are visible, and nobody reads those of n_block + 1 any more, whose stage the next load fills.
      sync();
      load_block(n_block - (kStages - 1));
      for (int i = 0; i < (shares_keys ? 1 : kNWarps); ++i) {
        int const share = shares_keys ? warp : kNWarps - 1 - i;
        int const n_step = n_block * kNWarps + share;
        if (n_step >= uncut.end || n_step < uncut.begin) {
          step(n_block, share, true_type{});
        } else {
          step(n_block, share, false_type{});
        }
      }
    }
  }

  // Finalise.
  auto lse = softmax.template finalise<kFeatures.fixed_splits>(acc_O);  // of each row
  bool const is_partial = params.num_splits > 1;
  cute::array<float, Traits::kRowsPerThread> weights[kNWarps];  // of the warps that share keys
  auto* const parts = reinterpret_cast<float*>(smem.k);         // (kHeadDim,16,kNWarps)
  auto* const lse_parts = reinterpret_cast<float*>(smem.q);     // (16,kNWarps)
  auto part_of = [&](int of_warp, int row, int c) {
    int const column = c * Blocks::kChunk + 4 * (lane % 4);
    return reinterpret_cast<float4*>(parts + (of_warp * 16 + row) * kHeadDim + column);
  };
  if (shares_keys) {
    device::sync_threads();  // every warp has read Q, K and V
    device::at(Site::part_r2s);
    CUTE_UNROLL
    for (int r = 0; r < Traits::kRowsPerThread; ++r) {
      int const row = acc_coord.row + AccRows{}(r);
      CUTE_UNROLL
      for (int c = 0; c < kChunks; ++c) {
        device::store(part_of(warp, row, c), columns_of_O(acc_O, r, c));
      }
      if (lane % 4 == 0) {
        device::store(lse_parts + warp * 16 + row, lse[r]);
      }
    }
    device::sync_threads();  // the parts are visible
    device::at(Site::part_s2r);
    CUTE_UNROLL
    for (int r = 0; r < Traits::kRowsPerThread; ++r) {
      float largest = -INFINITY;
      CUTE_UNROLL
      for (int w = 0; w < kNWarps; ++w) {
        weights[w][r] = device::load(lse_parts + w * 16 + acc_coord.row + AccRows{}(r));
        largest = fmaxf(largest, weights[w][r]);
      }
      float const shift = largest == -INFINITY ? 0.f : largest;
      float sum = 0.f;
      CUTE_UNROLL
      for (int w = 0; w < kNWarps; ++w) {
        weights[w][r] = device::exp(weights[w][r] - shift);
        sum += weights[w][r];
      }
      lse[r] = sum == 0.f ? -INFINITY : shift + device::log(sum);
      float const inverse = sum == 0.f ? 0.f : 1.f / sum;
      CUTE_UNROLL
      for (int w = 0; w < kNWarps; ++w) {
        weights[w][r] *= inverse;
      }
    }
  }
  // What each row is multiplied by.
  Tensor factors = make_tensor<float>(typename Traits::template Fragment<4, 1, 1>{});
  cute::fill(factors, 1.f);
  if constexpr (kFeatures.sinks) {
    if (params.sinks.data != nullptr &&
        !is_partial) {  // partial results get them when they are merged
      device::at(Site::sinks_g2r);
      join_sinks(factors, lse, [&](int r) {
        int const m = acc_coord.row + AccRows{}(r);
        return m < rows_left ? load_sink<Element>(params.sinks, coord.head, m_block * kBlockM + m)
                             : -INFINITY;
      });
    }
  }

  // Store.
  int64_t const lse_offset = coord.batch * params.lse_strides.batch +
                             coord.head * params.lse_strides.head + q_rows.begin +
                             m_block * kBlockM;
  int64_t const partial_offset = coord.split * params.lse_strides.split + lse_offset;
  auto store_columns = [&](int r, int c, float4 const& O) {
    int const row = acc_coord.row + AccRows{}(r);
    int const column = c * Blocks::kChunk + 4 * (lane % 4);
    if (row >= rows_left || column >= params.d_head) {
      device::leave_out();
      return;
    }
    float const factor = rows_by_columns(factors)(r, 0) * v_scale;
    float4 const scaled{O.x * factor, O.y * factor, O.z * factor, O.w * factor};
    if (is_partial) {
      device::store(reinterpret_cast<float4*>(params.o_partial +
                                              (partial_offset + row) * params.d_head + column),
                    scaled);
    } else {
      auto* const o = static_cast<Element*>(params.o);
      Element* const address =
          params.o_strides.at(o, coord.batch, coord.head, q_rows.begin + m_block * kBlockM + row) +
          column;
      device::store(reinterpret_cast<uint2*>(address),
                    uint2{device::pack2(scaled.x, scaled.y, Element{}),
                          device::pack2(scaled.z, scaled.w, Element{})});
    }
  };
  device::at(Site::lse_r2g);
  if (lane % 4 == 0 && (!shares_keys || warp == 0)) {
    float* const lse_block =
        is_partial ? params.lse_partial + partial_offset : params.lse + lse_offset;
    CUTE_UNROLL
    for (int r = 0; r < Traits::kRowsPerThread; ++r) {
      int const row = acc_coord.row + AccRows{}(r);
      if (row < rows_left) {
        device::store(lse_block + row, lse[r]);
      }
    }
  }
  if (shares_keys) {  // a warp stores every kNWarps-th chunk
    for (int c = warp; c < kChunks; c += kNWarps) {
      CUTE_UNROLL
      for (int r = 0; r < Traits::kRowsPerThread; ++r) {
        float4 O{};
        device::at(Site::part_s2r);
        CUTE_UNROLL
        for (int w = 0; w < kNWarps; ++w) {
          float4 const part = device::load(part_of(w, acc_coord.row + AccRows{}(r), c));
          O.x += weights[w][r] * part.x;
          O.y += weights[w][r] * part.y;
          O.z += weights[w][r] * part.z;
          O.w += weights[w][r] * part.w;
        }
        device::at(Site::O_r2g);
        store_columns(r, c, O);
      }
    }
  } else {
    device::at(Site::O_r2g);
    CUTE_UNROLL
    for (int c = 0; c < kChunks; ++c) {
      CUTE_UNROLL
      for (int r = 0; r < Traits::kRowsPerThread; ++r) {
        store_columns(r, c, columns_of_O(acc_O, r, c));
      }
    }
  }
}

}  // namespace pyflash::sm80
