#include "cute_kernels/host/cubins.h"

#include <fstream>
#include <iterator>
#include <string_view>

#include "cute_kernels/host/errors.h"

namespace pyflash {

std::string read_cubin(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  require(file.good(), "cubin '", path, "' cannot be read; compile it again");
  std::string image(std::istreambuf_iterator<char>(file), {});
  require(std::string_view(image).starts_with("\x7f"
                                              "ELF"),
          "'", path, "' is no cubin: it does not begin as an ELF file does");
  return image;
}

}  // namespace pyflash
