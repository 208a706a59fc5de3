// CuTe's own layout algebra for Python, to check pycute against: the offsets of every index, as CuTe computes them. Shapes
// and strides are known at run time, but for tile_to_shape, which CuTe has of static layouts alone.
#include "cute_kernels/native/python_and_cute.h"

namespace {

using namespace cute;

using Ints = std::vector<int>;

template <class Layout_>
Ints offsets_of(Layout_ const& layout) {
  Ints offsets;
  for (int i = 0; i < int(size(layout)); ++i) {
    offsets.push_back(int(layout(i)));
  }
  return offsets;
}

// ((a,b),(c,d)): two modes of two; smaller layouts have modes of 1.
auto nested_layout(Ints const& shape, Ints const& stride) {
  if (shape.size() != 4 || stride.size() != 4) {
    throw std::invalid_argument("expected four extents and four strides");
  }
  auto nested = [](Ints const& v) {
    return make_tuple(make_tuple(v[0], v[1]), make_tuple(v[2], v[3]));
  };
  return make_layout(nested(shape), nested(stride));
}

Ints evaluate(Ints const& shape, Ints const& stride) {
  return offsets_of(nested_layout(shape, stride));
}

// A after B, B being (a,b).
Ints compose(Ints const& shape, Ints const& stride, Ints const& shape_b, Ints const& stride_b) {
  auto const b = make_layout(make_shape(shape_b.at(0), shape_b.at(1)),
                             make_stride(stride_b.at(0), stride_b.at(1)));
  return offsets_of(composition(nested_layout(shape, stride), b));
}

template <int kBits, int kBase, int kShift>
int swizzle_as(int offset) {
  return Swizzle<kBits, kBase, kShift>{}(offset);
}

constexpr int kMaxBits = 3, kMaxBase = 4, kLeastShift = 3, kShifts = 3;

template <int... kIndices>
int swizzle_by_index(int index, int offset, std::integer_sequence<int, kIndices...>) {
  constexpr int kBases = kMaxBase + 1;
  using Function = int (*)(int);
  static constexpr Function functions[] = {
      swizzle_as<kIndices / (kBases * kShifts), kIndices / kShifts % kBases,
                 kLeastShift + kIndices % kShifts>...};
  return functions[index](offset);
}

Ints swizzle(int bits, int base, int shift, Ints const& offsets) {
  if (bits < 0 || bits > kMaxBits || base < 0 || base > kMaxBase || shift < kLeastShift ||
      shift >= kLeastShift + kShifts) {
    throw std::invalid_argument("no such swizzle is compiled");
  }
  constexpr int kCount = (kMaxBits + 1) * (kMaxBase + 1) * kShifts;
  int const index = (bits * (kMaxBase + 1) + base) * kShifts + shift - kLeastShift;
  Ints swizzled;
  for (int offset : offsets) {
    swizzled.push_back(swizzle_by_index(index, offset, std::make_integer_sequence<int, kCount>{}));
  }
  return swizzled;
}

template <class Swizzle_, int kRows, int kColumns, int kTileRows, int kTileColumns, class Order>
pybind11::dict tiled() {
  auto const block = composition(
      Swizzle_{}, Layout<Shape<Int<kRows>, Int<kColumns>>, Stride<Int<kColumns>, _1>>{});
  auto const layout = tile_to_shape(block, Shape<Int<kTileRows>, Int<kTileColumns>>{}, Order{});
  namespace py = pybind11;
  return py::dict(py::arg("bits") = Swizzle_::num_bits, py::arg("base") = Swizzle_::num_base,
                  py::arg("shift") = Swizzle_::num_shft, py::arg("block") = Ints{kRows, kColumns},
                  py::arg("shape") = Ints{kTileRows, kTileColumns},
                  py::arg("first") = int(get<0>(Order{})) - 1,
                  py::arg("offsets") = offsets_of(layout));
}

std::vector<pybind11::dict> tiled_layouts() {
  using RowsFirst = Step<_1, _2>;
  using ColumnsFirst = Step<_2, _1>;
  return {tiled<Swizzle<3, 3, 3>, 8, 64, 64, 128, RowsFirst>(),
          tiled<Swizzle<3, 3, 3>, 8, 64, 128, 64, ColumnsFirst>(),
          tiled<Swizzle<2, 3, 3>, 8, 32, 32, 96, ColumnsFirst>(),
          tiled<Swizzle<1, 3, 3>, 8, 16, 16, 64, RowsFirst>()};
}

}  // namespace

PYBIND11_MODULE(pyflash_algebra, module) {
  module.def("evaluate", &evaluate);
  module.def("compose", &compose);
  module.def("swizzle", &swizzle);
  module.def("tiled_layouts", &tiled_layouts);
}
