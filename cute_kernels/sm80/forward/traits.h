// Expands the configuration key to compile-time types: tile shapes, shared-memory layouts, thread-value layouts, copy and
// MMA atoms. The only place that speaks both languages: the paper's (B_r, B_c, d_head) above, CuTe's (kBlockM, kBlockN,
// kHeadDim) below.
//
// NOTE: layouts are spelled out, not computed: the algebra that computes them took most of a kernel's compile time. That
// they are what CuTe's TiledMMA and TiledCopy compute of the same atoms, tiled.h asserts.
#pragma once

#include <type_traits>

#include <cutlass/numeric_types.h>
#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm80.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/swizzle_layout.hpp>
#include <cute/tensor_impl.hpp>

#include "cute_kernels/config.h"

namespace pyflash::sm80 {

using namespace cute;

template <FlashForwardKernelConfig kConfig>
struct KernelTraits {
  static constexpr int kBlockM = kConfig.B_r;
  static constexpr int kBlockN = kConfig.B_c;
  static constexpr int kHeadDim = kConfig.d_head;
  static constexpr int kNWarps = kConfig.n_warps;
  static constexpr int kNThreads = 32 * kNWarps;
  static constexpr bool kAsyncCopy = kConfig.async_copy;
  static constexpr bool kEagerLoadBlocks = kConfig.eager_load_blocks;
  static constexpr bool kSwizzled = kConfig.swizzled;
  static constexpr bool kDoubleBuffer = kConfig.mma_double_buffer_loads;
  static constexpr bool kOptimizedSoftmax = kConfig.optimized_softmax;
  static constexpr int kKVStages = kConfig.kv_stages;
  static constexpr bool kRescaleThreshold = kConfig.rescale_threshold;

  static constexpr int kMmaM = 16;  // rows of one warp's MMA atom
  static constexpr int kMmaK = 16;  // columns of one MMA step: two fragments of 8
  static_assert(kBlockM % (kMmaM * kNWarps) == 0, "each warp owns a multiple of 16 rows");
  static_assert(kBlockN % 16 == 0 && kHeadDim % 32 == 0);
  static_assert(kAsyncCopy || !kEagerLoadBlocks, "eager loads need cp.async");
  static_assert(kOptimizedSoftmax || !kRescaleThreshold,
                "the threshold is one of exponents to base 2");
  static_assert(kKVStages == 1 || (kKVStages > 1 && kEagerLoadBlocks), "stages are loaded eagerly");

  using Element =
      std::conditional_t<kConfig.dtype == DType::FP16, cutlass::half_t, cutlass::bfloat16_t>;

  // GEMMs. A warp owns kBlockM / kNWarps whole rows, so that softmax never leaves a quad of lanes.
  using MmaAtom = std::conditional_t<kConfig.dtype == DType::FP16, SM80_16x8x16_F32F16F16F32_TN,
                                     SM80_16x8x16_F32BF16BF16F32_TN>;
  static constexpr int kRowStep = kMmaM * kNWarps;  // of the CTA: a tile of 16 rows for each warp
  static constexpr int kTilesM = kBlockM / kRowStep;
  static constexpr int kRowsPerThread = 2 * kTilesM;

  // MMA steps for which operands are loaded at a time; the whole K dimension where the config says 0. Q is either resident
  // in registers for the whole kernel or loaded stage by stage along with K.
  static constexpr bool kQInRegisters = kConfig.Q_mma_load_K_tiles == 0;
  static constexpr int stage_steps(int load_K_tiles, int extent) {
    return load_K_tiles == 0 ? extent / kMmaK : load_K_tiles * 8 / kMmaK;
  }
  static constexpr int kStageStepsQK = stage_steps(kConfig.K_mma_load_K_tiles, kHeadDim);
  static constexpr int kStageStepsPV = stage_steps(kConfig.V_mma_load_K_tiles, kBlockN);
  static_assert(kHeadDim / kMmaK % kStageStepsQK == 0 && kBlockN / kMmaK % kStageStepsPV == 0);

  // Registers of a thread: accumulators hold 4 fp32 of each 16 x 8 tile, 2 rows by 2 columns; operands hold pairs of
  // elements, 4 of each 16 x 16 tile of A, 2 of each 8 x 16 tile of B.
  template <int kRegisters, int kTilesMN, int kTilesK>
  using Fragment = Layout<Shape<Int<kRegisters>, Int<kTilesMN>, Int<kTilesK>>,
                          Stride<_1, Int<kRegisters>, Int<kRegisters * kTilesMN>>>;
  using FragmentS = Fragment<4, kTilesM, kBlockN / 8>;            // (MMA,MMA_M,MMA_N)
  using FragmentO = Fragment<4, kTilesM, kHeadDim / 8>;           // (MMA,MMA_M,MMA_K)
  using FragmentQ = Fragment<4, kTilesM, kHeadDim / kMmaK>;       // (MMA,MMA_M,MMA_K)
  using FragmentK = Fragment<2, kBlockN / 8, kHeadDim / kMmaK>;   // (MMA,MMA_N,MMA_K)
  using FragmentVt = Fragment<2, kHeadDim / 8, kBlockN / kMmaK>;  // (MMA,MMA_K,MMA_N)
  // Where an accumulator's rows and columns are in the block, from the first of the thread on, and where that is.
  using AccRows = Layout<Shape<_2, Int<kTilesM>>, Stride<_8, Int<kRowStep>>>;
  using AccColumnsS = Layout<Shape<_2, Int<kBlockN / 8>>, Stride<_1, _8>>;
  using AccColumnsO = Layout<Shape<_2, Int<kHeadDim / 8>>, Stride<_1, _8>>;
  using AccLanes = Layout<Shape<_4, _8>, Stride<_32, _1>>;  // lane -> row + 16 * column

  // Shared memory: row-major blocks, plain or with the 16-byte chunks of 8 consecutive rows permuted, so that ldmatrix
  // finds 8 rows of one chunk column in 32 different banks.
  static constexpr int kSwizzleColumns = kHeadDim % 64 == 0 ? 64 : 32;
  using SmemSwizzle = Swizzle<kSwizzleColumns == 64 ? 3 : 2, 3, 3>;
  template <int kRows>
  using PlainLayout = Layout<Shape<Int<kRows>, Int<kHeadDim>>, Stride<Int<kHeadDim>, _1>>;
  // Atoms of 8 x kSwizzleColumns, down the rows first.
  template <int kRows>
  using AtomRows =
      Layout<Shape<_8, Int<kRows / 8>>, Stride<Int<kSwizzleColumns>, Int<8 * kSwizzleColumns>>>;
  template <int kRows>
  using AtomColumns = Layout<Shape<Int<kSwizzleColumns>, Int<kHeadDim / kSwizzleColumns>>,
                             Stride<_1, Int<kRows * kSwizzleColumns>>>;
  template <class... Modes>
  using Swizzled = ComposedLayout<SmemSwizzle, _0, decltype(make_layout(Modes{}...))>;
  template <int kRows>
  using SmemLayout = std::conditional_t<kSwizzled, Swizzled<AtomRows<kRows>, AtomColumns<kRows>>,
                                        PlainLayout<kRows>>;
  using SmemLayoutQ = SmemLayout<kBlockM>;   // (kBlockM,kHeadDim)
  using SmemLayoutKV = SmemLayout<kBlockN>;  // (kBlockN,kHeadDim)
  using SmemLayoutVt =                       // (kHeadDim,kBlockN)
      std::conditional_t<kSwizzled, Swizzled<AtomColumns<kBlockN>, AtomRows<kBlockN>>,
                         Layout<Shape<Int<kHeadDim>, Int<kBlockN>>, Stride<_1, Int<kHeadDim>>>>;
  using SmemLayoutO = SmemLayoutQ;

  struct SharedStorage {
    union {  // O leaves through the space of Q
      alignas(1024) Element q[kBlockM * kHeadDim];
      alignas(1024) Element o[kBlockM * kHeadDim];
    };
    alignas(1024) Element k[kKVStages][kBlockN * kHeadDim];
    alignas(1024) Element v[kKVStages][kBlockN * kHeadDim];
  };
  static_assert(sizeof(SharedStorage{}.k[0]) % 1024 == 0, "a swizzle atom begins every stage");

  // Global <-> shared: 16 bytes a thread, kSwizzleColumns columns a row of threads.
  using Vector = uint128_t;
  static constexpr int kVectorElements = sizeof(Vector) / sizeof(Element);
  static constexpr int kThreadsPerRow = kSwizzleColumns / kVectorElements;
  static_assert(kNThreads % kThreadsPerRow == 0);
  static constexpr int kCopyRows = kNThreads / kThreadsPerRow;  // of all threads at a time
  template <int kRows>
  using CopySteps = Shape<Int<kRows / kCopyRows>, Int<kHeadDim / kSwizzleColumns>>;
  using VectorCopyAtom = UniversalCopy<Vector>;
  using AsyncCopyAtom = SM80_CP_ASYNC_CACHEGLOBAL<Vector>;
  using AsyncCopyAtomOrZeros = SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<Vector>;

  // Shared -> registers: ldmatrix of 16 x 16 tiles for Q and K, transposing for V; a lane gives the address of 8 elements,
  // those at row + 16 * column of the tile. Registers -> shared: two elements a thread.
  using SmemCopyAtom = SM75_U32x4_LDSM_N;
  using SmemCopyAtomTransposed = SM75_U16x8_LDSM_T;
  using SmemCopyAtomO = UniversalCopy<uint32_t>;
  using LanesQ = Layout<Shape<_16, _2>, Stride<_1, Int<16 * 8>>>;         // of (M,K)
  using LanesK = Layout<Shape<_8, _2, _2>, Stride<_1, Int<16 * 8>, _8>>;  // of (N,K)
  using LanesVt = Layout<Shape<_16, _2>, Stride<_16, _8>>;                // of (N,K)

  struct Tiled;  // the same by TiledMMA and TiledCopy: tiled.h
};

}  // namespace pyflash::sm80
