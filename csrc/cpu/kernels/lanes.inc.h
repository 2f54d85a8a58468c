// Rows taken sixteen columns at a time, whatever the width of a vector, and the one order of a row's sum.
constexpr int kVecs16 = kLanes16 / kLanes;  // vectors that make up the sixteen virtual lanes

static INLINE int round16(int count) { return (count + kLanes16 - 1) / kLanes16 * kLanes16; }

// Sum of sixteen lanes by halves: lane i takes lane i + 8, then i + 4, i + 2, i + 1.
static INLINE float sum_lanes(const Vec* lanes) {
  alignas(64) float lane[kLanes16];
  for (int v = 0; v < kVecs16; ++v) store(lane + v * kLanes, lanes[v]);
  for (int half = kLanes16 / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
}

// Sum of f(0) .. f(width - 1), where f(j) is the vector of columns j .. j + kLanes - 1 and is zero in the padding:
// lane i walks columns i, i + 16, i + 32 ... in order, so that the order depends on the width alone.
template <class F>
static INLINE float sum_row(int width, F f) {
  Vec sum[kVecs16];
  for (int v = 0; v < kVecs16; ++v) sum[v] = zero();
  for (int j = 0; j < width; j += kLanes16)
    for (int v = 0; v < kVecs16; ++v) sum[v] = add(sum[v], f(j + v * kLanes));
  return sum_lanes(sum);
}

static INLINE Vec widen(const void* p, Dtype dtype) {  // kLanes elements
  if (dtype == Dtype::f32) return load((const float*)p);
  return dtype == Dtype::f16 ? widen_f16((const uint16_t*)p) : widen_bf16((const uint16_t*)p);
}

// The `count` elements of `data` from element `at` on, widened, then zeros; nothing past them is read.
static INLINE Vec read(const void* data, Dtype dtype, size_t at, int count) {
  const size_t bytes = dtype == Dtype::f32 ? 4 : 2;
  const char* p = (const char*)data + at * bytes;
  if (count >= kLanes) return widen(p, dtype);
  if (count <= 0) return zero();
  alignas(64) char part[4 * kLanes] = {};
  memcpy(part, p, count * bytes);
  return widen(part, dtype);
}

static INLINE void store_some(float* p, Vec x, int count) {  // the first `count` lanes
  if (count >= kLanes) return store(p, x);
  if (count <= 0) return;
  alignas(64) float part[kLanes];
  store(part, x);
  memcpy(p, part, count * sizeof(float));
}
