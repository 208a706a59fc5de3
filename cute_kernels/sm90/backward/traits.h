// Expands a backward config to compile-time types: tile shapes, shared memory, MMA atoms and operands, warpgroup roles.
#pragma once

#include <cstddef>
#include <type_traits>

#include <cutlass/numeric_types.h>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

#include "cute_kernels/generated/mma_sm90.h"
#include "cute_kernels/sm90/backward/config.h"
#include "cute_kernels/sm90/pipeline.h"
#include "cute_kernels/sm90/shape.h"

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
  static constexpr int kMmaK = 16;
  static constexpr int kSlab = 64;  // columns of 128 bytes, which a swizzle and a TMA box have
  static constexpr int kSlabs = kHeadDim / kSlab;
  static_assert(kBlockN == kMmaM * kNConsumers, "each consumer warpgroup owns 64 keys");
  static_assert(kHeadDim == 64 || kHeadDim == 128);
  static_assert(kBlockM * kHeadDim == kNConsumers * kMmaM * kSlab,
                "each consumer computes 64 x 64 elements of dQ");

  using Element =
      std::conditional_t<kConfig.dtype == DType::FP16, cutlass::half_t, cutlass::bfloat16_t>;

  // Roles: warpgroup 0 loads, with a warp each for Q and dO; the others compute.
  static constexpr int kNThreads = kWarpgroup * (1 + kNConsumers);
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

  // Shared memory: slabs of 64 columns, 128 bytes a row, their 16-byte chunks permuted among 8 rows.
  template <class Plain>
  using Swizzled = ComposedLayout<Swizzle<3, 4, 3>, smem_ptr_flag_bits<16>, Plain>;
  template <int kRows>
  using RowsOfSlab = Shape<_8, Int<kRows / 8>>;
  using RowStrides = Stride<Int<kSlab>, Int<8 * kSlab>>;
  template <int kRows, int kColumns, int kTiles>
  using SmemLayout = Swizzled<
      Layout<Shape<RowsOfSlab<kRows>, Shape<Int<kSlab>, Int<kColumns / kSlab>>, Int<kTiles>>,
             Stride<RowStrides, Stride<_1, Int<kRows * kSlab>>, Int<kRows * kColumns>>>>;
  using SmemLayoutQ = SmemLayout<kBlockM, kHeadDim, kStages>;  // (kBlockM,kHeadDim,kStages), dO too
  using SmemLayoutK = SmemLayout<kBlockN, kHeadDim, 1>;        // (kBlockN,kHeadDim,1), V too
  static constexpr int kStagesDS = 2;
  using SmemLayoutDSt = SmemLayout<kBlockN, kBlockM, kStagesDS>;  // (kBlockN,kBlockM,kStagesDS)
  // A warp's 16 rows of dQ, dK or dV on their way out.
  static constexpr int kWarpRows = 16;
  using SmemLayoutOut = SmemLayout<kWarpRows, kSlab, 1>;  // (kWarpRows,kSlab,1)

  // Operands in shared memory are descriptors, whose layouts are the steps from one MMA's tile to others, (1,1,MMA_K) and
  // stages. In units of 16 bytes. By rows: k is along the columns. By columns: k is along the rows.
  static constexpr int kUnit = 8;  // elements
  static constexpr int kEightRows = 8 * kSlab / kUnit;
  static constexpr auto kDescriptorLayout = SM90::GMMA::LayoutType::B128;
  template <int kRows, int kColumns, int kTiles>
  struct ByRows {
    using Steps =
        Layout<Shape<_1, _1, Shape<Int<kSlab / kMmaK>, Int<kColumns / kSlab>>, Int<kTiles>>,
               Stride<_0, _0, Stride<Int<kMmaK / kUnit>, Int<kRows * kSlab / kUnit>>,
                      Int<kRows * kColumns / kUnit>>>;
    static constexpr int kLeadingStep = 1;  // it has no meaning
  };
  // kUsed: columns of the operand.
  template <int kRows, int kColumns, int kUsed, int kTiles>
  struct ByColumns {
    using Steps = Layout<Shape<_1, _1, Int<kRows / kMmaK>, Int<kTiles>>,
                         Stride<_0, _0, Int<kMmaK * kSlab / kUnit>, Int<kRows * kColumns / kUnit>>>;
    static constexpr int kLeadingStep = kUsed > kSlab ? kRows * kSlab / kUnit : 0;  // of slabs
  };
  using OperandK = ByRows<kBlockN, kHeadDim, 1>;                      // A of S^T; V, of dP^T
  using OperandQ = ByRows<kBlockM, kHeadDim, kStages>;                // B of S^T; dO, of dP^T
  using OperandQt = ByColumns<kBlockM, kHeadDim, kHeadDim, kStages>;  // B of dK; dO, of dV
  using OperandDSt = ByRows<kBlockN, kBlockM, kStagesDS>;           // A of dK, if not in registers
  using OperandDS = ByColumns<kBlockN, kBlockM, kSlab, kStagesDS>;  // A of dQ
  using OperandKt = ByColumns<kBlockN, kHeadDim, kSlab, 1>;         // B of dQ

  // The 64 x 64 elements of dQ that a consumer computes: 64 queries and all columns, or 64 columns and all queries.
  static constexpr int kSlabsDS = kBlockM / kSlab;
  CUTE_HOST_DEVICE static constexpr int first_query_dQ(int consumer) {
    return kSlabsDS > 1 ? consumer * kMmaM : 0;
  }
  CUTE_HOST_DEVICE static constexpr int first_column_dQ(int consumer) {
    return kSlabsDS > 1 ? 0 : consumer * kSlab;
  }

  // A thread's values of an A operand in registers, ((2,2,2),1,MMA_K), and of accumulators of 64 rows, ((2,2,V),1,1): two
  // neighbours, of two rows 8 apart, in every 8 columns; and where these are, from the first.
  using FragmentP = Layout<Shape<Shape<_2, _2, _2>, _1, Int<kBlockM / kMmaK>>,
                           Stride<Stride<_1, _2, _4>, _0, _8>>;
  template <int kColumns>
  using Accumulator =
      Layout<Shape<Shape<_2, _2, Int<kColumns / 8>>, _1, _1>, Stride<Stride<_1, _2, _4>, _0, _0>>;

  // Sums of dQ in fp32, in shared and in global memory: what a warp has of it, 16 rows by 64 columns, follows each other, four
  // values of each lane at a time.
  static constexpr int kValuesDQ = kMmaM * kSlab / kWarpgroup;  // of a thread
  static constexpr int kWarpDQ = 32 * kValuesDQ;                // floats of a warp
  static constexpr int kBlockDQ = kBlockM * kHeadDim;
  static_assert(kWarpDQ * sizeof(float) >= kWarpRows * kSlab * sizeof(Element));

  struct SharedStorage {
    alignas(1024) Element k[cosize_v<SmemLayoutK>];
    alignas(1024) Element v[cosize_v<SmemLayoutK>];
    alignas(1024) Element q[cosize_v<SmemLayoutQ>];
    alignas(1024) Element grad_o[cosize_v<SmemLayoutQ>];
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
