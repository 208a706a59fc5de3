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

// A value that no machine could run: `pyflash.attention` raises ValueError, the op itself RuntimeError as every op.
struct InvalidValue : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Parts>
[[noreturn]] void refuse(Parts const&... parts) {
  throw InvalidValue(sentence("pyflash: ", parts...));
}

// The parts are put together only for a refusal.
template <class... Parts>
void require(bool condition, Parts const&... parts) {
  if (!condition) {
    refuse(parts...);
  }
}

// What this machine, or what is built on it, cannot do: RuntimeError everywhere.
template <class... Parts>
[[noreturn]] void fail(Parts const&... parts) {
  throw std::runtime_error(sentence("pyflash: ", parts...));
}

template <class... Parts>
void require_able(bool condition, Parts const&... parts) {
  if (!condition) {
    fail(parts...);
  }
}

}  // namespace pyflash
