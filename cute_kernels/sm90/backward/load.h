// The loading warpgroup: one warp for K and Q, with lse, one for V and dO, with -delta.
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/backward/problem.h"
#include "cute_kernels/sm90/backward/traits.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/variant/gradient.h"

namespace pyflash::sm90::backward {

using namespace cute;
using device::Site;

// What one warp loads: a block of keys in slabs of kSlabKeys, and the blocks of queries with a number for each of them, in kStages.
template <class Traits, int kSlabKeys, int kStages>
struct Loads {
  using Element = typename Traits::Element;

  device::TensorMap const& keys_map;
  Element* keys;
  Pipeline<1>& keys_pipeline;
  device::TensorMap const& queries_map;
  Element* queries;
  float const* numbers_of_workspace;
  float* numbers;
  Pipeline<kStages>& queries_pipeline;
  // Where a CTA has a part of the columns, of the others.
  Element* others;
  Pipeline<1>* others_pipeline;
  bool others_first;  // whether they have been read before its own of a block are
};

inline constexpr int kLoaders = 2;  // warps

// By one thread.
template <class Traits, int kSlabKeys, int kStages, BackwardFeatures kFeatures, class Variant>
CUTE_DEVICE void load_blocks(Tile<kFeatures> const& tile, variant::Given<Variant> const& given,
                             Loads<Traits, kSlabKeys, kStages> const& loads, Site keys_site,
                             Site queries_site) {
  using Element = typename Traits::Element;
  constexpr int kBlockM = Traits::kBlockM;
  constexpr int kSlab = Traits::kSlab;
  constexpr int kNumberBytes = kBlockM * sizeof(float);
  constexpr int kOthersBytes = Traits::kOthers * sizeof(Element);
  constexpr int kQueriesBytes = kBlockM * Traits::kOwnColumns * sizeof(Element) + kNumberBytes;
  constexpr int kKeysBytes = Traits::kBlockN * Traits::kHeadDim * sizeof(Element);
  using Slabs = typename Traits::Slabs;
  constexpr bool kHasOthers = Traits::kColumnParts > 1;
  // From a column in shared memory, where a CTA's own come first, to one of the tensor.
  auto const in_tensor = [&](int column) {
    return kHasOthers ? (column + tile.column_part * Traits::kOwnColumns) % Traits::kHeadDim
                      : column;
  };
  using SlabsKeys = sm90::Slabs<kSlabKeys>;
  typename SlabsKeys::template Rows<Traits::kBlockN, Traits::kHeadDim> const layout_keys;
  typename Slabs::template Rows<kBlockM, Traits::kOwnColumns, kStages> const layout_queries;
  device::SmemAddress const sKeys = device::smem_address(loads.keys);
  device::SmemAddress const sQueries = device::smem_address(loads.queries);

  variant::BlocksOf<kFeatures, Traits::kBlockN, Variant> block(tile, given);
  if (!block.exists()) {
    return;
  }
  device::at(keys_site);
  device::Mbarrier& keys_full = loads.keys_pipeline.acquire({}, kKeysBytes);
  CUTE_UNROLL
  for (int column = 0; column < Traits::kHeadDim; column += kSlabKeys) {
    device::tma_load<device::CacheHint::kNormal>(
        loads.keys_map, keys_full, SlabsKeys::address(sKeys, layout_keys, 0, column),
        in_tensor(column), tile.keys().begin + tile.first_key, tile.head_kv, tile.batch);
  }
  device::at(queries_site);
  RingPosition<kStages> write;
  RingPosition<1> write_others;
  auto const load_others = [&] {
    if constexpr (kHasOthers) {
      typename Traits::SmemLayoutOthers const layout;
      device::Mbarrier& full = loads.others_pipeline->acquire(write_others, kOthersBytes);
      CUTE_UNROLL
      for (int column = 0; column < Traits::kOtherColumns; column += kSlab) {
        device::tma_load<device::CacheHint::kNormal>(
            loads.queries_map, full,
            Slabs::address(device::smem_address(loads.others), layout, 0, column),
            in_tensor(Traits::kOwnColumns + column), tile.queries().begin + block.m_block * kBlockM,
            block.head, tile.batch);
      }
      write_others.advance();
    }
  };
  for (; block.exists(); block.advance()) {
    if (kHasOthers && loads.others_first) {
      load_others();
    }
    device::Mbarrier& full = loads.queries_pipeline.acquire(write, kQueriesBytes);
    CUTE_UNROLL
    for (int column = 0; column < Traits::kOwnColumns; column += kSlab) {
      device::tma_load<device::CacheHint::kNormal>(
          loads.queries_map, full, Slabs::address(sQueries, layout_queries, 0, column, write.stage),
          in_tensor(column), tile.queries().begin + block.m_block * kBlockM, block.head,
          tile.batch);
    }
    int const row = tile.workspace_row(block.head, block.m_block * kBlockM);
    device::bulk_load(loads.numbers_of_workspace + row, full, loads.numbers + write.stage * kBlockM,
                      kNumberBytes);
    if (kHasOthers && !loads.others_first) {
      load_others();
    }
    write.advance();
  }
}

// warp: of the CTA.
template <class Traits, class Variant, BackwardFeatures kFeatures>
CUTE_DEVICE void load_tile(variant::ParamsOf<KernelParams, Variant> const& params,
                           typename Traits::SharedStorage& smem, Tile<kFeatures> const& tile,
                           int warp) {
  variant::Given<Variant> const given(params);
  Pipeline<1>* others_of_Q = nullptr;
  Pipeline<1>* others_of_dO = nullptr;
  if constexpr (Traits::kColumnParts > 1) {
    others_of_Q = &smem.parts.pipeline_Q;
    others_of_dO = &smem.parts.pipeline_dO;
  }
  if (warp == 0) {
    load_blocks(
        tile, given,
        Loads<Traits, Traits::kSlabK, Traits::kStages>{
            params.k_map, smem.k, smem.pipeline_K, params.q_map, smem.q, params.problem.lse2,
            smem.lse2, smem.pipeline_Q, smem.q_others(), others_of_Q, Traits::kStages == 1},
        Site::K_g2s, Site::Q_g2s);
  } else if (warp == 1) {
    load_blocks(tile, given,
                Loads<Traits, Traits::kSlab, Traits::kStagesDO>{
                    params.v_map, smem.v, smem.pipeline_V, params.do_map, smem.grad_o,
                    params.problem.minus_delta, smem.minus_delta, smem.pipeline_dO,
                    smem.grad_o_others(), others_of_dO, Traits::kStagesDO == 1},
                Site::V_g2s, Site::dO_g2s);
  }
}

}  // namespace pyflash::sm90::backward
