#include "cuda/gemm_cache.h"

#include <fmt/ranges.h>

#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>

#include "core/atomic_file.h"
#include "core/error.h"

namespace lockstep {
namespace {

constexpr const char* first_line = "lockstep gemm cache 1";
constexpr const char* separator = " = ";

std::optional<GemmCache::Algorithm> parse_words(const std::string& text) {
  std::istringstream stream(text);
  GemmCache::Algorithm words{};
  for (std::uint64_t& word : words) {
    if (!(stream >> std::hex >> word)) return std::nullopt;
  }
  std::string rest;
  if (stream >> rest) return std::nullopt;
  return words;
}

}  // namespace

GemmCache::GemmCache(std::string path) : path_(std::move(path)) {
  if (!keeps()) return;
  check_writable(path_, "the GEMM cache");
  if (!std::filesystem::exists(path_)) return;
  std::ifstream file(path_);
  std::string line;
  std::getline(file, line);
  require(line == first_line,
          "'{}' is not a GEMM cache: its first line is not '{}'", path_,
          first_line);
  for (int number = 2; std::getline(file, line); ++number) {
    const std::size_t middle = line.find(separator);
    const auto words =
        middle == std::string::npos
            ? std::nullopt
            : parse_words(line.substr(middle + std::string(separator).size()));
    require(words.has_value(),
            "line {} of the GEMM cache '{}' is not 'key = 8 hexadecimal "
            "words'; delete the file to measure again",
            number, path_);
    algorithms_[line.substr(0, middle)] = *words;
  }
}

std::optional<GemmCache::Algorithm> GemmCache::find(
    const std::string& key) const {
  const auto found = algorithms_.find(key);
  if (found == algorithms_.end()) return std::nullopt;
  return found->second;
}

void GemmCache::put(const std::string& key, const Algorithm& algorithm) {
  algorithms_[key] = algorithm;
  if (!keeps()) return;
  std::string text = std::string(first_line) + '\n';
  for (const auto& [name, words] : algorithms_) {
    text += fmt::format("{}{}{:x}\n", name, separator, fmt::join(words, " "));
  }
  replace_file(path_, std::as_bytes(std::span(text)));
}

}  // namespace lockstep
