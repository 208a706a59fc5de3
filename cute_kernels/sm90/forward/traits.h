// Expands the configuration key to compile-time types: tile shapes, shared-memory layouts, MMA atoms, warpgroup roles. The
// only place that speaks both languages: the paper's (B_r, B_c, d_head) above, CuTe's (kBlockM, kBlockN, kHeadDim) below.
// That the layouts are what CuTe's tile_to_shape and TiledMMA compute of the same atoms, tiled.h asserts.
#pragma once

#include <cstddef>
#include <type_traits>

#include <cutlass/numeric_types.h>

#include "cute_kernels/config.h"
#include "cute_kernels/features.h"
#include "cute_kernels/generated/mma_sm90.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/forward/cta_share.h"
#include "cute_kernels/sm90/forward/shape.h"
#include "cute_kernels/sm90/gemm.h"
#include "cute_kernels/sm90/pipeline.h"
#include "cute_kernels/sm90/slabs.h"

namespace pyflash::sm90 {

using namespace cute;

template <FlashForwardSm90Config kConfig>
struct KernelTraits {
  static constexpr FlashForwardSm90Config kKernelConfig = kConfig;
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
  static constexpr bool kRowsDecide = kConfig.rows_decide;
  static_assert(!kRowsDecide || kRescaleThreshold, "else rows decide anyway");

  static constexpr int kMmaM = sm90::kMmaM;
  static_assert(kBlockM == kMmaM * kNConsumers, "each consumer warpgroup owns 64 rows");
  static_assert(kBlockN % 16 == 0 && kBlockN <= 256 && kHeadDim % 32 == 0 && kHeadDim <= 256);
  static_assert(!kPingpong || kNConsumers > 1, "turns are taken between consumer warpgroups");

  using Element =
      std::conditional_t<kConfig.dtype == DType::FP16, cutlass::half_t, cutlass::bfloat16_t>;

  // Roles: warpgroup 0 loads, with a warp each for Q, K and V; the others compute. Registers are moved to the latter. With
  // one of them two CTAs share an SM, or three; but one has it alone where O takes half of the registers, and needs none that the
  // loading threads have. The budgets are those of pyflash/config/sm90_forward/resources.py.
  static constexpr int kNThreads = n_threads(kConfig);
  static_assert(kNConsumers <= 4, "budgets and named barriers are for four at most");
  static_assert(!kConfig.three_ctas || kNConsumers == 1);
  static constexpr int kCtasPerSm = ctas_per_sm(kConfig);
  static constexpr bool kMovesRegisters = kNConsumers > 1 || kCtasPerSm > 1;
  static constexpr int kProducerRegisters = kNConsumers >= 3 ? 32 : 24;
  static constexpr int kConsumerRegisters = kNConsumers == 4     ? 112
                                            : kNConsumers == 3   ? 160
                                            : kNConsumers == 2   ? 240
                                            : kConfig.three_ctas ? 136
                                                                 : 232;
  // A thread that gathers rows of K and V, or finds the boxes of a share, takes some of the others', as far as they have any to
  // spare.
  static constexpr int kFinderRegisters = kNConsumers >= 3 ? 32 : 40;
  static constexpr int producer_registers(ForwardFeatures const& features) {
    bool const finds = features.gathered_kv || (features.paged_kv && features.equal_shares);
    return finds ? kFinderRegisters : kProducerRegisters;
  }
  static constexpr int consumer_registers(ForwardFeatures const& features) {
    constexpr int kUnit = 8;  // of setmaxnreg
    int const taken = producer_registers(features) - kProducerRegisters;
    return kConsumerRegisters - (taken + kNConsumers * kUnit - 1) / (kNConsumers * kUnit) * kUnit;
  }
  // Whether there are enough for S and a tile of O on its way out together.
  static constexpr bool kStoresDuringQK = kNConsumers < 3;
  static constexpr int kNConsumerWarps = kNConsumers * kWarpgroup / 32;

  // GEMMs of one warpgroup: Q, K and V, row-major as it came, from shared memory, P from registers.
  using MmaQK =
      MMA_Traits<typename MmaAtoms<Element, kBlockN>::template SS<GMMA::Major::K, GMMA::Major::K>>;
  using MmaPV = MMA_Traits<
      typename MmaAtoms<Element, kHeadDim>::template RS<GMMA::Major::K, GMMA::Major::MN>>;

  // Shared memory.
  static constexpr int kSlab = slab_columns(kConfig);
  using Slabs = sm90::Slabs<kSlab>;
  using SmemLayoutQ = typename Slabs::template Rows<kMmaM, kHeadDim, kNConsumers>;
  using SmemLayoutKV = typename Slabs::template Rows<kBlockN, kHeadDim, kStages>;
  using SmemLayoutVt = typename Slabs::template Columns<kBlockN, kHeadDim, kStages>;

  // Operands in shared memory.
  using OperandQ = typename Slabs::template ByRows<kMmaM, kHeadDim>;
  using OperandK = typename Slabs::template ByRows<kBlockN, kHeadDim, kStages>;
  using OperandV = typename Slabs::template ByColumns<kBlockN, kHeadDim, kHeadDim, kStages>;

  struct Tiled;  // the same by tile_to_shape and TiledMMA: tiled.h

  // A warp's 16 rows of O on their way out, a slab at a time. Where there is no next tile, in place of Q.
  using SmemLayoutO = typename Slabs::template OneSlab<kWarpRows>;
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
    CtaShare share;  // where keys are shared

    // A warpgroup's: a SmemLayoutO for each warp.
    CUTE_DEVICE Element* epilogue(int warpgroup) {
      return kPersistent ? q + cosize_v<SmemLayoutQ> + warpgroup * kEpilogue
                         : q + warpgroup * kMmaM * kHeadDim;
    }
  };
  static_assert(sizeof(SharedStorage) <= kMostSmem);
  static constexpr bool kFoldsSplits = folds_splits(kConfig);
  static constexpr int kFoldBytes = fold_bytes(kConfig);
  static_assert(!kFoldsSplits || sizeof(SharedStorage) + kFoldBytes <= kMostSmem);
  static_assert(offsetof(SharedStorage, v) == offsetof(SharedStorage, k) + sizeof(SharedStorage::k),
                "a part lies where K and V were");
};

}  // namespace pyflash::sm90
