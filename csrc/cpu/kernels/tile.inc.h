// The micro-kernel: C (M, N * kLanes) = out(A (M, k) x B (k, N * kLanes)), one fma chain per element, k ascending.
//
//   A  broadcast element by element. Rows:    a[i * a_stride + t]   (activations, keys)
//                                    Columns: a[i + t * a_stride]   (values, read transposed in place)
//   B  k rows of N vectors, b_width apart: a weight panel, or queries / probabilities in the lanes
//   C  M rows of N vectors, c_stride apart; `out` says how the chain's sum joins what is there
//
// GEMM and attention share it, so that there is one place where the order of a sum is decided.
enum class Order { rows, columns };

struct Set {
  INLINE Vec operator()(const float*, Vec sum, int) const { return sum; }
};
struct Add {
  INLINE Vec operator()(const float* c, Vec sum, int) const { return add(load(c), sum); }
};

struct Ahead {  // bytes that the next tiles will want: fetched a few lines per step, evenly over the tile
  const char* next;
  int per_four_steps;
};

template <int M, int N, Order order, class Out>
static INLINE void tile(float* c, int c_stride, const float* a, ptrdiff_t a_stride, const float* b, int b_width, int k,
                        Ahead ahead, Out out) {
  Vec sum[M][N];
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) sum[i][j] = zero();

  // One pointer per three rows: x86 addresses p, p + s and p + 2 s, so 8 rows need 3 registers, not 8.
  const float* row[(M + 2) / 3];
#pragma GCC unroll 8
  for (int i = 0; i < (M + 2) / 3; ++i) {
    row[i] = a + 3 * i * a_stride;
    asm("" : "+r"(row[i]));  // else GCC derives all 8 again and spills
  }
  auto step = [&](int u) INLINE_LAMBDA {  // sum += A[:, t + u] x B[t + u, :]
    Vec w[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) w[j] = load(b + u * b_width + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      const Vec x = splat(order == Order::rows ? (row[i / 3] + (i % 3) * a_stride)[u] : a[i + u * a_stride]);
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) sum[i][j] = fma(x, w[j], sum[i][j]);
    }
  };
  constexpr int kUnroll = 4;
  int t = 0;
#pragma GCC unroll 1
  for (; t + kUnroll <= k; t += kUnroll) {
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u) step(u);
    b += kUnroll * b_width;
    a += kUnroll * a_stride;
#pragma GCC unroll 8
    for (int i = 0; i < (M + 2) / 3; ++i) row[i] += kUnroll;
#pragma GCC unroll 1
    for (int left = ahead.per_four_steps; left > 0; left -= 64, ahead.next += 64) __builtin_prefetch(ahead.next, 0, 3);
  }
  if (order == Order::columns)  // attention's keys may be any number; K of a GEMM is a multiple of 16
#pragma GCC unroll 1
    for (; t < k; ++t, b += b_width, a += a_stride) step(0);
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      float* p = c + i * c_stride + j * kLanes;
      store(p, out(p, sum[i][j], j));
    }
}

// The most rows of a tile N vectors wide: narrower tiles have registers for more.
static constexpr int tallest(int vecs) { return vecs <= kTallVecs ? kTallRows : kTileRows; }

// The same with the number of rows chosen at run time, 1 .. M.
template <int M, int N, Order order, class Out>
static __attribute__((noinline)) void tile_of(int rows, float* c, int c_stride, const float* a, ptrdiff_t a_stride,
                                              const float* b, int b_width, int k, Ahead ahead, Out out) {
  if constexpr (M > 1)
    if (rows < M) return tile_of<M - 1, N, order>(rows, c, c_stride, a, a_stride, b, b_width, k, ahead, out);
  tile<M, N, order>(c, c_stride, a, a_stride, b, b_width, k, ahead, out);
}

// And the number of vectors, kStepVecs, 2 kStepVecs .. kTileVecs.
template <Order order, class Out, int N = kTileVecs>
static INLINE void tile_of(int rows, int vecs, float* c, int c_stride, const float* a, ptrdiff_t a_stride,
                           const float* b, int b_width, int k, Ahead ahead, Out out) {
  if constexpr (N > kStepVecs)
    if (vecs < N)
      return tile_of<order, Out, N - kStepVecs>(rows, vecs, c, c_stride, a, a_stride, b, b_width, k, ahead, out);
  tile_of<tallest(N), N, order>(rows, c, c_stride, a, a_stride, b, b_width, k, ahead, out);
}

// `rows` in equal tiles of at most `most`: 9 rows are 5 + 4, not 8 + 1 (a one-row tile waits on its own sums).
struct Tiles {
  int count, size, larger;  // the first `larger` tiles have one row more
  explicit INLINE Tiles(int rows, int most = kTileRows)
      : count((rows + most - 1) / most), size(count ? rows / count : 0), larger(count ? rows % count : 0) {}
  INLINE int begin(int i) const { return i * size + (i < larger ? i : larger); }
  INLINE int height(int i) const { return begin(i + 1) - begin(i); }
};
