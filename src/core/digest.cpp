#include "core/digest.h"

#include <openssl/evp.h>

#include "core/error.h"

namespace lockstep {
namespace {

EVP_MD_CTX* of(const std::shared_ptr<void>& context) {
  return static_cast<EVP_MD_CTX*>(context.get());
}

}  // namespace

Sha256::Sha256()
    : context_(EVP_MD_CTX_new(), [](void* context) {
        EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context));
      }) {
  require(context_ && EVP_DigestInit_ex(of(context_), EVP_sha256(), nullptr),
          "OpenSSL offers no SHA-256");
}

void Sha256::add(std::span<const std::byte> bytes) {
  require(EVP_DigestUpdate(of(context_), bytes.data(), bytes.size()) == 1,
          "OpenSSL cannot digest {} bytes", bytes.size());
}

std::string Sha256::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  require(EVP_DigestFinal_ex(of(context_), digest, &size) == 1,
          "OpenSSL cannot finish a digest");
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

}  // namespace lockstep
