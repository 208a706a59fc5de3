"""Emitted structs of many variants, compiled in one call of the host's compiler, and run."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from support.programs import PARAMS

from pyflash.variant import Variant
from pyflash.variant.cpp import HEADERS, struct_name, struct_of
from pyflash.variant.expr import Param

ROOT = Path(__file__).parents[2]
_C_TYPES = {"bool": "bool", "i32": "int", "i64": "int64_t", "f32": "float"}
_STORED = {"f16": "Half", "bf16": "BFloat16"} | _C_TYPES
_INDICES = ("b", "h", "q", "k", "q_len", "k_len", "q0", "k0")

_RUN = """
// The one entry of each field that a pair reads.
struct Tables {{
  int values[64];
  int places[64];

  int const* of(int field, int, int) const {{ return values + field - places[field]; }}
}};
template <class V>
void run(typename V::Params const& params, int const (*at)[8], float const* s, int n, float* score,
         bool* shown) {{
  for (int i = 0; i < n; ++i) {{
    auto const [b, h, q, k, q_len, k_len, q0, k0] = *reinterpret_cast<At const*>(at[i]);
    Lengths const lengths{{q_len, k_len, q0, k0}};
    Tables tables;
    for (int field = 0; field < V::kPrepared; ++field) {{
      int const places[] = {{q, k, k - q, k - q - k_len + q_len}};
      int const at = places[int(V::prepared_field(field).along)];
      tables.values[field] = V::prepare(field, params, lengths, b, h, at);
      tables.places[field] = at;
    }}
    int const first = k & ~1;
    auto const prepared = V::prepared(tables, b, h);
    auto const uniform = V::uniform(params, lengths, b, h);
    auto const row = V::row(params, lengths, prepared, uniform, b, h, q);
    auto const column = V::column(params, lengths, prepared, uniform, b, h, first, k - first);
    auto const distance =
        V::distance(params, lengths, prepared, uniform, b, h, first - q, k - first);
    auto compute = [&](auto streamed) {{
      constexpr bool kStreamed = decltype(streamed)::value;
      score[i] = V::template score<kStreamed>(params, lengths, uniform, row, column, distance, b, h,
                                              q, first, k - first, s[i], 1.f);
      shown[i] = V::template counts<kStreamed>(params, lengths, uniform, row, column, distance, b,
                                               h, q, first, k - first);
    }};
    if (V::kStreams && V::is_streamed(params, first, 2)) {{
      compute(std::true_type{{}});
    }} else {{
      compute(std::false_type{{}});
    }}
  }}
}}
template <class V>
void judge(typename V::Params const& params, int const (*at)[10], int n, int* verdicts) {{
  for (int i = 0; i < n; ++i) {{
    auto const [b, h, q, q_last, k, k_last, q_len, k_len, q0, k0] =
        *reinterpret_cast<TileAt const*>(at[i]);
    Lengths const lengths{{q_len, k_len, q0, k0}};
    verdicts[i] = int(shown_of<V>(params, lengths, b, h, {{q, q_last}}, {{k, k_last}}));
  }}
}}
"""


class Emitted:
    """A compiled batch. values: the arrays of captured parameters by name, kept alive here."""

    def __init__(
        self, variants: Sequence[Variant], values: Mapping[str, Any], folder: Path
    ) -> None:
        self.variants = list(variants)
        self.arrays = {name: _stored(PARAMS[name], value) for name, value in values.items()}
        source, library = folder / "variants.cpp", folder / "variants.so"
        source.write_text(self._source())
        flags = ["-std=c++20", "-O0", "-ffp-contract=off", "-Wall", "-Werror", "-shared", "-fPIC"]
        command = ["g++", *flags, f"-I{ROOT}", str(source), "-o", str(library)]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr[:4000]
        self.library = ctypes.CDLL(str(library))
        names = [array.ctypes.data for array in self.arrays.values()]
        self.data = (ctypes.c_void_p * len(names))(*names)

    def _source(self) -> str:
        structs = {struct_name(v): struct_of(v) for v in self.variants}
        lines = [f'#include "{header}"' for header in HEADERS]
        lines += ["namespace pyflash::variant {", *structs.values()]
        lines += ["struct At { int b, h, q, k, q_len, k_len, q0, k0; };"]
        lines += ["struct TileAt { int b, h, q, q_last, k, k_last, q_len, k_len, q0, k0; };"]
        lines += [_RUN.format(), "}", "using namespace pyflash::variant;"]
        for i, variant in enumerate(self.variants):
            name = struct_name(variant)
            params = ", ".join(self._member(param) for param in variant.captured)
            made = f"{name}::Params const params{{{params}}};"
            lines += [
                f'extern "C" void run_{i}(void const* const* data, int const (*at)[8],'
                " float const* s, int n, float* score, bool* shown) {",
                f"  {made} run<{name}>(params, at, s, n, score, shown);",
                "}",
                f'extern "C" void tile_{i}(void const* const* data, int const (*at)[10], int n,'
                " int* verdicts) {",
                f"  {made} judge<{name}>(params, at, n, verdicts);",
                "}",
            ]
        return "\n".join(lines) + "\n"

    def _member(self, param: Param) -> str:
        kind = _STORED[str(param.kind)]
        place = list(self.arrays).index(param.name)
        pointer = f"static_cast<{kind} const*>(data[{place}])"
        if param.rank is None:
            return f"number(*{pointer})"
        array = self.arrays[param.name]
        extents = ", ".join(map(str, array.shape)) or "1"
        strides = ", ".join(str(stride // array.itemsize) for stride in array.strides) or "1"
        return f"{{{pointer}, {{{extents}}}, {{{strides}}}}}"

    def run(self, which: int, pairs: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Scores and mask of pairs."""
        at = np.ascontiguousarray(np.stack([pairs[name] for name in _INDICES], 1), np.int32)
        scores = np.ascontiguousarray(pairs["s"], np.float32)
        found, shown = np.zeros(len(at), np.float32), np.zeros(len(at), bool)
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (at, scores, found, shown)]
        function = getattr(self.library, f"run_{which}")
        function(self.data, pointers[0], pointers[1], len(at), pointers[2], pointers[3])
        return found, shown

    def tiles(self, which: int, at: Sequence[Sequence[int]]) -> list[str]:
        """Verdicts of tiles: b, h, q, its last, k, its last, and lengths each."""
        places = np.ascontiguousarray(at, np.int32)
        verdicts = np.zeros(len(places), np.int32)
        function = getattr(self.library, f"tile_{which}")
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (places, verdicts)]
        function(self.data, pointers[0], len(places), pointers[1])
        return [("none", "some", "all")[verdict] for verdict in verdicts]


def _stored(param: Param, value: Any) -> np.ndarray:
    """As C++ reads it; of two axes, the first has stride 1."""
    array = np.asarray(value)
    if param.kind.value == "bf16":
        bits = np.asarray(array, np.float32).view(np.uint32) >> 16
        return np.ascontiguousarray(bits, np.uint16)
    kinds = {"bool": bool, "i32": np.int32, "i64": np.int64, "f32": np.float32, "f16": np.float16}
    array = array.astype(kinds[param.kind.value])
    return np.asfortranarray(array) if array.ndim == 2 else np.array(array, order="C")
