// The GEMMs of a computing warpgroup, S = Q K^T and O += P V: their operands, the stages of shared memory that they read, and the
// turns in which warpgroups issue them.
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/gemm.h"
#include "cute_kernels/sm90/pipeline.h"
#include "cute_kernels/sm90/shape.h"

namespace pyflash::sm90 {

using namespace cute;
using device::Site;

enum NamedBarrier : int { kTurn = 1, kWarpgroupSync = 1 + 4 };  // of each consumer warpgroup

template <class Traits>
struct WarpgroupGemms {
  using Element = typename Traits::Element;
  using SharedStorage = typename Traits::SharedStorage;
  using AccS = decltype(make_tensor<float>(Accumulator<Traits::kBlockN>{}));   // (MMA,MMA_M,MMA_N)
  using AccO = decltype(make_tensor<float>(Accumulator<Traits::kHeadDim>{}));  // (MMA,MMA_M,MMA_K)
  using OperandP =
      decltype(make_tensor<Element>(FragmentA<Traits::kBlockN>{}));  // (MMA,MMA_M,MMA_K)
  static constexpr int kHeadDim = Traits::kHeadDim;

  SharedStorage& smem;
  int const warpgroup;  // of those that compute

  OperandP tOrP;
  AccO acc_O;
  RingPosition<1> read_Q;
  RingPosition<Traits::kStages> read_K;
  RingPosition<Traits::kStages> read_V;

  CUTE_DEVICE WarpgroupGemms(SharedStorage& smem, int warpgroup)
      : smem(smem), warpgroup(warpgroup) {}

  // Warpgroups take turns to issue MMAs, so that the softmax of one runs during the MMAs of another.
  CUTE_DEVICE void wait_for_turn() const {
    if constexpr (Traits::kPingpong) {
      device::named_barrier_sync(kTurn + warpgroup, 2 * kWarpgroup);
    }
  }
  CUTE_DEVICE void pass_turn() const {
    if constexpr (Traits::kPingpong) {
      int const next = warpgroup + 1 == Traits::kNConsumers ? 0 : warpgroup + 1;
      device::named_barrier_arrive(kTurn + next, 2 * kWarpgroup);
    }
  }

  CUTE_DEVICE void wait_for_Q() const { smem.pipeline_Q[warpgroup].wait(read_Q); }

  // S = Q K^T of a block
  CUTE_DEVICE void issue_QK(AccS& acc_S) const {
    device::at(Site::QK);
    smem.pipeline_K.wait(read_K);
    Tensor tSrQ = descriptors<typename Traits::OperandQ>(
        smem.q + warpgroup * Traits::kMmaM * kHeadDim);            // (MMA,MMA_M,MMA_K)
    Tensor tSrK = descriptors<typename Traits::OperandK>(smem.k);  // (MMA,MMA_N,MMA_K,kStages)
    gemm_async(typename Traits::MmaQK{}, tSrQ, tSrK(_, _, _, read_K.stage), acc_S, false);
  }

  // O += P V of a block, or O = P V
  CUTE_DEVICE void issue_PV(bool accumulate) {
    device::at(Site::PV);
    smem.pipeline_V.wait(read_V);
    Tensor tOrV = descriptors<typename Traits::OperandV>(smem.v);  // (MMA,MMA_N,MMA_K,kStages)
    gemm_async(typename Traits::MmaPV{}, tOrP, tOrV(_, _, _, read_V.stage), acc_O, accumulate);
  }

  CUTE_DEVICE void release_Q() {
    smem.pipeline_Q[warpgroup].release(read_Q);
    read_Q.advance();
  }
  CUTE_DEVICE void release_K() {
    smem.pipeline_K.release(read_K);
    read_K.advance();
  }
  CUTE_DEVICE void release_V() {
    smem.pipeline_V.release(read_V);
    read_V.advance();
  }
  // After a QK^T, which may be the tile's last.
  CUTE_DEVICE void finish_QK(bool last) {
    release_K();
    if (last) {
      release_Q();
    }
  }

  // Blocks that this warpgroup attends nothing of, but another of the tile does.
  CUTE_DEVICE void skip_K() {
    smem.pipeline_K.wait(read_K);
    wait_for_turn();
    pass_turn();
    release_K();
  }
  CUTE_DEVICE void skip_V() {
    smem.pipeline_V.wait(read_V);
    release_V();
  }

  // Rows [begin, end) of the block of V that is next to be read become 0. P is 0 there, but 0 * NaN is not.
  CUTE_DEVICE void clear_rows_of_V(int begin, int end) {
    device::at(Site::V_r2s);
    smem.pipeline_V.wait(read_V);
    Tensor sV = make_tensor(make_smem_ptr(smem.v),
                            typename Traits::SmemLayoutKV{});  // (kBlockN,kHeadDim,kStages)
    constexpr int kVector = 8;
    CUTE_NO_UNROLL
    for (int i = device::fresh_thread_idx() % kWarpgroup; i < (end - begin) * (kHeadDim / kVector);
         i += kWarpgroup) {
      int const row = begin + i / (kHeadDim / kVector);
      int const column = i % (kHeadDim / kVector) * kVector;
      device::store(reinterpret_cast<uint4*>(raw_pointer_cast(&sV(row, column, read_V.stage))),
                    uint4{});
    }
    device::fence_async_proxy();
    device::named_barrier_sync(kWarpgroupSync + warpgroup, kWarpgroup);  // the zeros are visible
  }
};

}  // namespace pyflash::sm90
