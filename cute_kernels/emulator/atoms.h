// CuTe's copy and MMA operations on the emulated machine. Their traits are CuTe's own; only what they call is replaced.
// Included before any kernel.
#pragma once

#include "cute_kernels/emulator/cute.h"
#include "cute_kernels/emulator/device.h"

namespace pyflash::emulator {

template <bool kTransposed, class... Registers>
void ldmatrix(cute::uint128_t const& row, Registers&... registers) {
  uint32_t loaded[sizeof...(Registers)];
  machine->ldmatrix(&row, loaded, sizeof...(Registers), kTransposed);
  int i = 0;
  ((registers = loaded[i++]), ...);
}

template <DType kDType, class D, class A, class B, class C>
void mma(D& rD, A const& rA, B const& rB, C const& rC) {
  MmaRegisters registers;
  auto const a = cute::recast<uint32_t>(rA);
  auto const b = cute::recast<uint32_t>(rB);
  for (int i = 0; i < 4; ++i) {
    registers.a[i] = a(i);
    registers.c[i] = rC(i);
  }
  for (int i = 0; i < 2; ++i) {
    registers.b[i] = b(i);
  }
  machine->mma(registers, kDType);
  for (int i = 0; i < 4; ++i) {
    rD(i) = registers.c[i];
  }
}

}  // namespace pyflash::emulator

namespace cute {

namespace detail {

template <class S, class D>
struct CallCOPY<UniversalCopy<S, D>> {
  void operator()(S const& source, D& destination) const {
    static_assert(sizeof(S) == sizeof(D));
    pyflash::emulator::machine->copy(&source, &destination, sizeof(S));
  }
};

template <class S, class D>
struct CallCOPY<SM80_CP_ASYNC_CACHEGLOBAL<S, D>> {
  void operator()(S const& source, D& destination) const {
    pyflash::emulator::machine->async_copy(&source, &destination, sizeof(S), true);
  }
};

template <class S, class D>
struct CallCOPY<SM80_CP_ASYNC_CACHEALWAYS<S, D>> {
  void operator()(S const& source, D& destination) const {
    pyflash::emulator::machine->async_copy(&source, &destination, sizeof(S), true);
  }
};

template <bool kTransposed>
struct CallLdmatrix {
  template <class... Registers>
  void operator()(uint128_t const& row, Registers&... registers) const {
    pyflash::emulator::ldmatrix<kTransposed>(row, registers...);
  }
};

template <>
struct CallCOPY<SM75_U32x1_LDSM_N> : CallLdmatrix<false> {};
template <>
struct CallCOPY<SM75_U32x2_LDSM_N> : CallLdmatrix<false> {};
template <>
struct CallCOPY<SM75_U32x4_LDSM_N> : CallLdmatrix<false> {};
template <>
struct CallCOPY<SM75_U16x2_LDSM_T> : CallLdmatrix<true> {};
template <>
struct CallCOPY<SM75_U16x4_LDSM_T> : CallLdmatrix<true> {};
template <>
struct CallCOPY<SM75_U16x8_LDSM_T> : CallLdmatrix<true> {};

}  // namespace detail

// NOTE: the ZFILL copies call this member directly, past CallCOPY.
template <>
inline void SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>::copy(uint128_t const& source,
                                                             uint128_t& destination, bool valid) {
  pyflash::emulator::machine->async_copy(&source, &destination, sizeof(uint128_t), valid);
}

template <class TD, class DLayout, class TA, class ALayout, class TB, class BLayout, class TC,
          class CLayout>
void mma_unpack(MMA_Traits<SM80_16x8x16_F32F16F16F32_TN> const&, Tensor<TD, DLayout>& D,
                Tensor<TA, ALayout> const& A, Tensor<TB, BLayout> const& B,
                Tensor<TC, CLayout> const& C) {
  pyflash::emulator::mma<DType::FP16>(D, A, B, C);
}

template <class TD, class DLayout, class TA, class ALayout, class TB, class BLayout, class TC,
          class CLayout>
void mma_unpack(MMA_Traits<SM80_16x8x16_F32BF16BF16F32_TN> const&, Tensor<TD, DLayout>& D,
                Tensor<TA, ALayout> const& A, Tensor<TB, BLayout> const& B,
                Tensor<TC, CLayout> const& C) {
  pyflash::emulator::mma<DType::BF16>(D, A, B, C);
}

}  // namespace cute
