#include "data/npy_header.h"

#include <charconv>
#include <cstring>

#include "core/error.h"

namespace lockstep {
namespace {

// What a message quotes of a header, which may hold anything: its beginning,
// on one line.
std::string quoted(std::string_view text) {
  constexpr std::size_t longest = 40;
  std::string shown(text.substr(0, longest));
  for (char& c : shown) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text.size() > longest ? shown + "…" : shown;
}

// The value of `key` in the header's Python dictionary: a quoted text without
// its quotes, or a tuple or word up to the next separator.
std::string value_of(std::string_view dictionary, std::string_view key,
                     const std::string& name) {
  auto at = dictionary.find(fmt::format("'{}'", key));
  require(at != std::string_view::npos, "{}: its .npy header has no '{}'", name,
          key);
  at = dictionary.find(':', at);
  require(at != std::string_view::npos, "{}: its .npy header does not parse",
          name);
  at = dictionary.find_first_not_of(" :", at);
  require(at != std::string_view::npos, "{}: its .npy header does not parse",
          name);
  const char opening = dictionary[at];
  const std::string_view closing = opening == '\''  ? "'"
                                   : opening == '(' ? ")"
                                                    : ",}";
  const auto end = dictionary.find_first_of(closing, at + 1);
  require(end != std::string_view::npos, "{}: its .npy header does not parse",
          name);
  const bool enclosed = opening == '\'' || opening == '(';
  const auto begin = enclosed ? at + 1 : at;
  return std::string(dictionary.substr(begin, end - begin));
}

// "123," of a tuple of one.
std::int64_t one_extent(const std::string& tuple, const std::string& name) {
  std::int64_t count = -1;
  const char* const end = tuple.data() + tuple.size();
  const auto [rest, error] = std::from_chars(tuple.data(), end, count);
  const std::string_view after(rest, static_cast<std::size_t>(end - rest));
  require(error == std::errc() && count >= 0 && after == ",",
          "{} has shape ({}); tokens have one axis", name, quoted(tuple));
  return count;
}

}  // namespace

NpyHeader parse_npy_header(std::string_view bytes, const std::string& name) {
  require(bytes.size() >= 10 && bytes.starts_with("\x93NUMPY"),
          "{} is not an .npy file: it does not begin with its magic", name);
  const int major = static_cast<unsigned char>(bytes[6]);
  require(major >= 1 && major <= 3,
          "{} is an .npy file of format {}; 1, 2 and 3 are known", name, major);
  // The header's length: 2 bytes in format 1, 4 since; little-endian.
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  require(bytes.size() >= 8 + length_bytes, "{} ends inside its header", name);
  std::uint32_t length = 0;
  std::memcpy(&length, bytes.data() + 8, length_bytes);
  const std::size_t begin = 8 + length_bytes;
  require(length <= bytes.size() - begin, "{} ends inside its header", name);
  const std::string_view dictionary = bytes.substr(begin, length);

  const std::string descr = value_of(dictionary, "descr", name);
  require(descr.size() == 3 && descr.find_first_of("<>|=") == 0,
          "{} holds values of type '{}'; tokens are uint8, uint16, uint32, "
          "int32 or int64",
          name, quoted(descr));
  require(descr[0] != '>', "{} is big-endian ('{}'); save it as '<{}'", name,
          quoted(descr), quoted(descr.substr(1)));
  NpyHeader header;
  header.type = descr.substr(1);
  header.item_bytes = descr[2] - '0';
  require(header.item_bytes >= 1 && header.item_bytes <= 8,
          "{} holds values of type '{}'", name, quoted(descr));
  header.count = one_extent(value_of(dictionary, "shape", name), name);
  header.data_offset = static_cast<std::int64_t>(begin + length);
  return header;
}

}  // namespace lockstep
