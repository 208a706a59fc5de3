// FlashAttention backward with SM80 atoms (Dao 2023, algorithm 2): dK, dV, and the sums of dQ.
//
// A CTA owns kBlockN keys of a head of K and V, and works through the blocks of kBlockM queries that attend them, of every
// query head of the group, or of a part of them, in which case dK and dV are added to fp32 sums in global memory, as dQ always
// is. Keys are the rows of the MMAs:
//   S^T = K Q^T, dP^T = V dO^T         fp32 accumulators in registers, 16 or 32 keys by a warp
//   P^T = 2^(scale S^T - lse)          where a mask cuts a block, 0
//   dS^T = P^T * (dP^T - delta)        to shared memory, from which other warps read it
//   dV += P^T dO, dK += dS^T Q         A from registers, and from shared memory what a warp with the same keys has computed
//   dQ = dS K                          32 queries by a warp, over all keys of the tile
// dQ of a block is added to fp32 sums in global memory; `postprocess` scales and rounds them. A variant's scores are f(scale S^T), and
// its dS^T has a factor f'.
#pragma once

#include <cute/algorithm/clear.hpp>
#include <cute/tensor_impl.hpp>

#include "cute_kernels/device.h"
#include "cute_kernels/sm80/backward/key_sums.h"
#include "cute_kernels/sm80/backward/problem.h"
#include "cute_kernels/sm80/backward/scores.h"
#include "cute_kernels/sm80/backward/sums.h"
#include "cute_kernels/sm80/backward/traits.h"
#include "cute_kernels/sm80/copy.h"
#include "cute_kernels/sm80/gemm.h"
#include "cute_kernels/variant/gradient.h"

namespace pyflash::sm80::backward {

using namespace cute;
using device::Site;

// Loads blocks of queries, and the tile's keys.
template <class Traits, BackwardFeatures kFeatures>
struct Loads {
  using Element = typename Traits::Element;
  using Vector = typename Traits::Vector;

  Tile<kFeatures> const& tile;
  typename Traits::SharedStorage& smem;
  BlockCopy<Traits, Traits::kBlockM> const copy_M;
  BlockCopy<Traits, Traits::kBlockN> const copy_N;

  CUTE_DEVICE Loads(Tile<kFeatures> const& tile, typename Traits::SharedStorage& smem)
      : tile(tile), smem(smem) {}

  CUTE_DEVICE Extent keys() const {
    return {tile.keys().length - tile.first_key, tile.problem.d_head};
  }

  // The thread's vectors of the tile's keys in a tensor: (CPY_M,CPY_K,1).
  template <class T>
  CUTE_DEVICE auto of_keys(T* tensor, TensorStrides const& strides) const {
    return copy_N.partition(head_matrix(
        strides.at(tensor, tile.batch, tile.head_kv, tile.keys().begin + tile.first_key), strides,
        tile.keys()));
  }

  CUTE_DEVICE void load_keys() const {
    AttentionGradients const& problem = tile.problem;
    device::at(Site::K_g2s);
    copy_N.template g2s<true, true>(
        of_keys(static_cast<Element const*>(problem.k), problem.k_strides)(_, _, 0), smem.k,
        keys());
    device::at(Site::V_g2s);
    copy_N.template g2s<true, true>(
        of_keys(static_cast<Element const*>(problem.v), problem.v_strides)(_, _, 0), smem.v,
        keys());
  }

  template <class Block>
  CUTE_DEVICE void load_queries(Block const& block, int stage) const {
    AttentionGradients const& problem = tile.problem;
    int const query = block.m_block * Traits::kBlockM;
    auto load = [&](void const* tensor, TensorStrides const& strides, Element* to) {
      auto const* const first = strides.at(static_cast<Element const*>(tensor), tile.batch,
                                           block.head, tile.queries().begin + query);
      Tensor tMgM = copy_M.partition(head_matrix(first, strides, tile.queries()));
      copy_M.template g2s<true, true>(tMgM(_, _, 0), to,
                                      {tile.queries().length - query, problem.d_head});
    };
    device::at(Site::Q_g2s);
    load(problem.q, problem.q_strides, smem.q[stage]);
    device::at(Site::dO_g2s);
    load(problem.grad_o, problem.grad_o_strides, smem.grad_o[stage]);
    device::at(Site::lse_g2s);
    constexpr int kVectors = Traits::kNumberVectors;
    constexpr int kNumbers = sizeof(Vector) / sizeof(float);
    int const vector = device::thread_idx();
    int const row = tile.workspace_row(block.head, query);
    if (vector < 2 * kVectors) {
      bool const is_lse = vector < kVectors;
      int const i = kNumbers * (is_lse ? vector : vector - kVectors);
      float const* const from = (is_lse ? problem.lse2 : problem.minus_delta) + row + i;
      float* const to = (is_lse ? smem.lse2[stage] : smem.minus_delta[stage]) + i;
      issue<typename Traits::AsyncCopyAtom>(as<Vector>(*from), as<Vector>(*to));
    } else {
      device::leave_out();
    }
  }
};

template <class Traits, BackwardFeatures kFeatures, class Variant = variant::NoVariant>
CUTE_DEVICE void backward_cta(variant::ParamsOf<BackwardParams, Variant> const& problem) {
  using Element = typename Traits::Element;
  using MmaAtom = typename Traits::MmaAtom;
  using Ldmatrix = typename Traits::SmemCopyAtom;
  using LdmatrixTransposed = typename Traits::SmemCopyAtomTransposed;
  constexpr int kBlockM = Traits::kBlockM;
  constexpr int kBlockN = Traits::kBlockN;
  constexpr int kHeadDim = Traits::kHeadDim;
  constexpr int kQueries = Traits::kQueriesOfWarp;
  constexpr int kColumnsDKV = Traits::kColumnsDKV;
  constexpr int kSlab = Traits::kSlab;

  auto tile = tile_of<Traits, kFeatures>(problem);
  variant::limit_lengths<Variant, kBlockM>(tile);
  if (tile.first_key >= tile.keys().length) {
    return;  // behind the last of packed sequences
  }
  auto& smem = device::dynamic_smem<typename Traits::SharedStorage>();
  Loads<Traits, kFeatures> const loads(tile, smem);

  // The warp's keys, its share of their queries and of their columns of dK and dV; its queries of dQ, and its share of their
  // columns.
  int const warp = device::thread_idx() / 32;
  int const companion = warp / Traits::kKeyWarps;
  int const key = Traits::first_key(warp);
  int const query = companion * kQueries;
  int const column_dKV = Traits::first_column_dKV(companion);
  int const query_dQ = warp % Traits::kQueryWarps * Traits::kWarpQueries;
  int const column_dQ = warp / Traits::kQueryWarps * Traits::kColumnsDQ;

  auto lane_at = [](auto lanes, int row, int column) {
    Coord const lane = lane_coord<decltype(lanes)>(row);
    return Coord{lane.row, lane.column + column};
  };
  // This lane's rows of 16 x 16 tiles: of K and V (M,K), of Q and dO (N,K), and of dS (M,K).
  ThreadOffsets<typename Traits::SmemLayoutKV, 16, 16> const k_tiles(
      lane_coord<typename Traits::LanesA>(key));
  ThreadOffsets<typename Traits::SmemLayoutQ, 16, 16> const q_tiles(
      lane_coord<typename Traits::LanesB>(query));
  ThreadOffsets<typename Traits::SmemLayoutDS, 16, 16> const ds_tiles(
      lane_coord<typename Traits::LanesAt>(query_dQ));
  Coord const acc_first = lane_at(typename Traits::AccLanes{}, key, query);
  ThreadOffsets<typename Traits::SmemLayoutDSt, 8, 8> const stored(acc_first);
  variant::Given<Variant> const given(problem);
  using Blocks = variant::BlocksOf<kFeatures, kBlockN, Variant>;
  Scores<Traits, kFeatures, Variant> const scores(tile, acc_first, tile.first_key + key, given);
  Sums<Traits, kFeatures> const sums{tile};
  KeySums<Traits, kFeatures> const key_sums(problem, tile);

  auto store_pairs = [&](auto const& pairs, Element* block) {
    constexpr int kRows = 2 * Traits::kKeyTiles;  // of a thread
    CUTE_UNROLL
    for (int i = 0; i < size(pairs); ++i) {
      issue<typename Traits::SmemCopyAtomO>(pairs.data()[i],
                                            as<uint32_t>(block[stored(i % kRows, i / kRows)]));
    }
  };

  constexpr int kTiles = Traits::kKeyTiles;
  using OfKeys = typename Traits::template Accumulator<kTiles, kColumnsDKV>;
  using OfScores = typename Traits::template Accumulator<kTiles, kQueries>;
  Tensor acc_dK = make_tensor<float>(OfKeys{});  // (MMA,MMA_M,MMA_N)
  Tensor acc_dV = make_tensor<float>(OfKeys{});  // (MMA,MMA_M,MMA_N)
  clear(acc_dK);
  clear(acc_dV);

  // acc = A B^T of keys and queries. A: K or V. B: Q or dO.
  auto multiply_rows = [&](auto& acc, Element const* a, Site site_a, Element const* b,
                           Site site_b) __attribute__((always_inline)) {
    Tensor rA = make_tensor<uint32_t>(typename Traits::template OperandA<kTiles, kHeadDim>{});
    Tensor rB = make_tensor<uint32_t>(typename Traits::template OperandB<kQueries, kHeadDim>{});
    clear(acc);
    gemm_staged<MmaAtom, 1, false>(acc, rA, rB, [&](int k) {
      device::at(site_a);
      load_A<Ldmatrix>(rA, a, k_tiles, k);
      device::at(site_b);
      load_B<Ldmatrix>(rB, b, q_tiles, k);
    });
  };
  // acc += A B of keys and columns, over the queries of one of the companions, from `first` on. A: P^T or dS^T. B: dO or Q.
  auto multiply_columns = [&](auto& acc, auto& rA, int first, Element const* b, Site site_b,
                              auto const& load_rA) __attribute__((always_inline)) {
    ThreadOffsets<typename Traits::SmemLayoutQt, Traits::kColumnStepDKV, 16> const qt_tiles(
        lane_at(typename Traits::LanesBt{}, column_dKV, first));
    Tensor rB = make_tensor<uint32_t>(typename Traits::template OperandB<kColumnsDKV, kQueries>{});
    gemm_staged<MmaAtom, 1, false>(acc, rA, rB, [&](int k) {
      load_rA(k);
      device::at(site_b);
      load_B<LdmatrixTransposed>(rB, b, qt_tiles, k);
    });
  };
  auto const in_registers = [](int) {};  // A of the warp's own queries
  // The same over the queries of the others, whose A is in shared memory.
  auto multiply_others = [&](auto& acc, Element const* a, Site site_a, Element const* b,
                             Site site_b) __attribute__((always_inline)) {
    CUTE_UNROLL
    for (int i = 1; i < Traits::kCompanions; ++i) {
      int const first = (companion + i) % Traits::kCompanions * kQueries;
      ThreadOffsets<typename Traits::SmemLayoutDSt, 16, 16> const a_tiles(
          lane_at(typename Traits::LanesA{}, key, first));
      Tensor rA = make_tensor<uint32_t>(typename Traits::template OperandA<kTiles, kQueries>{});
      multiply_columns(acc, rA, first, b, site_b, [&](int k) {
        device::at(site_a);
        load_A<Ldmatrix>(rA, a, a_tiles, k);
      });
    }
  };

  Blocks ahead(tile, given);  // the block that is loaded next
  auto load_ahead = [&](int stage) {
    if (ahead.exists()) {
      loads.load_queries(ahead, stage);
      ahead.advance();
    }
    device::async_commit();
  };
  loads.load_keys();
  load_ahead(0);
  if constexpr (Traits::kOneBarrier) {
    load_ahead(1);
    device::async_wait<1>();
    device::sync_threads();  // the first block is visible, and K and V
  }

  int stage = 0, place = 0;
  for (Blocks block(tile, given); block.exists(); block.advance()) {
    if constexpr (!Traits::kOneBarrier) {
      // The block is visible, and K and V the first time; every warp is done with the block before.
      device::async_wait<0>();
      device::sync_threads();
      if constexpr (Traits::kStages == 2) {
        load_ahead(stage ^ 1);
      }
    }
    Element const* const sQ = smem.q[stage];        // (kBlockM,kHeadDim)
    Element const* const sDO = smem.grad_o[stage];  // (kBlockM,kHeadDim)
    Element* const sP = smem.p[place];              // (kBlockN,kBlockM)
    Element* const sDS = smem.ds[place];            // (kBlockN,kBlockM)

    Tensor acc_S = make_tensor<float>(OfScores{});                        // (MMA,MMA_M,MMA_N)
    Tensor acc_dP = make_tensor<float>(OfScores{});                       // (MMA,MMA_M,MMA_N)
    Tensor tdVrP = make_tensor<uint32_t>(OperandOf<decltype(acc_S)>{});   // (MMA,MMA_M,MMA_K)
    Tensor tdKrDS = make_tensor<uint32_t>(OperandOf<decltype(acc_S)>{});  // (MMA,MMA_M,MMA_K)
    multiply_rows(acc_S, smem.k, Site::K_s2r, sQ, Site::Q_s2r);
    multiply_rows(acc_dP, smem.v, Site::V_s2r, sDO, Site::dO_s2r);
    scores.to_P(acc_S, tdVrP, smem.lse2[stage], block);
    if constexpr (kFeatures.dropout) {
      scores.drop(tdVrP, acc_dP, problem.dropout, block);
    }
    if constexpr (Traits::kCompanions > 1) {
      device::at(Site::P_r2s);
      store_pairs(tdVrP, sP);
    }
    if constexpr (variant::kHasSums<Variant>) {
      scores.to_dS_and_sums(acc_S, tdVrP, acc_dP, tdKrDS, smem.minus_delta[stage], block);
    } else if constexpr (kFeatures.dropout) {
      scores.to_dS(acc_S, acc_dP, tdKrDS, smem.minus_delta[stage], problem.dropout.factor);
    } else {
      scores.to_dS(acc_S, acc_dP, tdKrDS, smem.minus_delta[stage]);
    }
    device::at(Site::dS_r2s);
    store_pairs(tdKrDS, sDS);
    multiply_columns(acc_dV, tdVrP, query, sDO, Site::dO_s2r, in_registers);
    if constexpr (Traits::kOneBarrier) {
      device::async_wait<0>();  // for the next block
    }
    // With one barrier the next block is visible, too, and every warp is done with the one before.
    device::sync_threads();  // dS is visible, and P
    if constexpr (Traits::kOneBarrier) {
      load_ahead(stage == 0 ? 2 : stage - 1);
    }
    multiply_columns(acc_dK, tdKrDS, query, sQ, Site::Q_s2r, in_registers);
    multiply_others(acc_dV, sP, Site::P_s2r, sDO, Site::dO_s2r);
    multiply_others(acc_dK, sDS, Site::dS_s2r, sQ, Site::Q_s2r);
    if constexpr (Traits::kStages == 1) {
      device::sync_threads();  // every warp has read Q and dO, lse and delta
      load_ahead(0);
    }

    CUTE_UNROLL
    for (int pass = 0; pass < Traits::kColumnsDQ / kSlab; ++pass) {
      int const column = column_dQ + pass * kSlab;
      if (Traits::kUnevenDQ && column >= kHeadDim) {
        break;
      }
      ThreadOffsets<typename Traits::SmemLayoutKt, 16, 16> const kt_tiles(
          lane_coord<typename Traits::LanesBt>(column));
      constexpr int kQueryTiles = Traits::kQueryTiles;
      Tensor acc_dQ = make_tensor<float>(
          typename Traits::template Accumulator<kQueryTiles, kSlab>{});  // (MMA,MMA_M,MMA_N)
      Tensor rDS =
          make_tensor<uint32_t>(typename Traits::template OperandA<kQueryTiles, kBlockN>{});
      Tensor rKt = make_tensor<uint32_t>(typename Traits::template OperandB<kSlab, kBlockN>{});
      clear(acc_dQ);
      gemm_staged<MmaAtom, 1, false>(acc_dQ, rDS, rKt, [&](int k) {
        device::at(Site::dS_s2r);
        load_A<LdmatrixTransposed>(rDS, sDS, ds_tiles, k);
        device::at(Site::K_s2r);
        load_B<LdmatrixTransposed>(rKt, smem.k, kt_tiles, k);
      });
      sums.add(acc_dQ, tile.workspace_row(block.head, block.m_block * kBlockM + query_dQ), column);
    }
    if constexpr (Traits::kStages == 2) {
      stage ^= 1;
    } else if constexpr (Traits::kOneBarrier) {
      stage = stage == 2 ? 0 : stage + 1;
      place ^= 1;
    }
  }

  device::async_wait<0>();
  device::sync_threads();  // every warp has read K and V
  CUTE_UNROLL
  for (int i = 0; i < size(acc_dK); ++i) {
    acc_dK(i) *= problem.softmax_scale;
    if constexpr (kFeatures.dropout) {
      acc_dV(i) *= problem.dropout.factor;
    }
  }
  if (ctas_of_group<kFeatures>(problem) > 1) {
    key_sums.add(acc_dK, false);
    key_sums.add(acc_dV, true);
    return;
  }
  // dK and dV leave through the space of K and V.
  Coord const out = lane_at(typename Traits::AccLanes{}, key, column_dKV);
  device::at(Site::rows_r2s);
  store_packed<Traits, Traits::kColumnStepDKV>(as_operand_A<Element>(acc_dK), out, smem.k);
  store_packed<Traits, Traits::kColumnStepDKV>(as_operand_A<Element>(acc_dV), out, smem.v);
  device::sync_threads();  // dK and dV are visible
  device::at(Site::rows_s2g);
  auto store = [&](Element const* block, void* tensor, TensorStrides const& strides) {
    Tensor tKgK = loads.of_keys(static_cast<Element*>(tensor), strides);
    loads.copy_N.s2g(block, tKgK(_, _, 0), loads.keys());
  };
  store(smem.k, problem.dk, problem.dk_strides);
  store(smem.v, problem.dv, problem.dv_strides);
}

}  // namespace pyflash::sm80::backward
