#pragma once

#include <array>
#include <cstdint>

namespace lockstep {

// Philox4x32-10, a counter-based generator: Salmon et al., "Parallel Random
// Numbers: As Easy as 1, 2, 3" (SC 2011), algorithm of section 3.3. Element i
// of a stream can be drawn by any rank without drawing the others, which is
// what makes a run the same on any number of ranks.
constexpr std::array<std::uint32_t, 4> philox(
    std::array<std::uint32_t, 4> counter, std::uint64_t key) {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ k0,
               static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ k1,
               static_cast<std::uint32_t>(a)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return counter;
}

// What a stream of random numbers is for; keeps streams of one seed apart.
enum class Stream : std::uint32_t { weights, samples, tokens, generation };

// Draw `index` of a numbered stream: four independent 32-bit words.
constexpr std::array<std::uint32_t, 4> random_bits(std::uint64_t seed,
                                                   Stream stream,
                                                   std::uint32_t substream,
                                                   std::uint64_t index) {
  return philox({static_cast<std::uint32_t>(index),
                 static_cast<std::uint32_t>(index >> 32), substream,
                 static_cast<std::uint32_t>(stream)},
                seed);
}

// A double in [0, 1) from 53 of 64 bits.
constexpr double unit_interval(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = (std::uint64_t{high} << 32 | low) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace lockstep
