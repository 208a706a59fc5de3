// Expands the configuration key to compile-time types: tile shapes, shared-memory layouts, copy and MMA atoms. The only
// place that speaks both languages: the paper's (B_r, B_c, d_head) above, CuTe's (kBlockM, kBlockN, kHeadDim) below.
#pragma once

#include <type_traits>

#include <cutlass/numeric_types.h>
#include <cute/tensor.hpp>

#include "cute_kernels/config.h"

namespace pyflash::sm80 {

using namespace cute;

template <FlashForwardKernelConfig kConfig>
struct KernelTraits {
  static constexpr int kBlockM = kConfig.B_r;
  static constexpr int kBlockN = kConfig.B_c;
  static constexpr int kHeadDim = kConfig.d_head;
  static constexpr int kNWarps = kConfig.n_warps;
  static constexpr bool kAsyncCopy = kConfig.async_copy;
  static constexpr bool kEagerLoadBlocks = kConfig.eager_load_blocks;
  static constexpr bool kDoubleBuffer = kConfig.mma_double_buffer_loads;
  static constexpr bool kOptimizedSoftmax = kConfig.optimized_softmax;
  static constexpr int kKVStages = kConfig.kv_stages;

  static constexpr int kMmaM = 16;  // rows of one warp's MMA atom
  static constexpr int kMmaK = 16;  // columns of one MMA step: two fragments of 8
  static_assert(kBlockM % (kMmaM * kNWarps) == 0, "each warp owns a multiple of 16 rows");
  static_assert(kBlockN % 16 == 0 && kHeadDim % 32 == 0);
  static_assert(kAsyncCopy || !kEagerLoadBlocks, "eager loads need cp.async");
  static_assert(kKVStages == 1 || (kKVStages > 1 && kEagerLoadBlocks), "stages are loaded eagerly");

  using Element =
      std::conditional_t<kConfig.dtype == DType::FP16, cutlass::half_t, cutlass::bfloat16_t>;

  // GEMMs. A warp owns kBlockM / kNWarps whole rows, so that softmax never leaves a quad of lanes.
  using MmaAtom = std::conditional_t<kConfig.dtype == DType::FP16, SM80_16x8x16_F32F16F16F32_TN,
                                     SM80_16x8x16_F32BF16BF16F32_TN>;
  using TiledMma = TiledMMA<MMA_Atom<MmaAtom>, Layout<Shape<Int<kNWarps>, _1, _1>>,
                            Tile<Int<kMmaM * kNWarps>, _16, Int<kMmaK>>>;
  static constexpr int kNThreads = size(TiledMma{});
  static constexpr int kRowsPerThread = 2 * kBlockM / (kMmaM * kNWarps);

  // MMA steps for which operands are loaded at a time; the whole K dimension where the config says 0. Q is either resident
  // in registers for the whole kernel or loaded stage by stage along with K.
  static constexpr bool kQInRegisters = kConfig.Q_mma_load_K_tiles == 0;
  static constexpr int stage_steps(int load_K_tiles, int extent) {
    return load_K_tiles == 0 ? extent / kMmaK : load_K_tiles * 8 / kMmaK;
  }
  static constexpr int kStageStepsQK = stage_steps(kConfig.K_mma_load_K_tiles, kHeadDim);
  static constexpr int kStageStepsPV = stage_steps(kConfig.V_mma_load_K_tiles, kBlockN);
  static_assert(kHeadDim / kMmaK % kStageStepsQK == 0 && kBlockN / kMmaK % kStageStepsPV == 0);

  // Shared memory: row-major blocks, plain or with the 16-byte chunks of 8 consecutive rows permuted, so that ldmatrix
  // finds 8 rows of one chunk column in 32 different banks.
  static constexpr int kSwizzleColumns = kHeadDim % 64 == 0 ? 64 : 32;
  using SwizzleAtom = decltype(composition(
      Swizzle<kSwizzleColumns == 64 ? 3 : 2, 3, 3>{},
      Layout<Shape<_8, Int<kSwizzleColumns>>, Stride<Int<kSwizzleColumns>, _1>>{}));
  template <int kRows>
  static constexpr auto smem_layout() {
    using BlockShape = Shape<Int<kRows>, Int<kHeadDim>>;
    if constexpr (kConfig.swizzled) {
      return tile_to_shape(SwizzleAtom{}, BlockShape{});
    } else {
      return Layout<BlockShape, Stride<Int<kHeadDim>, _1>>{};
    }
  }
  using SmemLayoutQ = decltype(smem_layout<kBlockM>());   // (kBlockM,kHeadDim)
  using SmemLayoutKV = decltype(smem_layout<kBlockN>());  // (kBlockN,kHeadDim)
  using SmemLayoutVt = decltype(composition(              // (kHeadDim,kBlockN)
      SmemLayoutKV{}, Layout<Shape<Int<kHeadDim>, Int<kBlockN>>, Stride<Int<kBlockN>, _1>>{}));
  using SmemLayoutO = SmemLayoutQ;

  struct SharedStorage {
    union {  // O leaves through the space of Q
      alignas(1024) Element q[cosize_v<SmemLayoutQ>];
      alignas(1024) Element o[cosize_v<SmemLayoutO>];
    };
    alignas(1024) Element k[kKVStages][cosize_v<SmemLayoutKV>];
    alignas(1024) Element v[kKVStages][cosize_v<SmemLayoutKV>];
  };
  static_assert(sizeof(SharedStorage{}.k[0]) % 1024 == 0, "a swizzle atom begins every stage");

  // Global <-> shared: 16 bytes a thread, kSwizzleColumns columns a row of threads.
  using Vector = uint128_t;
  static constexpr int kVectorElements = sizeof(Vector) / sizeof(Element);
  static constexpr int kThreadsPerRow = kSwizzleColumns / kVectorElements;
  static_assert(kNThreads % kThreadsPerRow == 0);
  using G2SThreads = Layout<Shape<Int<kNThreads / kThreadsPerRow>, Int<kThreadsPerRow>>,
                            Stride<Int<kThreadsPerRow>, _1>>;
  template <class CopyAtom>
  using TiledCopyVectors = decltype(make_tiled_copy(CopyAtom{}, G2SThreads{},
                                                    Layout<Shape<_1, Int<kVectorElements>>>{}));
  using VectorCopyAtom = Copy_Atom<UniversalCopy<Vector>, Element>;
  using AsyncCopyAtom = Copy_Atom<SM80_CP_ASYNC_CACHEGLOBAL<Vector>, Element>;
  using AsyncCopyAtomOrZeros = Copy_Atom<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<Vector>, Element>;
  using TiledCopyG2S =
      TiledCopyVectors<std::conditional_t<kAsyncCopy, AsyncCopyAtom, VectorCopyAtom>>;

  // Shared -> registers: ldmatrix for Q and K, transposing for V. Registers -> shared: two elements a thread.
  using SmemCopyAtom = Copy_Atom<SM75_U32x4_LDSM_N, Element>;
  using SmemCopyAtomTransposed = Copy_Atom<SM75_U16x8_LDSM_T, Element>;
  using SmemCopyAtomO = Copy_Atom<UniversalCopy<uint32_t>, Element>;
};

}  // namespace pyflash::sm80
