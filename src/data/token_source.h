#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace lockstep {

// A sequence of token ids somewhere outside. Opening reads headers only.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual std::int64_t size() const = 0;  // tokens
  // tokens[begin, begin + out.size()), which lie inside size(), as stored.
  virtual void read(std::int64_t begin, std::span<std::int64_t> out) const = 0;
  // As the user wrote it, for messages.
  virtual const std::string& name() const = 0;
  // Whether the storage type can hold an id that is negative or ≥ vocabulary.
  virtual bool can_exceed(std::int64_t vocabulary) const = 0;
  // The tokens of a stretch were read once and won't be soon again.
  virtual void forget(std::int64_t, std::int64_t) const {}
};

// Opens a SOURCE:
//   FILE.npy   NumPy's format, versions 1.0 to 3.0: one axis of little-endian
//              uint8, uint16, uint32, int32 or int64; memory-mapped
//   FILE.bin   llm.c's layout (256 int32 of header: magic 20240520, version 1,
//              token count, then uint16; or magic 20240801, version 7, then
//              uint32), or headerless little-endian uint16 as nanoGPT writes
//              (refused where the values look like uint32); memory-mapped
//   FILE.h5:/path/to/dataset   one axis of any integer type
//   FILE.txt   bytes are tokens; memory-mapped
// Errors name the file, what was found and what is accepted.
std::unique_ptr<TokenSource> open_token_source(const std::string& source);

// Error naming the position and the id of the first token in [begin, end) that
// is negative or ≥ vocabulary. Reads in pieces, keeping none; returns at once
// where the storage type cannot hold such an id.
void check_tokens(const TokenSource& source, std::int64_t begin,
                  std::int64_t end, std::int64_t vocabulary);
// The same for tokens just read from position `begin`.
void check_tokens(const TokenSource& source, std::int64_t begin,
                  std::span<const std::int64_t> tokens,
                  std::int64_t vocabulary);

}  // namespace lockstep
