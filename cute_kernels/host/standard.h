// Headers of the standard library, precompiled for the sources of this room and of bindings/: no source includes it, and
// each includes what it uses.
#ifndef PYFLASH_HOST_STANDARD_H
#define PYFLASH_HOST_STANDARD_H

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#endif
