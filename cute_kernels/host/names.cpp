#include "cute_kernels/host/names.h"

#include <algorithm>

namespace pyflash {

char const* name(DType dtype) { return dtype == DType::FP16 ? "FP16" : "BF16"; }

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> names;
  for (std::string_view rest = text;;) {
    size_t const length = std::min(rest.find(separator), rest.size());
    names.emplace_back(rest.substr(0, length));
    if (length == rest.size()) {
      return names;
    }
    rest.remove_prefix(length + 1);
  }
}

}  // namespace pyflash
