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
  // tokens[begin, begin + out.size()) as they are stored; inside size().
  virtual void read(std::int64_t begin, std::span<std::int64_t> out) const = 0;
  // As the user wrote it, for messages.
  virtual const std::string& name() const = 0;
  // The largest id the storage type can hold.
  virtual std::int64_t largest_storable() const = 0;
};

// Opens a SOURCE:
//   FILE.npy   one axis (C or Fortran order, or [N, 1] is refused by name);
//              uint16, uint32, int32, int64, little-endian; format 1.0 to 3.0;
//              memory-mapped
//   FILE.bin   llm.c layout (256 int32 of header: magic 20240520, version 1,
//              token count; then uint16), or headerless little-endian uint16;
//              memory-mapped
//   FILE.h5:/path/to/dataset   one axis, any integer type
//   FILE.txt   bytes are tokens; memory-mapped
// Errors name the file, what was found and what is accepted.
std::unique_ptr<TokenSource> open_token_source(const std::string& source);

// Error naming the position and id of the first token in [begin, end) that is
// negative or ≥ vocabulary. Reads in pieces; returns at once where the storage
// type cannot hold such an id.
void check_tokens(const TokenSource& source, std::int64_t begin,
                  std::int64_t end, std::int64_t vocabulary);

}  // namespace lockstep
