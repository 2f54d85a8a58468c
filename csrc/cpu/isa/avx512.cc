// AVX-512 (F, BW, VL, DQ): 16 lanes, 32 registers -> 8 x 48 tile = 24 sums, 3 weights, 1 activation.
#if defined(__x86_64__)
#include <immintrin.h>

#include "common.h"
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,f16c,bmi2"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,f16c,bmi2")
#endif

namespace embed::cpu::avx512 {
namespace {

using Vec = __m512;
constexpr int kLanes = 16, kTileRows = 8, kTileVecs = 3, kStepVecs = 1;
constexpr int kTallRows = 12, kTallVecs = 2;  // the other way to fill the registers: few rows in one pass over W

INLINE Vec zero() { return _mm512_setzero_ps(); }
INLINE Vec splat(float x) { return _mm512_set1_ps(x); }
INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
INLINE void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
INLINE Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
INLINE Vec abs(Vec a) { return _mm512_abs_ps(a); }
INLINE Vec round(Vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE Vec scale(Vec a, Vec n) { return _mm512_scalef_ps(a, n); }
INLINE Vec keep(Vec a, int count) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_maskz_mov_ps(_mm512_cmpgt_epi32_mask(_mm512_set1_epi32(count), lane), a);
}
INLINE Vec widen_f16(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
INLINE Vec widen_bf16(const uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}

INLINE Vec low_pairs(Vec a, Vec b) {  // in each quarter: a0 a1 b0 b1
  return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
INLINE Vec high_pairs(Vec a, Vec b) {  // in each quarter: a2 a3 b2 b3
  return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
INLINE void transpose(Vec* r) {
  Vec t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      r[i + 2 * h] = low_pairs(t[i + h], t[i + 2 + h]);
      r[i + 2 * h + 1] = high_pairs(t[i + h], t[i + 2 + h]);
    }
    // r[4q + c] holds columns c, c + 4, c + 8, c + 12 of rows 4q .. 4q + 3
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const Vec a = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88), b = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
    const Vec d = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd), e = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
    t[c] = _mm512_shuffle_f32x4(a, b, 0x88), t[8 + c] = _mm512_shuffle_f32x4(a, b, 0xdd);
    t[4 + c] = _mm512_shuffle_f32x4(d, e, 0x88), t[12 + c] = _mm512_shuffle_f32x4(d, e, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

#include "../kernels/all.inc.h"
}  // namespace

const Kernels kernels = KERNEL_TABLE("avx512");
}  // namespace embed::cpu::avx512
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
