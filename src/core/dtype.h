#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace lockstep {

enum class Dtype : std::uint8_t { f64, f32, bf16, i32, i16 };

constexpr std::int64_t bytes_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
      return 8;
    case Dtype::bf16:
    case Dtype::i16:
      return 2;
    default:
      return 4;
  }
}

constexpr std::string_view name_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
      return "f64";
    case Dtype::f32:
      return "f32";
    case Dtype::bf16:
      return "bf16";
    case Dtype::i16:
      return "i16";
    default:
      return "i32";
  }
}

// How numbers are stored and multiplied, as the user chooses it.
//   fp32  everything in fp32, no TF32
//   tf32  as fp32, matrix products on TF32 tensor cores
//   bf16  parameters and activations in bf16, fp32 accumulation, fp32 master
//         weights and moments
enum class Precision : std::uint8_t { fp32, tf32, bf16 };

constexpr std::string_view name_of(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return "fp32";
    case Precision::tf32:
      return "tf32";
    default:
      return "bf16";
  }
}

// The dtype of parameters and activations under a precision.
constexpr Dtype compute_dtype(Precision precision) {
  return precision == Precision::bf16 ? Dtype::bf16 : Dtype::f32;
}

// bf16 on the host: the upper half of an fp32 value, rounded to nearest even.
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  explicit bfloat16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = nan ? static_cast<std::uint16_t>((u >> 16) | 0x40u)
               : static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >>
                                            16);
  }
  operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

// An fp32 weight as a bf16 one and the 16 bits that rounding took from it:
//   fp32 bits = (bf16 bits << 16) + remainder, as integers.
// Rounded to the nearest, a tie away from zero, so that the two always give the
// fp32 value back; NaN stays NaN.
struct SplitWeight {
  bfloat16 rounded;
  std::int16_t remainder = 0;

  SplitWeight(bfloat16 nearest, std::int16_t rest)
      : rounded(nearest), remainder(rest) {}
  explicit SplitWeight(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      rounded = bfloat16(value);
      return;
    }
    rounded.bits = static_cast<std::uint16_t>((u + 0x8000u) >> 16);
    remainder = static_cast<std::int16_t>(u & 0xffffu);
  }
  operator float() const {
    return std::bit_cast<float>(
        (static_cast<std::uint32_t>(rounded.bits) << 16) +
        static_cast<std::uint32_t>(std::int32_t{remainder}));
  }
};

template <class T>
struct dtype_of;
template <>
struct dtype_of<double> {
  static constexpr Dtype value = Dtype::f64;
};
template <>
struct dtype_of<float> {
  static constexpr Dtype value = Dtype::f32;
};
template <>
struct dtype_of<bfloat16> {
  static constexpr Dtype value = Dtype::bf16;
};
template <>
struct dtype_of<std::int32_t> {
  static constexpr Dtype value = Dtype::i32;
};
template <>
struct dtype_of<std::int16_t> {
  static constexpr Dtype value = Dtype::i16;
};

}  // namespace lockstep
