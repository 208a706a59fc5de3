// Refusals: one sentence that names the argument, what was expected and what came.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace pyflash {

template <class... Parts>
std::string sentence(Parts const&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

// Python sees a RuntimeError.
template <class... Parts>
[[noreturn]] void refuse(Parts const&... parts) {
  throw std::runtime_error(sentence("pyflash: ", parts...));
}

// The parts are put together only for a refusal.
template <class... Parts>
void require(bool condition, Parts const&... parts) {
  if (!condition) {
    refuse(parts...);
  }
}

}  // namespace pyflash
