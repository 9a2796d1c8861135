#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace lockstep {

// SHA-256 (FIPS 180-4) of bytes that come in pieces.
class Sha256 {
 public:
  Sha256();
  void add(std::span<const std::byte> bytes);
  // Of all that was added, as 64 hexadecimal digits; nothing is added after.
  std::string hex();

 private:
  std::shared_ptr<void> context_;  // OpenSSL's
};

}  // namespace lockstep
