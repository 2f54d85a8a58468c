// The 16-bit floats of a checkpoint, widened exactly to f32, one at a time and on any machine.
//
// always_inline: this header is compiled into every instruction set's object, and a shared out-of-line copy could be
// the one that needs AVX-512.
#pragma once
#include <stdint.h>
#include <string.h>

namespace embed::cpu {

static inline __attribute__((always_inline)) float float_of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static inline __attribute__((always_inline)) float widen_bf16(uint16_t bits) {
  return float_of_bits((uint32_t)bits << 16);
}

// The exponent moves by a multiplication with 2^112, which also makes subnormals right; infinity and NaN (exponent 31)
// keep their mantissa under f32's exponent of ones.
static inline __attribute__((always_inline)) float widen_f16(uint16_t bits) {
  const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = (uint32_t)(bits & 0x7fff) << 13;
  if (rest >= 0x0f800000u) return float_of_bits(sign | 0x7f800000u | rest);
  const float size = float_of_bits(rest) * 0x1p112f;
  return sign ? -size : size;
}

}  // namespace embed::cpu
