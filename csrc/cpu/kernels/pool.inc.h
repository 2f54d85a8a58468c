// y (texts, width), without padding: one vector a text out of x (tokens, width), scaled to length 1 if `normalize`.
//
// The modes are those of sentence-transformers: weightedmean weighs a text's rows 1, 2 .. n; mean_sqrt_len divides the
// sum by sqrt(n). Sums run over blocks of kSumBlock rows, whose sums are added in order: with 8,192 rows the error is
// that of 64 + 128 additions. One text, one thread. A vector whose length overflows is NaN when normalised: divided by
// infinity it would be a vector of zeros, which looks like a result.
constexpr int kSumBlock = 64;

struct Text {  // its first row and its stride, the number of its rows
  const float* x;
  int stride, length;
  INLINE Vec at(int row, int column) const { return load(x + (ptrdiff_t)row * stride + column); }
};

// Sum over the rows of f(row, x), for one vector of columns.
template <class F>
static INLINE Vec sum_rows(const Text& text, int column, F f) {
  Vec total = zero();
  for (int begin = 0; begin < text.length; begin += kSumBlock) {
    const int end = begin + kSumBlock < text.length ? begin + kSumBlock : text.length;
    Vec sum = zero();
    for (int i = begin; i < end; ++i) sum = f(i, text.at(i, column), sum);
    total = add(total, sum);
  }
  return total;
}

static INLINE Vec pool_sum(const Text& text, int column) {
  return sum_rows(text, column, [&](int, Vec x, Vec sum) INLINE_LAMBDA { return add(sum, x); });
}

static Vec pool_cls(const Text& text, int column) { return text.at(0, column); }
static Vec pool_lasttoken(const Text& text, int column) { return text.at(text.length - 1, column); }
static Vec pool_mean(const Text& text, int column) { return div(pool_sum(text, column), splat((float)text.length)); }
static Vec pool_mean_sqrt_len(const Text& text, int column) {
  return div(pool_sum(text, column), splat(__builtin_sqrtf((float)text.length)));
}
static Vec pool_weightedmean(const Text& text, int column) {
  const Vec sum =
      sum_rows(text, column, [&](int i, Vec x, Vec sum) INLINE_LAMBDA { return fma(x, splat((float)(i + 1)), sum); });
  return div(sum, splat((float)(0.5 * text.length * (text.length + 1.0))));
}
static Vec pool_max(const Text& text, int column) {
  Vec top = text.at(0, column), spoilt = zero();
  for (int i = 0; i < text.length; ++i) {
    top = max(top, text.at(i, column));
    spoilt = add(spoilt, sub(text.at(i, column), text.at(i, column)));  // NaN once a row isn't finite: a NaN must
  }                                                                     // not be lost behind a larger number
  return add(top, spoilt);
}
constexpr decltype(&pool_cls) kPool[] = {pool_cls,           pool_mean,         pool_max,
                                         pool_mean_sqrt_len, pool_weightedmean, pool_lasttoken};

static void normalize_row(float* y, int width) {
  auto at = [&](int j) INLINE_LAMBDA { return read(y, Dtype::f32, j, width - j); };
  const float norm = __builtin_sqrtf(sum_row(width, [&](int j) INLINE_LAMBDA {
    const Vec v = at(j);
    return mul(v, v);
  }));
  const Vec length = splat(norm <= FLT_MAX ? (norm > 1e-12f ? norm : 1e-12f) : __builtin_nanf(""));
  for (int j = 0; j < width; j += kLanes) store_some(y + j, div(at(j), length), width - j);
}

static void pool(const Member& me, float* y, const float* x, int x_stride, const int32_t* offsets, int texts, int width,
                 Pooling pooling, bool normalize) {
  share(me, texts, [&](int t) INLINE_LAMBDA {
    const Text text{x + (ptrdiff_t)offsets[t] * x_stride, x_stride, offsets[t + 1] - offsets[t]};
    float* out = y + (ptrdiff_t)t * width;
    for (int j = 0; j < width; j += kLanes) store_some(out + j, kPool[(int)pooling](text, j), width - j);
    if (normalize) normalize_row(out, width);
  });
}
