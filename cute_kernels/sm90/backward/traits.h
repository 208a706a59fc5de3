// Expands a backward config to compile-time types: tile shapes, shared memory, MMA atoms and operands, warpgroup roles.
#pragma once

#include <cstddef>
#include <type_traits>

#include <cutlass/numeric_types.h>

#include "cute_kernels/generated/mma_sm90.h"
#include "cute_kernels/sm90/backward/dq_turns.h"
#include "cute_kernels/sm90/backward/shape.h"
#include "cute_kernels/sm90/backward/sums_count.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/gemm.h"
#include "cute_kernels/sm90/pipeline.h"
#include "cute_kernels/sm90/shape.h"
#include "cute_kernels/sm90/slabs.h"

namespace pyflash::sm90::backward {

using namespace cute;

// In shared memory where CTAs have parts of the columns.
struct PartsOfColumns {
  Pipeline<1> pipeline_Q;    // the other columns of a block
  Pipeline<1> pipeline_dO;   // the same
  device::Mbarrier ds_read;  // every consumer warp has read dS of a block

  // By one thread, before a fence and a barrier.
  CUTE_DEVICE void init(int n_consumer_warps) {
    pipeline_Q.init(n_consumer_warps);
    pipeline_dO.init(n_consumer_warps);
    device::mbarrier_init(ds_read, n_consumer_warps);
  }
};
struct NoParts {};

template <FlashBackwardSm90Config kConfig>
struct KernelTraits {
  static constexpr int kBlockM = kConfig.B_r;
  static constexpr int kBlockN = kConfig.B_c;
  static constexpr int kHeadDim = kConfig.d_head;
  static constexpr int kNConsumers = kConfig.n_consumers;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kStagesDO = stages_of_dO(kConfig);
  static constexpr bool kOverlap = kConfig.overlap;
  static constexpr bool kEarlyDP = kConfig.early_dP;
  static constexpr int kMmaM = sm90::kMmaM;
  static constexpr bool kDQByRed = kConfig.dQ_by_red;
  static constexpr bool kWide = is_wide(kConfig);
  static constexpr bool kSharesKeys = shares_keys(kConfig);
  // CTAs of a tile, and the columns of dQ, dK and dV that are this one's. In shared memory they come first, of K, V, Q and dO.
  static constexpr int kColumnParts = column_parts(kConfig);
  static constexpr int kOwnColumns = columns_of_cta(kConfig);
  static constexpr int kOtherColumns = kHeadDim - kOwnColumns;
  static constexpr int kMaxCluster = max_cluster(kConfig);
  static constexpr int kColumnsDKV = columns_dKV(kConfig);
  using PieceDQ = backward::PieceDQ<kConfig.d_head>;
  static constexpr int kColumnsDQ = PieceDQ::kColumns;
  // Whether dS is an operand of dK from shared memory: the overlapped loop has registers for it where dK, dV, S and dP leave
  // them.
  static constexpr bool kDKFromSmem = kOverlap && kColumnsDKV + kBlockM > 160;
  static_assert(kBlockN == (kSharesKeys ? kMmaM : kMmaM * kNConsumers),
                "each consumer warpgroup has 64 keys");
  static_assert(kHeadDim == 64 || kHeadDim == 96 || kHeadDim == 128 || kHeadDim == 192 ||
                kHeadDim == 256);
  static_assert(kBlockM * kOwnColumns == kNConsumers * kMmaM * kColumnsDQ);
  static_assert((kStagesDO == kStages && kColumnParts == 1) || (!kOverlap && !kEarlyDP));
  static_assert(kColumnParts == 1 || kStagesDO == 1,
                "one position is that of dO and of other columns");
  static_assert(!kEarlyDP || !kOverlap);

  using Element =
      std::conditional_t<kConfig.dtype == DType::FP16, cutlass::half_t, cutlass::bfloat16_t>;

  // Roles: warpgroup 0 loads, with a warp each for Q and dO; the others compute.
  static constexpr int kNThreads = n_threads(kConfig);
  static constexpr int kWarpsPerConsumer = kWarpgroup / 32;
  static constexpr int kNConsumerWarps = kNConsumers * kWarpsPerConsumer;
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;
  static_assert(kNConsumers == 2, "registers are for two consumers");

  // GEMMs of one warpgroup. Keys are the rows of S^T and dP^T, so that P^T and dS^T are operands of dV and dK as they are.
  template <int kN>
  using Atoms = MmaAtoms<Element, kN>;
  using MmaS = MMA_Traits<typename Atoms<kBlockM>::template SS<GMMA::Major::K, GMMA::Major::K>>;
  using MmaDV =
      MMA_Traits<typename Atoms<kColumnsDKV>::template RS<GMMA::Major::K, GMMA::Major::MN>>;
  using MmaDK = std::conditional_t<
      kDKFromSmem,
      MMA_Traits<typename Atoms<kColumnsDKV>::template SS<GMMA::Major::K, GMMA::Major::MN>>, MmaDV>;
  using MmaDQ =
      MMA_Traits<typename Atoms<kColumnsDQ>::template SS<GMMA::Major::MN, GMMA::Major::MN>>;

  // Shared memory.
  static constexpr int kSlab = slab_of_others(kConfig);
  static constexpr int kSlabK = slab_of_K(kConfig);
  using Slabs = sm90::Slabs<kSlab>;
  using SlabsK = sm90::Slabs<kSlabK>;
  using SlabsDS = sm90::Slabs<kSlabDS>;
  using SmemLayoutQ = typename Slabs::template Rows<kBlockM, kOwnColumns, kStages>;
  using SmemLayoutDO = typename Slabs::template Rows<kBlockM, kOwnColumns, kStagesDO>;
  // Of the columns of Q or dO that other CTAs of the tile have.
  using SmemLayoutOthers = typename Slabs::template Rows<kBlockM, kOtherColumns>;
  static constexpr int kOthers = kBlockM * kOtherColumns;  // elements
  using SmemLayoutK = typename SlabsK::template Rows<kBlockN, kHeadDim>;
  using SmemLayoutV = typename Slabs::template Rows<kBlockN, kHeadDim>;
  static constexpr int kStagesDS = kColumnParts > 1 ? 1 : 2;
  using SmemLayoutDSt = typename SlabsDS::template Rows<kBlockN, kBlockM, kStagesDS>;

  // Operands in shared memory.
  using OperandK = typename SlabsK::template ByRows<kBlockN, kHeadDim>;                // A of S^T
  using OperandV = typename Slabs::template ByRows<kBlockN, kHeadDim>;                 // A of dP^T
  using OperandQ = typename Slabs::template ByRows<kBlockM, kOwnColumns, kStages>;     // B of S^T
  using OperandDO = typename Slabs::template ByRows<kBlockM, kOwnColumns, kStagesDO>;  // B of dP^T
  using OperandOthers = typename Slabs::template ByRows<kBlockM, kOtherColumns>;       // B of both
  using OperandQt =
      typename Slabs::template ByColumns<kBlockM, kOwnColumns, kColumnsDKV, kStages>;  // B of dK
  using OperandDOt =
      typename Slabs::template ByColumns<kBlockM, kOwnColumns, kColumnsDKV, kStagesDO>;  // B of dV
  // A of dK, if not in registers
  using OperandDSt = typename SlabsDS::template ByRows<kBlockN, kBlockM, kStagesDS>;
  using OperandDS =
      typename SlabsDS::template ByColumns<kBlockN, kBlockM, kSlabDS, kStagesDS>;        // A of dQ
  using OperandKt = typename SlabsK::template ByColumns<kBlockN, kHeadDim, kColumnsDQ>;  // B of dQ

  // The keys of a consumer in the tile, and its columns of dK and dV.
  CUTE_HOST_DEVICE static constexpr int first_key(int consumer) {
    return kSharesKeys ? 0 : consumer * kMmaM;
  }
  CUTE_HOST_DEVICE static constexpr int first_column_dKV(int consumer) {
    return kSharesKeys ? consumer * kColumnsDKV : 0;
  }

  // Each consumer computes a piece of the CTA's dQ: 64 queries and all columns, or some columns and all queries.
  static constexpr int kSlabsDS = kBlockM / kSlabDS;
  CUTE_HOST_DEVICE static constexpr int first_query_dQ(int consumer) {
    return kSlabsDS > 1 ? consumer * kMmaM : 0;
  }
  CUTE_HOST_DEVICE static constexpr int first_column_dQ(int consumer) {
    return kSlabsDS > 1 ? 0 : consumer * kColumnsDQ;
  }

  // Floats of a warp: of dQ, and in its place rows of dK and dV that leave.
  static constexpr int kWarpStaged =
      kDQByRed ? kWarpRows * kSlab * int(sizeof(Element) / 2) / 2 : PieceDQ::kWarpFloats;
  static_assert(kWarpStaged * sizeof(float) >= kWarpRows * kSlab * sizeof(Element));
  // Whether rows of dK and dV leave through the memory of dS, which all consumers have read then.
  static constexpr bool kRowsThroughDS = kColumnParts > 1;
  static_assert(!kRowsThroughDS || kDQByRed);
  static_assert(!kRowsThroughDS || kNConsumerWarps * kWarpStaged * sizeof(float) <=
                                       cosize_v<SmemLayoutDSt> * sizeof(Element));

  struct SharedStorage {
    alignas(1024) Element k[cosize_v<SmemLayoutK>];
    alignas(1024) Element v[cosize_v<SmemLayoutV>];
    alignas(1024) Element q[cosize_v<SmemLayoutQ> + kOthers];
    alignas(1024) Element grad_o[cosize_v<SmemLayoutDO> + kOthers];
    alignas(1024) Element ds[cosize_v<SmemLayoutDSt>];
    alignas(1024) float dq[kRowsThroughDS ? 1 : kNConsumerWarps * kWarpStaged];
    alignas(128) float zeros[kZeros];  // that recycled sums of dQ begin with
    alignas(128) float lse2[kStages * kBlockM];
    alignas(128) float minus_delta[kStagesDO * kBlockM];
    Pipeline<1> pipeline_K;
    Pipeline<1> pipeline_V;
    Pipeline<kStages> pipeline_Q;          // with lse2
    Pipeline<kStagesDO> pipeline_dO;       // with -delta
    device::Mbarrier ds_ready[kStagesDS];  // every consumer warp has stored dS
    DQTurns dq_turns[kNConsumers];         // of deterministic kernels
    SumsCount sums;                        // of the others
    std::conditional_t<(kColumnParts > 1), PartsOfColumns, NoParts> parts;

    CUTE_DEVICE Element* q_others() { return q + cosize_v<SmemLayoutQ>; }
    CUTE_DEVICE Element* grad_o_others() { return grad_o + cosize_v<SmemLayoutDO>; }
  };
  static_assert(sizeof(SharedStorage) <= kMostSmem);
};

}  // namespace pyflash::sm90::backward
