// 2^x and the activations, on vectors. Errors are against float64, over the ranges named; tests/kernels/test_exp2.py
// and test_activation.py measure them.

// 2^(n + r) for integral n in [-200, 250] and |r| a little over 1/2 at most; a subnormal result is rounded once.
static INLINE Vec two_to(Vec n, Vec r) {
  Vec p = splat(1.5478018e-4f);  // minimax of 2^r on [-1/2, 1/2], relative error 1.9e-9
  p = fma(p, r, splat(1.3400431e-3f));
  p = fma(p, r, splat(9.6179945e-3f));
  p = fma(p, r, splat(5.5503272e-2f));
  p = fma(p, r, splat(2.4022652e-1f));
  p = fma(p, r, splat(6.9314718e-1f));
  p = fma(p, r, splat(1.0f));
  return scale(p, n);
}

// 2^x for x <= 250, at most 1.02 ULP on [-126, 127]; 0 from far below -150 down to -infinity; NaN stays NaN.
static INLINE Vec exp2(Vec x) {
  x = max(splat(-200.0f), x);
  const Vec n = round(x);
  return two_to(n, sub(x, n));  // the difference is exact: |r| <= 1/2
}

// e^-t for t >= 0: t * log2(e) in two parts, or its rounding would cost up to 90 ULP. NaN stays NaN.
static INLINE Vec exp_minus(Vec t) {
  t = min(splat(110.0f), t);  // e^-104 rounds to 0
  const Vec high = mul(t, splat(-1.44269502f));
  const Vec rest = fma(t, splat(-1.44269502f), sub(zero(), high));  // exact
  const Vec low = fma(t, splat(-1.92596299e-8f), rest);
  const Vec n = round(high);
  return two_to(n, add(sub(high, n), low));
}

// x * Phi(x) = max(x, 0) - |x| * Phi(-|x|), with Phi(-t) = 2^q(t): one smooth polynomial instead of erf's two branches,
// and no cancellation in 1 + erf(x) for negative x. 1.7 ULP for x > 0; for x < 0 an absolute error of 3.8e-8 (2.4 ULP
// down to -1, then its relative error grows: 1.2e-6 at -3, 2.2e-5 at -6, where torch's erf form has lost every digit).
static INLINE Vec gelu(Vec x) {
  const Vec t = abs(x), u = min(splat(20.0f), t);  // Phi(-20) is 0 in f32; keeps q finite
  Vec q = splat(-3.3656555e-8f);  // log2 Phi(-t) on [0, 6]; beyond it falls faster than the truth, towards 0
  q = fma(q, u, splat(9.7173578e-7f));
  q = fma(q, u, splat(-1.2030215e-5f));
  q = fma(q, u, splat(8.1614475e-5f));
  q = fma(q, u, splat(-2.9341836e-4f));
  q = fma(q, u, splat(1.9903340e-5f));
  q = fma(q, u, splat(6.9326963e-3f));
  q = fma(q, u, splat(-5.2437831e-2f));
  q = fma(q, u, splat(-4.5922023e-1f));
  q = fma(q, u, splat(-1.1511045f));
  q = fma(q, u, splat(-1.0f));
  return sub(max(zero(), x), mul(t, exp2(q)));
}

// x / (1 + e^-s) where s has x's sign and t = |s|: never a large power, so nothing overflows on either side.
// silu: 3.1 ULP above -30. gelu_tanh: 1.9 ULP for x > 0, an absolute error of 4.8e-8 for x < 0.
static INLINE Vec times_sigmoid(Vec x, Vec t) {
  const Vec e = exp_minus(t);
  return div(fma(min(zero(), x), e, max(zero(), x)), add(splat(1.0f), e));
}

static INLINE Vec silu(Vec x) { return times_sigmoid(x, abs(x)); }

// x / 2 * (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2 / pi) * (x + 0.044715 x^3)
static INLINE Vec gelu_tanh(Vec x) {
  const Vec cubic = fma(mul(x, x), splat(0.07135481282f), splat(1.595769122f));  // 2u / x
  return times_sigmoid(x, abs(mul(cubic, x)));
}

template <Epilogue e>
static INLINE Vec activate(Vec x) {
  if constexpr (e == Epilogue::gelu) return gelu(x);
  if constexpr (e == Epilogue::gelu_tanh) return gelu_tanh(x);
  if constexpr (e == Epilogue::relu) return max(zero(), x);
  if constexpr (e == Epilogue::silu) return silu(x);
  return x;
}

static void exp2_array(float* y, const float* x, size_t count) {
  for (size_t i = 0; i < count; i += kLanes) store(y + i, exp2(load(x + i)));
}

template <Epilogue e>
static void activate_array(float* y, const float* x, size_t count) {
  for (size_t i = 0; i < count; i += kLanes) store(y + i, activate<e>(load(x + i)));
}

static void activation_array(float* y, const float* x, size_t count, Epilogue epilogue) {
  constexpr void (*by_epilogue[])(float*, const float*, size_t) = {
      activate_array<Epilogue::bias>, activate_array<Epilogue::gelu>, activate_array<Epilogue::gelu_tanh>,
      activate_array<Epilogue::relu>, activate_array<Epilogue::silu>, activate_array<Epilogue::residual>};
  by_epilogue[(int)epilogue](y, x, count);
}
