// CuTe's warpgroup MMAs on the emulated machine. Their traits, layouts and descriptors are CuTe's own; only what they
// call is replaced. Included before any kernel.
#pragma once

#include <type_traits>

#include "cute_kernels/emulator/cute.h"
#include "cute_kernels/emulator/device.h"

namespace pyflash::emulator {

using cute::SM90::GMMA::Major;
using cute::SM90::GMMA::ScaleIn;
using cute::SM90::GMMA::ScaleOut;

template <class Operation>
struct Operands : std::false_type {};
template <template <Major, Major, ScaleIn, ScaleIn> class Operation, Major kMajorA, Major kMajorB,
          ScaleIn kScaleA, ScaleIn kScaleB>
struct Operands<Operation<kMajorA, kMajorB, kScaleA, kScaleB>> : std::true_type {
  static constexpr bool kAIsMnMajor = kMajorA == Major::MN;
  static constexpr bool kBIsMnMajor = kMajorB == Major::MN;
  static constexpr bool kNegateA = kScaleA == ScaleIn::Neg;
  static constexpr bool kNegateB = kScaleB == ScaleIn::Neg;
};

template <class Operation, class D, class A, class B>
void warpgroup_mma(cute::MMA_Traits<Operation> const& traits, D& tensor_D, A const& tensor_A,
                   B const& tensor_B) {
  using Traits = cute::MMA_Traits<Operation>;
  using Element = typename Traits::ValTypeA;
  using RegistersA = std::remove_extent_t<typename Operation::ARegisters>;
  static_assert(std::is_same_v<typename Traits::ValTypeC, float>, "fp32 accumulators");
  static_assert(cute::size<2>(typename Traits::Shape_MNK{}) == 16, "16-bit operands");
  auto rA = cute::recast<RegistersA>(tensor_A);
  auto rB = cute::recast<uint64_t>(tensor_B);
  static_assert(decltype(cute::cosize(tensor_D.layout()))::value ==
                    std::extent_v<typename Operation::CRegisters>,
                "registers that follow each other");
  WarpgroupMma mma{.dtype = std::is_same_v<Element, cutlass::half_t> ? DType::FP16 : DType::BF16,
                   .n = cute::size<1>(typename Traits::Shape_MNK{}),
                   .a = nullptr,
                   .a_desc = 0,
                   .b_desc = rB(0),
                   .a_is_mn_major = Operands<Operation>::kAIsMnMajor,
                   .b_is_mn_major = Operands<Operation>::kBIsMnMajor,
                   .negate_a = Operands<Operation>::kNegateA,
                   .negate_b = Operands<Operation>::kNegateB,
                   .accumulate = traits.accumulate_ == ScaleOut::One,
                   .d = &tensor_D(0)};
  if constexpr (std::is_same_v<RegistersA, uint64_t>) {
    mma.a_desc = rA(0);
  } else {
    static_assert(decltype(cute::cosize(rA.layout()))::value == 4);
    mma.a = &rA(0);
  }
  machine->warpgroup_mma(mma);
}

}  // namespace pyflash::emulator

namespace cute::SM90::GMMA {

// NOTE: more constrained than CuTe's, which it takes the place of.
template <class MMA_Op, class... MMA_Args, class TD, class DLayout, class TA, class ALayout,
          class TB, class BLayout, class TC, class CLayout>
  requires(pyflash::emulator::Operands<MMA_Op>::value)
constexpr void mma_unpack(MMA_Traits<MMA_Op, MMA_Args...> const& traits, Tensor<TD, DLayout>& D,
                          Tensor<TA, ALayout> const& A, Tensor<TB, BLayout> const& B,
                          Tensor<TC, CLayout> const&) {
  pyflash::emulator::warpgroup_mma(traits, D, A, B);
}

}  // namespace cute::SM90::GMMA
