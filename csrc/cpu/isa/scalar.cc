// Plain C++, one lane: correct on any machine, and the definition of the other instruction sets' bits.
//
// Without hardware fma `__builtin_fmaf` is the C library's (exact, some 5 ns). The tile is sixteen columns wide because
// that is the unit of padding; its rows only save loads of the weights.
#include "common.h"

namespace embed::cpu::scalar {
namespace {

using Vec = float;
constexpr int kLanes = 1, kTileRows = 4, kTileVecs = 16, kStepVecs = 16;
constexpr int kTallRows = kTileRows, kTallVecs = kTileVecs;

INLINE Vec zero() { return 0; }
INLINE Vec splat(float x) { return x; }
INLINE Vec load(const float* p) { return *p; }
INLINE void store(float* p, Vec x) { *p = x; }
INLINE Vec fma(Vec a, Vec b, Vec c) { return __builtin_fmaf(a, b, c); }
INLINE Vec add(Vec a, Vec b) { return a + b; }
INLINE Vec sub(Vec a, Vec b) { return a - b; }
INLINE Vec mul(Vec a, Vec b) { return a * b; }
INLINE Vec div(Vec a, Vec b) { return a / b; }
INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }
INLINE Vec abs(Vec a) { return __builtin_fabsf(a); }
INLINE Vec round(Vec a) { return (a + 0x1.8p23f) - 0x1.8p23f; }  // the adder's own rounding: no libm, no SSE 4.1
INLINE Vec scale(Vec a, Vec n) {
  if (n != n) return n;
  const int e = (int)n, low = e >> 1, high = e - low;
  a *= float_of_bits((uint32_t)(low + 127) << 23);
  return a * float_of_bits((uint32_t)(high + 127) << 23);
}
INLINE Vec keep(Vec a, int count) { return count > 0 ? a : 0; }
INLINE Vec widen_f16(const uint16_t* p) { return cpu::widen_f16(*p); }
INLINE Vec widen_bf16(const uint16_t* p) { return cpu::widen_bf16(*p); }
INLINE void transpose(Vec*) {}

#include "../kernels/all.inc.h"
}  // namespace

const Kernels kernels = KERNEL_TABLE("scalar");
}  // namespace embed::cpu::scalar
