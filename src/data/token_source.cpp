#include "data/token_source.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "core/error.h"
#include "core/hdf5.h"
#include "data/mapped_file.h"
#include "data/npy_header.h"

namespace lockstep {
namespace {

// Little-endian integers of type T from an offset to the end of a file.
template <class T>
class MappedTokens : public TokenSource {
 public:
  MappedTokens(std::string name, std::unique_ptr<MappedFile> file,
               std::int64_t offset, std::int64_t count)
      : name_(std::move(name)),
        file_(std::move(file)),
        offset_(offset),
        count_(count) {}

  std::int64_t size() const override { return count_; }
  const std::string& name() const override { return name_; }
  void read(std::int64_t begin, std::span<std::int64_t> out) const override {
    const std::byte* from = file_->data() + offset_ + begin * sizeof(T);
    for (std::int64_t& token : out) {
      T value;
      std::memcpy(&value, from, sizeof value);
      from += sizeof value;
      token = static_cast<std::int64_t>(value);
    }
  }
  bool can_exceed(std::int64_t vocabulary) const override {
    return std::numeric_limits<T>::is_signed ||
           static_cast<std::uint64_t>(std::numeric_limits<T>::max()) >=
               static_cast<std::uint64_t>(vocabulary);
  }
  void forget(std::int64_t begin, std::int64_t end) const override {
    file_->forget(offset_ + begin * std::int64_t{sizeof(T)},
                  offset_ + end * std::int64_t{sizeof(T)});
  }

 private:
  std::string name_;
  std::unique_ptr<MappedFile> file_;
  std::int64_t offset_;
  std::int64_t count_;
};

template <class T>
std::unique_ptr<TokenSource> mapped(const std::string& name,
                                    std::unique_ptr<MappedFile> file,
                                    std::int64_t offset, std::int64_t count) {
  return std::make_unique<MappedTokens<T>>(name, std::move(file), offset,
                                           count);
}

std::unique_ptr<TokenSource> open_npy(const std::string& name) {
  auto file = std::make_unique<MappedFile>(name);
  const NpyHeader header =
      parse_npy_header({reinterpret_cast<const char*>(file->data()),
                        static_cast<std::size_t>(file->size())},
                       name);
  const auto as = [&]<class T>(T) {
    const std::int64_t available = file->size() - header.data_offset;
    require(header.count <= available / header.item_bytes &&
                header.count * header.item_bytes == available,
            "{}: its header says {} tokens of {} bytes, its data are {} bytes",
            name, header.count, header.item_bytes, available);
    return mapped<T>(name, std::move(file), header.data_offset, header.count);
  };
  if (header.type == "u1") return as(std::uint8_t{});
  if (header.type == "u2") return as(std::uint16_t{});
  if (header.type == "u4") return as(std::uint32_t{});
  if (header.type == "i4") return as(std::int32_t{});
  if (header.type == "i8") return as(std::int64_t{});
  fail("{} holds '{}' values; tokens are uint8, uint16, uint32, int32 or int64",
       name, header.type);
}

// Whether values read as uint16 are more likely the halves of uint32: every
// second one is small, in a stretch where the others are varied.
bool looks_like_uint32(const TokenSource& tokens) {
  constexpr std::int64_t most = 4096, fewest = 256, small = 16, varied = 64;
  std::vector<std::int64_t> halves(std::min(most, tokens.size()));
  if (std::ssize(halves) < fewest) return false;
  tokens.read(0, halves);
  std::set<std::int64_t> low;
  for (std::size_t i = 0; i + 1 < halves.size(); i += 2) {
    low.insert(halves[i]);
    if (halves[i + 1] >= small) return false;
  }
  return std::ssize(low) >= varied;
}

std::unique_ptr<TokenSource> open_bin(const std::string& name) {
  constexpr std::int64_t header_bytes = 1024;  // 256 int32
  auto file = std::make_unique<MappedFile>(name);
  const std::int64_t size = file->size();
  std::int32_t header[3] = {};  // as much of it as there is
  if (size > 0) {
    std::memcpy(
        header, file->data(),
        static_cast<std::size_t>(std::min<std::int64_t>(size, sizeof header)));
  }
  const auto [magic, version, stored] = header;

  if (magic == 20240520 || magic == 20240801) {
    require(size >= header_bytes,
            "{} begins with llm.c's magic {} and ends inside its header", name,
            magic);
    const bool wide = magic == 20240801;
    const std::int64_t bytes = wide ? 4 : 2;
    require(version == (wide ? 7 : 1),
            "{} has llm.c's magic {} but version {}; version {} is known", name,
            magic, version, wide ? 7 : 1);
    const std::int64_t count = static_cast<std::uint32_t>(stored);
    require(size - header_bytes == count * bytes,
            "{}: its header says {} tokens of {} bytes, its data are {} bytes",
            name, count, bytes, size - header_bytes);
    return wide ? mapped<std::uint32_t>(name, std::move(file), header_bytes,
                                        count)
                : mapped<std::uint16_t>(name, std::move(file), header_bytes,
                                        count);
  }
  require(size % 2 == 0,
          "{} has {} bytes: without llm.c's header it is read as uint16, and "
          "these are an odd number",
          name, size);
  auto tokens = mapped<std::uint16_t>(name, std::move(file), 0, size / 2);
  require(!looks_like_uint32(*tokens),
          "{} seems to hold uint32 (as uint16, which it is read as without "
          "llm.c's header, every second value is below 16); save it as .npy",
          name);
  return tokens;
}

class Hdf5Tokens : public TokenSource {
 public:
  Hdf5Tokens(std::string name, const std::string& path,
             const std::string& dataset)
      : name_(std::move(name)),
        file_(path, hdf5::Access::read),
        dataset_(file_.dataset(dataset)),
        storage_(dataset_.storage()) {
    const auto shape = dataset_.shape();
    require(storage_.integer && storage_.bytes <= 8,
            "{} holds {} values; tokens are integers", name_, storage_.text);
    require(shape.size() == 1, "{} has {} axes; tokens have one", name_,
            shape.size());
    count_ = shape[0];
  }
  std::int64_t size() const override { return count_; }
  const std::string& name() const override { return name_; }
  void read(std::int64_t begin, std::span<std::int64_t> out) const override {
    dataset_.read(begin, out);
  }
  bool can_exceed(std::int64_t vocabulary) const override {
    return storage_.is_signed || storage_.bytes > 4 ||
           (std::int64_t{1} << (8 * storage_.bytes)) > vocabulary;
  }

 private:
  std::string name_;
  hdf5::File file_;
  hdf5::Dataset dataset_;
  hdf5::Dataset::Storage storage_;
  std::int64_t count_ = 0;
};

}  // namespace

std::unique_ptr<TokenSource> open_token_source(const std::string& source) {
  std::unique_ptr<TokenSource> tokens;
  auto colon = source.find(".h5:/");
  if (colon == std::string::npos) colon = source.find(".hdf5:/");
  if (colon != std::string::npos) {
    colon = source.find(':', colon);
    tokens = std::make_unique<Hdf5Tokens>(source, source.substr(0, colon),
                                          source.substr(colon + 1));
  } else if (source.ends_with(".npy")) {
    tokens = open_npy(source);
  } else if (source.ends_with(".bin")) {
    tokens = open_bin(source);
  } else if (source.ends_with(".txt")) {
    auto file = std::make_unique<MappedFile>(source);
    const std::int64_t bytes = file->size();
    tokens = mapped<std::uint8_t>(source, std::move(file), 0, bytes);
  } else {
    fail(
        "cannot tell what kind of data {} is; known are FILE.npy, FILE.bin, "
        "FILE.h5:/path/to/dataset, FILE.txt and random",
        source);
  }
  require(tokens->size() > 0, "{} holds no tokens", source);
  return tokens;
}

void check_tokens(const TokenSource& source, std::int64_t begin,
                  std::int64_t end, std::int64_t vocabulary) {
  if (!source.can_exceed(vocabulary)) return;
  constexpr std::int64_t piece = 1 << 20;
  std::vector<std::int64_t> tokens;
  for (; begin < end; begin += std::ssize(tokens)) {
    tokens.resize(std::min(piece, end - begin));
    source.read(begin, tokens);
    check_tokens(source, begin, tokens, vocabulary);
    source.forget(begin, begin + std::ssize(tokens));
  }
}

void check_tokens(const TokenSource& source, std::int64_t begin,
                  std::span<const std::int64_t> tokens,
                  std::int64_t vocabulary) {
  const auto outside = std::find_if(
      tokens.begin(), tokens.end(),
      [&](std::int64_t token) { return token < 0 || token >= vocabulary; });
  if (outside == tokens.end()) return;
  fail("{}: token {} is {}, outside the vocabulary of {} (--vocab-size)",
       source.name(), begin + (outside - tokens.begin()), *outside, vocabulary);
}

}  // namespace lockstep
