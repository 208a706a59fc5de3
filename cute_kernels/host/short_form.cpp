#include "cute_kernels/host/short_form.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <sstream>
#include <utility>

#include "cute_kernels/host/errors.h"

namespace pyflash {
namespace {

using description::Enum;
using description::Flag;
using description::Int;
using description::Number;

// Printing.

template <class Config, class E>
void print(std::ostream& out, Config const& config, Enum<Config, E> const& entry) {
  for (auto const& [name, value] : EnumDescription<E>::values) {
    if (value == config.*entry.field) {
      out << name;
    }
  }
}

template <class Config>
void print(std::ostream& out, Config const& config, Int<Config> const& entry) {
  out << config.*entry.field;
}

template <class Config>
bool is_present(Config const& config, Flag<Config> const& word) {
  return config.*word.field;
}

template <class Config, size_t N>
bool is_present(Config const& config, Number<Config, N> const& word) {
  for (Int<Config> const& entry : word.values) {
    if (entry.otherwise != config.*entry.field) {
      return true;
    }
  }
  return false;
}

template <class Config>
void print(std::ostream& out, Config const&, Flag<Config> const& word) {
  out << word.word;
}

template <class Config, size_t N>
void print(std::ostream& out, Config const& config, Number<Config, N> const& word) {
  out << word.pieces[0];
  for (size_t i = 0; i < N; ++i) {
    out << config.*word.values[i].field << word.pieces[i + 1];
  }
}

template <class Config>
std::string print(Config const& config) {
  using Description = ConfigDescription<Config>;
  std::ostringstream out;
  char const* separator = "(";
  auto in_tile = [&](auto const& entry) {
    out << std::exchange(separator, ", ");
    print(out, config, entry);
  };
  std::apply([&](auto const&... entries) { (in_tile(entries), ...); }, Description::tile);
  out << "): " << Description::tag;
  separator = *Description::tag ? "+" : "";
  auto word = [&](auto const& word) {
    if (is_present(config, word)) {
      out << std::exchange(separator, "+");
      print(out, config, word);
    }
  };
  std::apply([&](auto const&... words) { (word(words), ...); }, Description::words);
  return out.str();
}

// Reading.

// Around tokens; pyflash/config/parsing.py has the same.
constexpr std::string_view kBlanks = " \t\r\n";

// The start of a text, in one line.
std::string shown(std::string_view text) {
  constexpr size_t kMost = 80;
  size_t end = std::min(kMost, text.size());
  while (end < text.size() && (text[end] & 0xc0) == 0x80) {
    --end;  // not within a character of UTF-8
  }
  std::string line(text.substr(0, end));
  std::replace_if(line.begin(), line.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return text.size() > end ? line + "..." : line;
}

// Reads a text from left to right.
class Scanner {
 public:
  Scanner(std::string_view text, char const* form) : text_(text), rest_(text), form_(form) {}

  // Whether `token` came next, after blanks; then it is read.
  bool take(std::string_view token) {
    skip_blanks();
    if (!rest_.starts_with(token)) {
      return false;
    }
    rest_.remove_prefix(token.size());
    return true;
  }

  void expect(std::string_view token) {
    if (!take(token)) {
      fail(sentence("'", token, "'"));
    }
  }

  int expect_number(int least) {
    int number = 0;
    auto const [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
    if (rest_.starts_with('-') || error != std::errc{} || number < least) {
      fail(sentence("a number from ", least, " to ", std::numeric_limits<int>::max()));
    }
    rest_.remove_prefix(end - rest_.data());
    return number;
  }

  // Between two words, or a word and the end.
  bool at_end_of_word() {
    skip_blanks();
    return rest_.empty() || rest_.starts_with('+');
  }
  bool at_end() {
    skip_blanks();
    return rest_.empty();
  }

  void skip_blanks() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(kBlanks), rest_.size()));
  }

  std::string_view rest() const { return rest_; }
  void return_to(std::string_view rest) { rest_ = rest; }

  [[noreturn]] void fail(std::string_view expected) const {
    refuse("config '", shown(text_), "' is not a short form: expected ", expected, " at '",
           shown(rest_), "'; the form is '", form_, "'");
  }

 private:
  std::string_view text_;
  std::string_view rest_;
  char const* form_;
};

template <class Config, class E>
void read(Scanner& scanner, Config& config, Enum<Config, E> const& entry) {
  std::string names;
  for (auto const& [name, value] : EnumDescription<E>::values) {
    if (scanner.take(name)) {
      config.*entry.field = value;
      return;
    }
    names += (names.empty() ? "" : " or ") + std::string(name);
  }
  scanner.fail(names);
}

template <class Config>
void read(Scanner& scanner, Config& config, Int<Config> const& entry) {
  scanner.skip_blanks();
  config.*entry.field = scanner.expect_number(entry.least);
}

// Reads the word, and the + behind it. False: another word comes, or none.
template <class Config>
bool read_word(Scanner& scanner, Config& config, Flag<Config> const& word) {
  std::string_view const start = scanner.rest();
  if (!scanner.take(word.word) || !scanner.at_end_of_word()) {
    scanner.return_to(start);
    return false;
  }
  config.*word.field = true;
  return true;
}

template <class Config, size_t N>
bool read_word(Scanner& scanner, Config& config, Number<Config, N> const& word) {
  if (!scanner.take(word.pieces[0])) {
    if (!word.values[0].otherwise) {
      scanner.fail(word.label);
    }
    for (Int<Config> const& entry : word.values) {
      config.*entry.field = *entry.otherwise;
    }
    return false;
  }
  for (size_t i = 0; i < N; ++i) {
    config.*word.values[i].field = scanner.expect_number(word.values[i].least);
    std::string_view const piece = word.pieces[i + 1];
    if (!scanner.rest().starts_with(piece)) {
      scanner.fail(sentence("'", piece, "'"));
    }
    scanner.return_to(scanner.rest().substr(piece.size()));
  }
  return true;
}

template <class Config>
AnyConfig read(std::string_view text) {
  using Description = ConfigDescription<Config>;
  Scanner scanner(text, Description::form);
  Config config{};
  char const* separator = "(";
  auto in_tile = [&](auto const& entry) {
    scanner.expect(std::exchange(separator, ","));
    read(scanner, config, entry);
  };
  std::apply([&](auto const&... entries) { (in_tile(entries), ...); }, Description::tile);
  scanner.expect(")");
  scanner.expect(":");
  scanner.skip_blanks();
  bool separated = true;
  auto end_word = [&] { separated = scanner.take("+"); };
  if (*Description::tag) {
    scanner.expect(Description::tag);
    end_word();
  }
  auto word = [&](auto const& word) {
    std::string_view const start = scanner.rest();
    if (read_word(scanner, config, word)) {
      if (!separated) {
        scanner.return_to(start);
        scanner.fail("'+' or the end");
      }
      end_word();
    }
  };
  std::apply([&](auto const&... words) { (word(words), ...); }, Description::words);
  if (separated || !scanner.at_end()) {
    scanner.fail(separated ? "a word of the form, in its order" : "the end");
  }
  return config;
}

// The first word behind the parenthesis.
std::string_view first_word(std::string_view text) {
  size_t const colon = text.find(':');
  text = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text.substr(0, text.find_first_of("+ \t\r\n"));
}

template <size_t kFamily = 0>
AnyConfig read_family_tagged(std::string_view tag, std::string_view text) {
  if constexpr (kFamily < std::variant_size_v<AnyConfig>) {
    using Config = std::variant_alternative_t<kFamily, AnyConfig>;
    return tag == ConfigDescription<Config>::tag ? read<Config>(text)
                                                 : read_family_tagged<kFamily + 1>(tag, text);
  } else {
    return read_family_tagged("", text);  // the family without a tag
  }
}

}  // namespace

std::string short_form(AnyConfig const& config) {
  return std::visit([](auto const& c) { return print(c); }, config);
}

AnyConfig parse_short_form(std::string_view text) {
  return read_family_tagged(first_word(text), text);
}

}  // namespace pyflash
