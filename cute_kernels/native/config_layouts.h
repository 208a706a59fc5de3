// The layouts of a kernel, from its own types, for Python. Host code; it needs no nvcc and no GPU.
//
// Whatever a family's KernelTraits have under these names is described, and what they do not have is left out: shared
// memory (SmemLayoutQ, ...; SharedStorage), thread-value layouts of MMAs (TiledMma, ...) and copies (TiledCopyG2S, and from
// shared memory to registers: TiledCopyQ, ...), in the traits or in their struct Tiled. A new family needs nothing here if it
// keeps to the names.
#pragma once

#include "cute_kernels/native/python_and_cute.h"

namespace pyflash::native {

using namespace cute;

struct NamedLayout {
  std::string name;
  std::string
      kind;  // "smem": coordinates to elements; "threads": (thread, value) to an index in a tile
  std::string text;          // as CuTe prints it
  std::vector<int> extents;  // of the modes; of "threads", those of the tile
  std::vector<int> offsets;  // of every index
};

struct Member {
  std::string name;
  size_t offset;
  size_t bytes;
};

struct Description {
  std::vector<NamedLayout> layouts;
  std::vector<Member> smem;  // by offset; members of a union start at the same
  size_t smem_bytes = 0;
};

// NOTE: a layout is given by its type, as decltype has it: no code is generated for what computes it, which is most of what
// a module would take to compile.
template <class Layout_, class Shape>
NamedLayout describe(std::string name, std::string kind) {
  constexpr Layout_ layout{};
  constexpr int kSize = decltype(size(layout))::value;
  std::ostringstream text;
  text << layout;
  NamedLayout described{std::move(name), std::move(kind), text.str(), {}, {}};
  for_each(decltype(product_each(Shape{})){},
           [&](auto extent) { described.extents.push_back(int(extent)); });
  for (int i = 0; i < kSize; ++i) {
    described.offsets.push_back(int(layout(i)));
  }
  return described;
}

// Offsets in elements: a swizzle of shared memory that TMA writes and WGMMA reads is one of byte addresses.
template <class Layout_>
auto in_elements(Layout_ const& layout) {
  if constexpr (requires { as_position_independent_swizzle_layout(layout); }) {
    return as_position_independent_swizzle_layout(layout);
  } else {
    return layout;
  }
}

// The operands of an MMA, each over the tile that all its threads compute at once.
template <class TiledMma>
void describe_mma(std::vector<NamedLayout>& layouts, std::string const& name) {
  using M = decltype(tile_size<0>(TiledMma{}));
  using N = decltype(tile_size<1>(TiledMma{}));
  using K = decltype(tile_size<2>(TiledMma{}));
  using A = decltype(TiledMma{}.get_layoutA_TV());
  using B = decltype(TiledMma{}.get_layoutB_TV());
  using C = decltype(TiledMma{}.get_layoutC_TV());
  layouts.push_back(describe<A, Shape<M, K>>(name + " A", "threads"));
  layouts.push_back(describe<B, Shape<N, K>>(name + " B", "threads"));
  layouts.push_back(describe<C, Shape<M, N>>(name + " C", "threads"));
}

// Source and destination of a copy over its tile.
template <class TiledCopy>
void describe_copy(std::vector<NamedLayout>& layouts, std::string const& name) {
  using Extents = decltype(shape(typename TiledCopy::Tiler_MN{}));
  using Source = decltype(TiledCopy{}.get_layoutS_TV());
  using Destination = decltype(TiledCopy{}.get_layoutD_TV());
  layouts.push_back(describe<Source, Extents>(name + " source", "threads"));
  layouts.push_back(describe<Destination, Extents>(name + " destination", "threads"));
}

// Where the traits have their TiledMMAs and TiledCopies.
template <class Traits>
struct TiledOf {
  using type = Traits;
};
template <class Traits>
  requires requires { typename Traits::Tiled; }
struct TiledOf<Traits> {
  using type = typename Traits::Tiled;
};

template <class Tiled>
void describe_tiled(std::vector<NamedLayout>& layouts) {
  if constexpr (requires { typename Tiled::TiledMma; }) {
    describe_mma<typename Tiled::TiledMma>(layouts, "MMA");
  }
  if constexpr (requires { typename Tiled::TiledMmaQK; }) {
    describe_mma<typename Tiled::TiledMmaQK>(layouts, "MMA QK^T");
    describe_mma<typename Tiled::TiledMmaPV>(layouts, "MMA PV");
  }
  if constexpr (requires { typename Tiled::TiledCopyG2S; }) {
    describe_copy<typename Tiled::TiledCopyG2S>(layouts, "copy g2s");
  }
  if constexpr (requires { typename Tiled::TiledCopyQ; }) {
    describe_copy<typename Tiled::TiledCopyQ>(layouts, "copy s2r Q");
    describe_copy<typename Tiled::TiledCopyK>(layouts, "copy s2r K");
    describe_copy<typename Tiled::TiledCopyV>(layouts, "copy s2r V");
  }
}

template <class Traits>
Description describe() {
  Description result;
  auto& layouts = result.layouts;
  auto const smem = [&]<class Layout_>(char const* name, Layout_) {
    using InElements = decltype(in_elements(Layout_{}));
    layouts.push_back(describe<InElements, decltype(shape(Layout_{}))>(name, "smem"));
  };
  if constexpr (requires { typename Traits::SmemLayoutQ; }) {
    smem("Q", typename Traits::SmemLayoutQ{});
  }
  if constexpr (requires { typename Traits::SmemLayoutDO; }) {
    smem("dO", typename Traits::SmemLayoutDO{});
  }
  if constexpr (requires { typename Traits::SmemLayoutKV; }) {
    smem("K", typename Traits::SmemLayoutKV{});
    smem("V", typename Traits::SmemLayoutKV{});
  }
  if constexpr (requires { typename Traits::SmemLayoutK; }) {
    smem("K", typename Traits::SmemLayoutK{});
    smem("V", typename Traits::SmemLayoutV{});
  }
  if constexpr (requires { typename Traits::SmemLayoutVt; }) {
    smem("V^T", typename Traits::SmemLayoutVt{});
  }
  if constexpr (requires { typename Traits::SmemLayoutP; }) {
    smem("P", typename Traits::SmemLayoutP{});
  }
  if constexpr (requires { typename Traits::SmemLayoutDSt; }) {
    smem("dS^T", typename Traits::SmemLayoutDSt{});
  }
  if constexpr (requires { typename Traits::SmemLayoutO; }) {
    smem("O", typename Traits::SmemLayoutO{});
  }
  describe_tiled<typename TiledOf<Traits>::type>(layouts);
  using Storage = typename Traits::SharedStorage;
  result.smem_bytes = sizeof(Storage);
#define PYFLASH_MEMBER(member)                                                            \
  if constexpr (requires(Storage storage) { storage.member; }) {                          \
    result.smem.push_back({#member, offsetof(Storage, member), sizeof(Storage::member)}); \
  }
  PYFLASH_MEMBER(q)
  PYFLASH_MEMBER(k)
  PYFLASH_MEMBER(v)
  PYFLASH_MEMBER(p)
  PYFLASH_MEMBER(o)
  PYFLASH_MEMBER(grad_o)
  PYFLASH_MEMBER(ds)
  PYFLASH_MEMBER(dq)
#undef PYFLASH_MEMBER
  return result;
}

// What the module of a config offers: describe().
template <class Traits>
void define(pybind11::module_& module) {
  namespace py = pybind11;
  module.def("describe", [] {
    Description const description = describe<Traits>();
    py::list layouts;
    for (NamedLayout const& layout : description.layouts) {
      layouts.append(py::dict(py::arg("name") = layout.name, py::arg("kind") = layout.kind,
                              py::arg("text") = layout.text, py::arg("extents") = layout.extents,
                              py::arg("offsets") = layout.offsets));
    }
    py::list members;
    for (Member const& member : description.smem) {
      members.append(py::make_tuple(member.name, member.offset, member.bytes));
    }
    return py::dict(py::arg("layouts") = layouts, py::arg("smem") = members,
                    py::arg("smem_bytes") = description.smem_bytes);
  });
}

}  // namespace pyflash::native
