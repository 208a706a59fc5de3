// Prints what the emitted header says of every family, as lines of words.
#include <array>
#include <cstddef>
#include <iostream>
#include <string>

#include "cute_kernels/generated/configs.h"

namespace {

using namespace pyflash::description;

template <class Config, class T>
std::ptrdiff_t offset(T Config::* field) {
  static Config const config{};
  return reinterpret_cast<char const*>(&(config.*field)) - reinterpret_cast<char const*>(&config);
}

template <class E>
char const* name_of(E value) {
  for (auto const& known : EnumDescription<E>::values) {
    if (known.value == value) {
      return known.name;
    }
  }
  return "?";
}

// A line for each field: offset, its value in Config{}, name.
template <class Config, class E>
void print(Enum<Config, E> const& part) {
  std::cout << "enum " << offset(part.field) << " " << int(Config{}.*part.field) << " " << part.name
            << "\n";
}

template <class Config>
void print(Int<Config> const& part) {
  std::cout << "int " << offset(part.field) << " " << Config{}.*part.field << " " << part.name
            << " " << part.least << " "
            << (part.otherwise ? std::to_string(*part.otherwise) : "required") << "\n";
}

template <class Config>
void print(Flag<Config> const& part) {
  std::cout << "flag " << offset(part.field) << " " << Config{}.*part.field << " " << part.word
            << "\n";
}

template <class Config, std::size_t N>
void print(Number<Config, N> const& part) {
  std::cout << "number " << part.label;
  for (char const* piece : part.pieces) {
    std::cout << " '" << piece << "'";
  }
  std::cout << "\n";
  for (auto const& value : part.values) {
    print(value);
  }
}

template <class Config, class E>
std::string text(Config const& config, Enum<Config, E> const& part) {
  return name_of(config.*part.field);
}

template <class Config>
std::string text(Config const& config, Int<Config> const& part) {
  return std::to_string(config.*part.field);
}

template <class Config>
std::string text(Config const& config, Flag<Config> const& part) {
  return config.*part.field ? part.word : "";
}

template <class Config, std::size_t N>
std::string text(Config const& config, Number<Config, N> const& part) {
  bool left_out = true;
  std::string word = part.pieces[0];
  for (std::size_t i = 0; i < N; ++i) {
    left_out &= part.values[i].otherwise == config.*part.values[i].field;
    word += text(config, part.values[i]) + part.pieces[i + 1];
  }
  return left_out ? "" : word;
}

template <class Config>
std::string short_form(Config const& config) {
  using Description = ConfigDescription<Config>;
  std::string tile;
  std::apply([&](auto const&... part) { ((tile += ", " + text(config, part)), ...); },
             Description::tile);
  std::string words = *Description::tag ? "+" + std::string(Description::tag) : "";
  auto const add = [&](std::string const& word) { words += word.empty() ? "" : "+" + word; };
  std::apply([&](auto const&... part) { (add(text(config, part)), ...); }, Description::words);
  return "(" + tile.substr(2) + "): " + words.substr(1);
}

template <std::size_t... i>
void print_families(std::index_sequence<i...>) {
  auto const one = []<class Config>(Config const*) {
    using Description = ConfigDescription<Config>;
    std::cout << "family " << Description::family << " " << Description::name << " '"
              << Description::tag << "' " << sizeof(Config) << " " << Description::form << "\n";
    auto const all = [](auto const&... part) { (print(part), ...); };
    std::apply(all, Description::tile);
    std::apply(all, Description::words);
  };
  (one(static_cast<std::variant_alternative_t<i, AnyConfig> const*>(nullptr)), ...);
}

}  // namespace

int main() {
  print_families(std::make_index_sequence<std::variant_size_v<AnyConfig>>{});
  using Configs = ConfigsOf<pyflash::Forward>;
  Configs::Any const* previous = nullptr;
  for (Configs::Any const& config : Configs::kFallbacks) {
    std::cout << "fallback " << (!previous || *previous < config) << " "
              << std::visit([](auto const& c) { return short_form(c); }, config) << "\n";
    previous = &config;
  }
  std::cout << "digest " << kConfigsDigest << "\n";
}
