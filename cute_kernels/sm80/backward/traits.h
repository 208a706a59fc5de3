// Expands a backward config to compile-time types: tile shapes, which warp computes what, shared memory, copy and MMA atoms.
//
// NOTE: layouts are spelled out, not computed, as in the forward.
#pragma once

#include <type_traits>

#include <cutlass/numeric_types.h>
#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm80.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/swizzle_layout.hpp>
#include <cute/tensor_impl.hpp>

#include "cute_kernels/backward_params.h"
#include "cute_kernels/common/integers.h"
#include "cute_kernels/config.h"

namespace pyflash::sm80::backward {

using namespace cute;

template <FlashBackwardKernelConfig kConfig>
struct KernelTraits {
  static constexpr int kBlockM = kConfig.B_r;
  static constexpr int kBlockN = kConfig.B_c;
  static constexpr int kHeadDim = kConfig.d_head;
  static constexpr int kNWarps = kConfig.n_warps;
  static constexpr int kNThreads = 32 * kNWarps;
  static constexpr int kStages = kConfig.stages;
  static constexpr bool kAsyncCopy = true;

  static constexpr int kMmaM = 16;  // rows of one warp's MMA atom
  static constexpr int kMmaK = 16;  // columns of one MMA step
  static constexpr int kRowStep = kMmaM;

  // S^T, dP^T, dK, dV: a warp has the keys of one or two tiles. Warps of the same keys have a share of the queries each, and of the
  // columns of dK and dV: of their own queries they have P^T and dS^T in registers, of the others' they read them from shared memory.
  static constexpr int kWarpKeys = kConfig.warp_keys;
  static constexpr int kKeyTiles = kWarpKeys / kMmaM;
  static constexpr int kKeyWarps = kBlockN / kWarpKeys;
  static constexpr int kCompanions = kNWarps / kKeyWarps;
  static constexpr int kQueriesOfWarp = kBlockM / kCompanions;
  static constexpr int kColumnsDKV = kHeadDim / kCompanions;
  CUTE_HOST_DEVICE static constexpr int first_key(int warp) { return warp % kKeyWarps * kWarpKeys; }
  // Two tiles of 8 columns of dK and dV lie beside each other. From these on a warp has the next two, or those of every companion in
  // turns where the columns of one do not begin at a multiple of a power of two: sums of offsets have no carries (ThreadOffsets).
  static constexpr bool kTakesTurns = (kColumnsDKV & (kColumnsDKV - 1)) != 0;
  static constexpr int kColumnStepDKV = kMmaK * (kTakesTurns ? kCompanions : 1);
  CUTE_HOST_DEVICE static constexpr int first_column_dKV(int companion) {
    return companion * (kTakesTurns ? kMmaK : kColumnsDKV);
  }
  // The n-th tile of 8 columns, counted from the first one.
  CUTE_HOST_DEVICE static constexpr int column_dKV(int n) {
    return n / 2 * kColumnStepDKV + n % 2 * (kMmaK / 2);
  }
  // dQ: a warp has 32 queries, and a share of the columns. Where there is none for all, the last warps have fewer, or none.
  static constexpr int kWarpQueries = 32;
  static constexpr int kQueryTiles = kWarpQueries / kMmaM;
  static constexpr int kQueryWarps = kBlockM / kWarpQueries;
  static constexpr int kColumnsDQ = pyflash::ceil_div(kHeadDim * kQueryWarps, kNWarps * 32) * 32;
  static constexpr bool kUnevenDQ = kColumnsDQ * kNWarps != kHeadDim * kQueryWarps;
  static constexpr int kSlab =  // that it computes at a time
      kColumnsDQ % 64 == 0 && kHeadDim % 64 == 0 ? 64 : 32;
  static_assert(kWarpKeys == 16 || kWarpKeys == 32);
  static_assert(kNWarps % kKeyWarps == 0 && kNWarps % kQueryWarps == 0);
  static_assert(kBlockN % kWarpKeys == 0 && kBlockM % kWarpQueries == 0);
  static_assert(kColumnsDKV % kMmaK == 0 && kHeadDim % kSlab == 0);
  static_assert(kQueriesOfWarp % kMmaK == 0);
  static_assert(1 <= kStages && kStages <= 3);
  // With three stages blocks are loaded two ahead, and dS and P have two places: then every warp waits for the others once a block.
  static constexpr bool kOneBarrier = kStages == 3;
  static constexpr int kPlaces = kOneBarrier ? 2 : 1;

  // Queries whose rows of the workspace are whole pieces: blocks are visited by as many.
  static constexpr int kWorkspaceBlock = larger(kBlockM, kQueriesOfPiece);

  using Element =
      std::conditional_t<kConfig.dtype == DType::FP16, cutlass::half_t, cutlass::bfloat16_t>;
  using MmaAtom = std::conditional_t<kConfig.dtype == DType::FP16, SM80_16x8x16_F32F16F16F32_TN,
                                     SM80_16x8x16_F32BF16BF16F32_TN>;

  // Registers of a thread, as in the forward: accumulators hold 4 fp32 of each 16 x 8 tile, operands pairs of elements.
  template <int kRegisters, int kTilesMN, int kTilesK>
  using Fragment = Layout<Shape<Int<kRegisters>, Int<kTilesMN>, Int<kTilesK>>,
                          Stride<_1, Int<kRegisters>, Int<kRegisters * kTilesMN>>>;
  template <int kTiles, int kColumns>
  using Accumulator = Fragment<4, kTiles, kColumns / 8>;  // (MMA,MMA_M,MMA_N)
  template <int kTiles, int kExtent>
  using OperandA = Fragment<4, kTiles, kExtent / kMmaK>;  // (MMA,MMA_M,MMA_K)
  template <int kColumns, int kExtent>
  using OperandB = Fragment<2, kColumns / 8, kExtent / kMmaK>;  // (MMA,MMA_N,MMA_K)

  // Shared memory: row-major blocks in swizzled atoms of 8 rows, down the rows first.
  template <int kColumns>
  static constexpr int kAtomColumns = kColumns % 64 == 0 ? 64 : 32;
  template <int kColumns>
  using SmemSwizzle = Swizzle<kAtomColumns<kColumns> == 64 ? 3 : 2, 3, 3>;
  template <int kRows, int kColumns>
  using AtomsOfRows = Layout<Shape<_8, Int<kRows / 8>>,
                             Stride<Int<kAtomColumns<kColumns>>, Int<8 * kAtomColumns<kColumns>>>>;
  template <int kRows, int kColumns>
  using AtomsOfColumns =
      Layout<Shape<Int<kAtomColumns<kColumns>>, Int<kColumns / kAtomColumns<kColumns>>>,
             Stride<_1, Int<kRows * kAtomColumns<kColumns>>>>;
  template <int kColumns, class... Modes>
  using Swizzled = ComposedLayout<SmemSwizzle<kColumns>, _0, decltype(make_layout(Modes{}...))>;
  template <int kRows, int kColumns>
  using Block = Swizzled<kColumns, AtomsOfRows<kRows, kColumns>, AtomsOfColumns<kRows, kColumns>>;
  template <int kRows, int kColumns>
  using BlockT = Swizzled<kColumns, AtomsOfColumns<kRows, kColumns>, AtomsOfRows<kRows, kColumns>>;
  template <int kRows>
  using SmemLayout = Block<kRows, kHeadDim>;
  using SmemLayoutQ = SmemLayout<kBlockM>;         // (kBlockM,kHeadDim); dO too
  using SmemLayoutQt = BlockT<kBlockM, kHeadDim>;  // (kHeadDim,kBlockM); dO^T too
  using SmemLayoutKV = SmemLayout<kBlockN>;        // (kBlockN,kHeadDim)
  using SmemLayoutKt = BlockT<kBlockN, kHeadDim>;  // (kHeadDim,kBlockN)
  using SmemLayoutDSt = Block<kBlockN, kBlockM>;   // (kBlockN,kBlockM); P^T too
  using SmemLayoutDS = BlockT<kBlockN, kBlockM>;   // (kBlockM,kBlockN)
  using SmemLayoutO = SmemLayoutKV;                // of dK and dV, which leave through V and K

  struct SharedStorage {
    alignas(1024) Element k[kBlockN * kHeadDim];  // then dK
    alignas(1024) Element v[kBlockN * kHeadDim];  // then dV
    alignas(1024) Element q[kStages][kBlockM * kHeadDim];
    alignas(1024) Element grad_o[kStages][kBlockM * kHeadDim];
    alignas(1024) Element ds[kPlaces][kBlockN * kBlockM];
    alignas(1024) Element p[kPlaces][kCompanions == 1 ? 1 : kBlockN * kBlockM];
    alignas(16) float lse2[kStages][kBlockM];
    alignas(16) float minus_delta[kStages][kBlockM];
  };

  // Global <-> shared: 16 bytes a thread, kSwizzleColumns columns a row of threads.
  using Vector = uint128_t;
  static constexpr int kVectorElements = sizeof(Vector) / sizeof(Element);
  static constexpr int kSwizzleColumns = kAtomColumns<kHeadDim>;
  static constexpr int kThreadsPerRow = kSwizzleColumns / kVectorElements;
  static constexpr int kCopyRows = kNThreads / kThreadsPerRow;
  static_assert(kBlockM % kCopyRows == 0 && kBlockN % kCopyRows == 0);
  template <int kRows>
  using CopySteps = Shape<Int<kRows / kCopyRows>, Int<kHeadDim / kSwizzleColumns>>;
  using VectorCopyAtom = UniversalCopy<Vector>;
  using AsyncCopyAtom = SM80_CP_ASYNC_CACHEGLOBAL<Vector>;
  using AsyncCopyAtomOrZeros = SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<Vector>;
  // Numbers of queries, four at a time.
  static constexpr int kNumberVectors = kBlockM * int(sizeof(float)) / int(sizeof(Vector));
  static_assert(2 * kNumberVectors <= kNThreads);

  // Shared -> registers, by ldmatrix: lane -> row + 16 * column of a tile of 16 x 16.
  using SmemCopyAtom = SM75_U32x4_LDSM_N;
  using SmemCopyAtomTransposed = SM75_U16x8_LDSM_T;
  using SmemCopyAtomO = UniversalCopy<uint32_t>;
  using LanesA = Layout<Shape<_16, _2>, Stride<_1, Int<16 * 8>>>;           // (M,K)
  using LanesAt = Layout<Shape<_8, _2, _2>, Stride<_16, _8, Int<16 * 8>>>;  // (M,K)
  using LanesB = Layout<Shape<_8, _2, _2>, Stride<_1, Int<16 * 8>, _8>>;    // (N,K)
  using LanesBt = Layout<Shape<_16, _2>, Stride<_16, _8>>;                  // (N,K)
  using AccLanes = Layout<Shape<_4, _8>, Stride<_32, _1>>;                  // of an accumulator
};

}  // namespace pyflash::sm80::backward
