// Expands the configuration key to compile-time types: tile shapes, shared-memory layouts, MMA atoms, warpgroup roles. The
// only place that speaks both languages: the paper's (B_r, B_c, d_head) above, CuTe's (kBlockM, kBlockN, kHeadDim) below.
//
// Layouts are spelled out, because the compiler takes seconds to compute them anew for each kernel. That they are what CuTe's
// tile_to_shape and TiledMMA compute of the same atoms, tiled.h asserts.
#pragma once

#include <cstddef>
#include <type_traits>

#include <cutlass/numeric_types.h>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

#include "cute_kernels/config.h"
#include "cute_kernels/generated/mma_sm90.h"
#include "cute_kernels/sm90/forward/shape.h"
#include "cute_kernels/sm90/pipeline.h"

namespace pyflash::sm90 {

using namespace cute;

template <FlashForwardSm90Config kConfig>
struct KernelTraits {
  static constexpr int kBlockM = kConfig.B_r;
  static constexpr int kBlockN = kConfig.B_c;
  static constexpr int kHeadDim = kConfig.d_head;
  static constexpr int kNConsumers = kConfig.n_consumers;
  static constexpr int kStages = kConfig.stages;
  static constexpr bool kOverlap = kConfig.overlap;
  static constexpr bool kPingpong = kConfig.pingpong;
  static constexpr bool kPersistent = kConfig.persistent;
  static constexpr bool kPackGqa = kConfig.pack_gqa;
  static constexpr bool kRescaleThreshold = kConfig.rescale_threshold;

  static constexpr int kMmaM = sm90::kMmaM;
  static_assert(kBlockM == kMmaM * kNConsumers, "each consumer warpgroup owns 64 rows");
  static_assert(kBlockN % 16 == 0 && kBlockN <= 256 && kHeadDim % 32 == 0 && kHeadDim <= 256);
  static_assert(!kPingpong || kNConsumers > 1, "turns are taken between consumer warpgroups");

  using Element =
      std::conditional_t<kConfig.dtype == DType::FP16, cutlass::half_t, cutlass::bfloat16_t>;

  // Roles: warpgroup 0 loads, with a warp each for Q, K and V; the others compute. Registers are moved to the latter. With
  // one of them two CTAs share an SM. The budgets are those of pyflash/config/sm90_forward/resources.py.
  static constexpr int kNThreads = n_threads(kConfig);
  static_assert(kNConsumers <= 4, "budgets and named barriers are for four at most");
  static constexpr int kCtasPerSm = kNConsumers == 1 ? 2 : 1;
  static constexpr int kProducerRegisters = kNConsumers >= 3 ? 32 : 24;
  static constexpr int kConsumerRegisters = kNConsumers == 4   ? 112
                                            : kNConsumers == 3 ? 160
                                            : kNConsumers == 2 ? 240
                                                               : 232;
  // Whether there are enough for S and a tile of O on its way out together.
  static constexpr bool kStoresDuringQK = kNConsumers < 3;
  static constexpr int kNConsumerWarps = kNConsumers * kWarpgroup / 32;

  // GEMMs of one warpgroup: Q, K and V, row-major as it came, from shared memory, P from registers.
  static constexpr int kMmaK = 16;
  using MmaQK =
      MMA_Atom<typename MmaAtoms<Element, kBlockN>::template SS<GMMA::Major::K, GMMA::Major::K>>;
  using MmaPV =
      MMA_Atom<typename MmaAtoms<Element, kHeadDim>::template RS<GMMA::Major::K, GMMA::Major::MN>>;

  // Shared memory: slabs of 64 or 32 columns, 128 or 64 bytes a row, their 16-byte chunks permuted among 8 rows as TMA and
  // the MMAs agree to. A slab is a TMA box.
  static constexpr int kSlab = slab_columns(kConfig);
  static constexpr int kSlabs = kHeadDim / kSlab;
  template <class Plain>
  using Swizzled =
      ComposedLayout<std::conditional_t<kSlab == 64, Swizzle<3, 4, 3>, Swizzle<2, 4, 3>>,
                     smem_ptr_flag_bits<16>, Plain>;
  // Row by row in a slab; the strides of 8 rows.
  template <int kRows>
  using RowsOfSlab = Shape<_8, Int<kRows / 8>>;
  using RowStrides = Stride<Int<kSlab>, Int<8 * kSlab>>;
  template <int kRows, int kTiles>
  using SmemLayout =
      Swizzled<Layout<Shape<RowsOfSlab<kRows>, Shape<Int<kSlab>, Int<kSlabs>>, Int<kTiles>>,
                      Stride<RowStrides, Stride<_1, Int<kRows * kSlab>>, Int<kRows * kHeadDim>>>>;
  using SmemLayoutQ = SmemLayout<kMmaM, kNConsumers>;  // (kMmaM,kHeadDim,kNConsumers)
  using SmemLayoutKV = SmemLayout<kBlockN, kStages>;   // (kBlockN,kHeadDim,kStages)
  using SmemLayoutVt = Swizzled<Layout<                // (kHeadDim,kBlockN,kStages)
      Shape<Shape<Int<kSlab>, Int<kSlabs>>, RowsOfSlab<kBlockN>, Int<kStages>>,
      Stride<Stride<_1, Int<kBlockN * kSlab>>, RowStrides, Int<kBlockN * kHeadDim>>>>;

  // Operands in shared memory are descriptors, whose layouts are the steps from one MMA's tile to others, (1,1,MMA_K) and
  // stages. In units of 16 bytes.
  static constexpr int kUnit = 8;  // elements
  static constexpr int kEightRows = 8 * kSlab / kUnit;
  static constexpr auto kDescriptorLayout =
      kSlab == 64 ? SM90::GMMA::LayoutType::B128 : SM90::GMMA::LayoutType::B64;
  using StepsInRow = Shape<Int<kSlab / kMmaK>, Int<kSlabs>>;
  template <int kRows>
  using StepsOfRow = Stride<Int<kMmaK / kUnit>, Int<kRows * kSlab / kUnit>>;
  using StageStep = Int<kBlockN * kHeadDim / kUnit>;
  struct OperandQ {
    using Steps = Layout<Shape<_1, _1, StepsInRow>, Stride<_0, _0, StepsOfRow<kMmaM>>>;
    static constexpr int kLeadingStep = 1;  // it has no meaning
  };
  struct OperandK {
    using Steps = Layout<Shape<_1, _1, StepsInRow, Int<kStages>>,
                         Stride<_0, _0, StepsOfRow<kBlockN>, StageStep>>;
    static constexpr int kLeadingStep = 1;
  };
  struct OperandV {
    using Steps = Layout<Shape<_1, _1, Int<kBlockN / kMmaK>, Int<kStages>>,
                         Stride<_0, _0, Int<kMmaK * kSlab / kUnit>, StageStep>>;
    static constexpr int kLeadingStep = kSlabs > 1 ? kBlockN * kSlab / kUnit : 0;  // of slabs
  };

  // A thread's values: of P, ((2,2,2),1,MMA_K), and of accumulators of 64 rows, ((2,2,V),1,1): two neighbours, of two rows 8
  // apart, in every 8 columns; and where these are, from the first.
  using FragmentP = Layout<Shape<Shape<_2, _2, _2>, _1, Int<kBlockN / kMmaK>>,
                           Stride<Stride<_1, _2, _4>, _0, _8>>;
  template <int kColumns>
  using AccShape = Shape<Shape<_2, _2, Int<kColumns / 8>>, _1, _1>;
  template <int kColumns>
  using Accumulator = Layout<AccShape<kColumns>, Stride<Stride<_1, _2, _4>, _0, _0>>;
  template <int kColumns>
  using AccCoords = Layout<AccShape<kColumns>,
                           Stride<Stride<E<1>, ScaledBasis<_8, 0>, ScaledBasis<_8, 1>>, _0, _0>>;
  // The first value's (row, column) of a thread of the warpgroup.
  CUTE_HOST_DEVICE static constexpr auto first_coord(int thread) {
    return make_coord(thread / 32 * 16 + thread % 32 / 4, thread % 4 * 2);
  }

  struct Tiled;  // the same by tile_to_shape and TiledMMA: tiled.h

  // A warp's 16 rows of O on their way out, a slab at a time. Where there is no next tile, in place of Q.
  static constexpr int kWarpRows = 16;
  using SmemLayoutO = Swizzled<  // (kWarpRows,kSlab)
      Layout<Shape<RowsOfSlab<kWarpRows>, Int<kSlab>>, Stride<RowStrides, _1>>>;
  static constexpr int kEpilogue = kPersistent ? kMmaM * kSlab : 0;  // elements, per warpgroup

  // Splits of a tile that a cluster of CTAs merges through shared memory: each leaves its part, O and lse in fp32, where K
  // and V were. Rows are padded so that a store of the accumulator has no bank conflicts.
  using SmemLayoutPart =
      Layout<Shape<Int<kMmaM>, Int<kHeadDim>>, Stride<Int<kHeadDim + kPartPadding>, _1>>;
  static constexpr int kMaxCluster = max_cluster(kConfig);
  static_assert(kMaxCluster == 1 || (cosize_v<SmemLayoutPart> + kMmaM) * sizeof(float) <=
                                        2 * cosize_v<SmemLayoutKV> * sizeof(Element));

  struct SharedStorage {
    alignas(1024) Element q[cosize_v<SmemLayoutQ> + kNConsumers * kEpilogue];
    alignas(1024) Element k[cosize_v<SmemLayoutKV>];
    alignas(1024) Element v[cosize_v<SmemLayoutKV>];
    Pipeline<1> pipeline_Q[kNConsumers];  // each warpgroup's rows
    Pipeline<kStages> pipeline_K;
    Pipeline<kStages> pipeline_V;

    // Of a warpgroup: a SmemLayoutO for each warp.
    CUTE_DEVICE Element* epilogue(int warpgroup) {
      return kPersistent ? q + cosize_v<SmemLayoutQ> + warpgroup * kEpilogue
                         : q + warpgroup * kMmaM * kHeadDim;
    }
  };
  static_assert(sizeof(SharedStorage) <= 227 * 1024);
  static_assert(offsetof(SharedStorage, v) == offsetof(SharedStorage, k) + sizeof(SharedStorage::k),
                "a part lies where K and V were");
};

}  // namespace pyflash::sm90
