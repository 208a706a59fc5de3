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

template <class Shape>
std::vector<int> extents_of(Shape const& shape) {
  std::vector<int> extents;
  for_each(product_each(shape), [&](auto extent) { extents.push_back(int(extent)); });
  return extents;
}

template <class Layout_, class Extents>
NamedLayout describe(std::string name, std::string kind, Layout_ const& layout,
                     Extents const& shape) {
  std::ostringstream text;
  text << layout;
  NamedLayout described{std::move(name), std::move(kind), text.str(), extents_of(shape), {}};
  for (int i = 0; i < int(size(layout)); ++i) {
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
  TiledMma mma;
  auto add = [&](char const* operand, auto layout, auto rows, auto columns) {
    layouts.push_back(describe(name + " " + operand, "threads", layout, make_shape(rows, columns)));
  };
  add("A", mma.get_layoutA_TV(), tile_size<0>(mma), tile_size<2>(mma));
  add("B", mma.get_layoutB_TV(), tile_size<1>(mma), tile_size<2>(mma));
  add("C", mma.get_layoutC_TV(), tile_size<0>(mma), tile_size<1>(mma));
}

// Source and destination of a copy over its tile.
template <class TiledCopy>
void describe_copy(std::vector<NamedLayout>& layouts, std::string const& name,
                   TiledCopy const& copy) {
  auto const tile = typename TiledCopy::Tiler_MN{};
  layouts.push_back(
      describe(name + " source", "threads", copy.get_layoutS_TV(), product_each(shape(tile))));
  layouts.push_back(
      describe(name + " destination", "threads", copy.get_layoutD_TV(), product_each(shape(tile))));
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
    describe_copy(layouts, "copy g2s", typename Tiled::TiledCopyG2S{});
  }
  if constexpr (requires { typename Tiled::TiledCopyQ; }) {
    describe_copy(layouts, "copy s2r Q", typename Tiled::TiledCopyQ{});
    describe_copy(layouts, "copy s2r K", typename Tiled::TiledCopyK{});
    describe_copy(layouts, "copy s2r V", typename Tiled::TiledCopyV{});
  }
}

template <class Traits>
Description describe() {
  Description result;
  auto& layouts = result.layouts;
  auto smem = [&](char const* name, auto layout) {
    layouts.push_back(describe(name, "smem", in_elements(layout), shape(layout)));
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
