// AVX2 + FMA + F16C: 8 lanes, 16 registers -> 6 x 16 tile = 12 sums, 2 weights, 1 activation.
#if defined(__x86_64__)
#include <immintrin.h>

#include "common.h"
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi2"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,bmi2")
#endif

namespace embed::cpu::avx2 {
namespace {

using Vec = __m256;
constexpr int kLanes = 8, kTileRows = 6, kTileVecs = 2, kStepVecs = 1;
constexpr int kTallRows = 12, kTallVecs = 1;  // the other way to fill the registers: few rows in one pass over W

INLINE Vec zero() { return _mm256_setzero_ps(); }
INLINE Vec splat(float x) { return _mm256_set1_ps(x); }
INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
INLINE void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
INLINE Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
INLINE Vec abs(Vec a) { return _mm256_andnot_ps(splat(-0.0f), a); }
INLINE Vec round(Vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE Vec power_of_two(__m256i e) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
}
INLINE Vec scale(Vec a, Vec n) {
  const __m256i e = _mm256_cvtps_epi32(n), low = _mm256_srai_epi32(e, 1);
  return mul(mul(a, power_of_two(low)), power_of_two(_mm256_sub_epi32(e, low)));
}
INLINE Vec keep(Vec a, int count) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane)));
}
INLINE Vec widen_f16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
INLINE Vec widen_bf16(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}

INLINE Vec low_pairs(Vec a, Vec b) {  // a0 a1 b0 b1 | a4 a5 b4 b5
  return _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
}
INLINE Vec high_pairs(Vec a, Vec b) {  // a2 a3 b2 b3 | a6 a7 b6 b7
  return _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
}
INLINE void transpose(Vec* r) {
  Vec t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      r[i + 2 * h] = low_pairs(t[i + h], t[i + 2 + h]);
      r[i + 2 * h + 1] = high_pairs(t[i + h], t[i + 2 + h]);
    }
    // r[4q + c] holds columns c, c + 4 of rows 4q .. 4q + 3
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    t[c] = _mm256_permute2f128_ps(r[c], r[4 + c], 0x20);
    t[4 + c] = _mm256_permute2f128_ps(r[c], r[4 + c], 0x31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = t[i];
}

#include "../kernels/all.inc.h"
}  // namespace

const Kernels kernels = KERNEL_TABLE("avx2");
}  // namespace embed::cpu::avx2
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
