// NEON (AArch64's Advanced SIMD): 4 lanes, 32 registers -> 8 x 12 tile = 24 sums, 3 weights, 1 activation.
#if defined(__aarch64__)
#include <arm_neon.h>

#include "common.h"

namespace embed::cpu::neon {
namespace {

using Vec = float32x4_t;
constexpr int kLanes = 4, kTileRows = 8, kTileVecs = 3, kStepVecs = 1;
constexpr int kTallRows = 12, kTallVecs = 2;  // the other way to fill the registers: few rows in one pass over W

INLINE Vec zero() { return vdupq_n_f32(0); }
INLINE Vec splat(float x) { return vdupq_n_f32(x); }
INLINE Vec load(const float* p) { return vld1q_f32(p); }
INLINE void store(float* p, Vec x) { vst1q_f32(p, x); }
INLINE Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
INLINE Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
INLINE Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
INLINE Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
INLINE Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
INLINE Vec max(Vec a, Vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }  // not vmaxq: it makes NaN of either NaN
INLINE Vec min(Vec a, Vec b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
INLINE Vec abs(Vec a) { return vabsq_f32(a); }
INLINE Vec round(Vec a) { return vrndnq_f32(a); }
INLINE Vec power_of_two(int32x4_t e) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(e, vdupq_n_s32(127)), 23)); }
INLINE Vec scale(Vec a, Vec n) {
  const int32x4_t e = vcvtq_s32_f32(n), low = vshrq_n_s32(e, 1);
  return mul(mul(a, power_of_two(low)), power_of_two(vsubq_s32(e, low)));
}
INLINE Vec keep(Vec a, int count) {
  static const int32_t lane[4] = {0, 1, 2, 3};
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), vcgtq_s32(vdupq_n_s32(count), vld1q_s32(lane))));
}
INLINE Vec widen_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
INLINE Vec widen_bf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }

INLINE Vec low_halves(Vec a, Vec b) { return vcombine_f32(vget_low_f32(a), vget_low_f32(b)); }
INLINE Vec high_halves(Vec a, Vec b) { return vcombine_f32(vget_high_f32(a), vget_high_f32(b)); }
INLINE void transpose(Vec* r) {
  const float32x4x2_t a = vtrnq_f32(r[0], r[1]), b = vtrnq_f32(r[2], r[3]);
  r[0] = low_halves(a.val[0], b.val[0]), r[2] = high_halves(a.val[0], b.val[0]);
  r[1] = low_halves(a.val[1], b.val[1]), r[3] = high_halves(a.val[1], b.val[1]);
}

#include "../kernels/all.inc.h"
}  // namespace

const Kernels kernels = KERNEL_TABLE("neon");
}  // namespace embed::cpu::neon
#endif
