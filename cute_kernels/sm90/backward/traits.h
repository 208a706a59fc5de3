// Expands a backward config to compile-time types: tile shapes, shared memory, MMA atoms and operands, warpgroup roles.
#pragma once

#include <cstddef>
#include <type_traits>

#include <cutlass/numeric_types.h>
#include <cute/tensor.hpp>

#include "cute_kernels/generated/mma_sm90.h"
#include "cute_kernels/sm90/backward/shape.h"
#include "cute_kernels/sm90/gemm.h"
#include "cute_kernels/sm90/pipeline.h"
#include "cute_kernels/sm90/shape.h"
#include "cute_kernels/sm90/slabs.h"

namespace pyflash::sm90::backward {

using namespace cute;

template <FlashBackwardSm90Config kConfig>
struct KernelTraits {
  static constexpr int kBlockM = kConfig.B_r;
  static constexpr int kBlockN = kConfig.B_c;
  static constexpr int kHeadDim = kConfig.d_head;
  static constexpr int kNConsumers = kConfig.n_consumers;
  static constexpr int kStages = kConfig.stages;
  static constexpr bool kOverlap = kConfig.overlap;
  static constexpr int kMmaM = sm90::kMmaM;
  static constexpr int kSlab = backward::kSlab;
  static_assert(kBlockN == kMmaM * kNConsumers, "each consumer warpgroup owns 64 keys");
  static_assert(kHeadDim == 64 || kHeadDim == 128);
  static_assert(kBlockM * kHeadDim == kNConsumers * kMmaM * kSlab,
                "each consumer computes 64 x 64 elements of dQ");

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
  using MmaS = MMA_Atom<typename Atoms<kBlockM>::template SS<GMMA::Major::K, GMMA::Major::K>>;
  using MmaDV = MMA_Atom<typename Atoms<kHeadDim>::template RS<GMMA::Major::K, GMMA::Major::MN>>;
  using MmaDK = std::conditional_t<
      kOverlap, MMA_Atom<typename Atoms<kHeadDim>::template SS<GMMA::Major::K, GMMA::Major::MN>>,
      MmaDV>;
  using MmaDQ = MMA_Atom<typename Atoms<kSlab>::template SS<GMMA::Major::MN, GMMA::Major::MN>>;

  // Shared memory.
  using Slabs = sm90::Slabs<kSlab>;
  using SmemLayoutQ = typename Slabs::template Rows<kBlockM, kHeadDim, kStages>;
  using SmemLayoutDO = SmemLayoutQ;
  using SmemLayoutKV = typename Slabs::template Rows<kBlockN, kHeadDim>;
  static constexpr int kStagesDS = 2;
  using SmemLayoutDSt = typename Slabs::template Rows<kBlockN, kBlockM, kStagesDS>;

  // Operands in shared memory.
  using OperandK = typename Slabs::template ByRows<kBlockN, kHeadDim>;  // A of S^T; V, of dP^T
  using OperandQ = typename Slabs::template ByRows<kBlockM, kHeadDim, kStages>;  // B; dO too
  // B of dK; dO, of dV
  using OperandQt = typename Slabs::template ByColumns<kBlockM, kHeadDim, kHeadDim, kStages>;
  // A of dK, if not in registers
  using OperandDSt = typename Slabs::template ByRows<kBlockN, kBlockM, kStagesDS>;
  using OperandDS =
      typename Slabs::template ByColumns<kBlockN, kBlockM, kSlab, kStagesDS>;      // A of dQ
  using OperandKt = typename Slabs::template ByColumns<kBlockN, kHeadDim, kSlab>;  // B of dQ

  // The 64 x 64 elements of dQ that a consumer computes: 64 queries and all columns, or 64 columns and all queries.
  static constexpr int kSlabsDS = kBlockM / kSlab;
  // So that of consumer i is the i-th piece of the sums.
  CUTE_HOST_DEVICE static constexpr int first_query_dQ(int consumer) {
    return kSlabsDS > 1 ? consumer * kMmaM : 0;
  }
  CUTE_HOST_DEVICE static constexpr int first_column_dQ(int consumer) {
    return kSlabsDS > 1 ? 0 : consumer * kSlab;
  }

  static constexpr int kBlockDQ = kBlockM * kHeadDim;
  // Rows of dK and dV leave in place of a warp's dQ.
  static_assert(kWarpDQ * sizeof(float) >= kWarpRows * kSlab * sizeof(Element));

  struct SharedStorage {
    alignas(1024) Element k[cosize_v<SmemLayoutKV>];
    alignas(1024) Element v[cosize_v<SmemLayoutKV>];
    alignas(1024) Element q[cosize_v<SmemLayoutQ>];
    alignas(1024) Element grad_o[cosize_v<SmemLayoutDO>];
    alignas(1024) Element ds[cosize_v<SmemLayoutDSt>];
    alignas(1024) float dq[kBlockDQ];
    alignas(128) float lse2[kStages * kBlockM];
    alignas(128) float delta[kStages * kBlockM];
    Pipeline<1> pipeline_K;
    Pipeline<1> pipeline_V;
    Pipeline<kStages> pipeline_Q;          // with lse2
    Pipeline<kStages> pipeline_dO;         // with delta
    device::Mbarrier ds_ready[kStagesDS];  // every consumer warp has stored dS
  };
  static_assert(sizeof(SharedStorage) <= 227 * 1024);
};

}  // namespace pyflash::sm90::backward
