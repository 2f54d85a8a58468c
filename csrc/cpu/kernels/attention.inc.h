// out (tokens, heads * head_dim) = softmax(scale Q K^T) V, per text and head, over a packed ragged batch.
//
// Queries live in the lanes: S^T (keys, kPanel) = K x Q^T and O^T (head_dim, kPanel) = V^T x P^T are the GEMM tile,
// with K and V broadcast in place, and every softmax step is vertical: maximum and sum run over keys, in order, lane by
// lane. A query's bits so depend on its text alone: key blocks start at the text's first token.
// Online softmax in base 2: log2(e) * scale is folded into Q. Scratch: at most 210 KB a thread, whatever the length.
constexpr int kGroups = 4;  // groups of kPanel queries that reuse a K, V block while it is in L1

struct Rescale {  // O = O * shrink + P V
  const float* shrink;
  INLINE Vec operator()(const float* o, Vec sum, int j) const { return fma(load(o), load(shrink + j * kLanes), sum); }
};

struct Group {                                // the state of kPanel queries
  alignas(64) float q[kMaxHeadDim * kPanel];  // (head_dim, kPanel)
  alignas(64) float o[kMaxHeadDim * kPanel];  // (head_dim, kPanel)
  alignas(64) float highest[kPanel], sum[kPanel];
  int queries, vecs;  // lanes in use, and the vectors that hold them
};

struct Scratch {  // of one thread
  Group group[kGroups];
  alignas(64) float s[kKeyBlock * kPanel], shrink[kPanel];  // S^T, then P^T, of one group and block of keys
};
constexpr int kScratchFloats = sizeof(Scratch) / sizeof(float);

// group.q = factor * Q^T; lanes past `queries` are zero
static void load_queries(Group& g, const float* q, int stride, int queries, int head_dim, float factor) {
  g.queries = queries;
  g.vecs = (queries + kLanes * kStepVecs - 1) / (kLanes * kStepVecs) * kStepVecs;
  for (int j = 0; j < g.vecs * kLanes; j += kLanes)
    for (int d = 0; d < head_dim; d += kLanes) {
      Vec r[kLanes];
      for (int i = 0; i < kLanes; ++i)
        r[i] = j + i < queries ? mul(load(q + (ptrdiff_t)(j + i) * stride + d), splat(factor)) : zero();
      transpose(r);
      for (int i = 0; i < kLanes; ++i) store(g.q + (d + i) * kPanel + j, r[i]);
    }
  for (int j = 0; j < kPanel; ++j) g.highest[j] = -FLT_MAX, g.sum[j] = 0;
  memset(g.o, 0, sizeof(float) * head_dim * kPanel);
}

// out rows = (O / sum)^T
static void store_output(float* out, int stride, const Group& g, int head_dim) {
  for (int j = 0; j < g.queries; j += kLanes) {
    const Vec inverse = div(splat(1.0f), load(g.sum + j));
    for (int d = 0; d < head_dim; d += kLanes) {
      Vec r[kLanes];
      for (int i = 0; i < kLanes; ++i) r[i] = mul(load(g.o + (d + i) * kPanel + j), inverse);
      transpose(r);
      for (int i = 0; i < kLanes && j + i < g.queries; ++i) store(out + (ptrdiff_t)(j + i) * stride + d, r[i]);
    }
  }
}

// S^T -> P^T in place for one vector of queries; `shrink` receives what older sums must be multiplied by
static INLINE void softmax_block(float* s, int keys, float* highest, float* sum, float* shrink) {
  const Vec before = load(highest);
  Vec top = before;
  for (int t = 0; t < keys; ++t) top = max(top, load(s + t * kPanel));
  const Vec factor = exp2(sub(before, top));
  Vec total = mul(load(sum), factor);
#pragma GCC unroll 2
  for (int t = 0; t < keys; ++t) {
    const Vec p = exp2(sub(load(s + t * kPanel), top));
    total = add(total, p);
    store(s + t * kPanel, p);
  }
  store(highest, top), store(sum, total), store(shrink, factor);
}

// One block of at most kKeyBlock keys, k and v at its first row.
static void attend(Group& g, float* s, float* shrink, const float* k, const float* v, int stride, int keys,
                   int head_dim) {
  const Tiles by_key(keys, tallest(g.vecs)), by_dim(head_dim, tallest(g.vecs));
  for (int i = 0; i < by_key.count; ++i)
    tile_of<Order::rows>(by_key.height(i), g.vecs, s + by_key.begin(i) * kPanel, kPanel,
                         k + (ptrdiff_t)by_key.begin(i) * stride, stride, g.q, kPanel, head_dim, Ahead{}, Set());
  for (int j = 0; j < g.vecs * kLanes; j += kLanes) softmax_block(s + j, keys, g.highest + j, g.sum + j, shrink + j);
  for (int i = 0; i < by_dim.count; ++i)
    tile_of<Order::columns>(by_dim.height(i), g.vecs, g.o + by_dim.begin(i) * kPanel, kPanel, v + by_dim.begin(i),
                            stride, s, kPanel, keys, Ahead{}, Rescale{shrink});
}

// Rows of one head lie 128 or 256 bytes long, 3 * width apart: no hardware prefetcher follows that.
static INLINE void prefetch_rows(const float* p, int stride, int rows, int head_dim) {
  for (int i = 0; i < rows; ++i)
    for (int d = 0; d < head_dim; d += 16) __builtin_prefetch(p + (ptrdiff_t)i * stride + d);
}

struct Head {  // of one text: pointers to its first row's part of the head
  float* out;
  const float *q, *k, *v;
  int out_stride, stride, length, head_dim;
};

static void attention_task(Scratch& scratch, const Head& h, int first_query, int queries, float factor) {
  Group* group = scratch.group;
  const int groups = (queries + kPanel - 1) / kPanel;
  auto keys_from = [&](int t) INLINE_LAMBDA { return h.length - t < kKeyBlock ? h.length - t : kKeyBlock; };
  auto row = [&](const float* p, int t) INLINE_LAMBDA { return p + (ptrdiff_t)t * h.stride; };
  prefetch_rows(h.k, h.stride, keys_from(0), h.head_dim);
  for (int g = 0; g < groups; ++g) {
    const int left = queries - g * kPanel;
    load_queries(group[g], row(h.q, first_query + g * kPanel), h.stride, left < kPanel ? left : kPanel, h.head_dim,
                 factor);
  }
  for (int t = 0; t < h.length; t += kKeyBlock) {
    const int keys = keys_from(t), next = t + kKeyBlock;
    prefetch_rows(row(h.v, t), h.stride, keys, h.head_dim);
    if (next < h.length) prefetch_rows(row(h.k, next), h.stride, keys_from(next), h.head_dim);
    for (int g = 0; g < groups; ++g)
      attend(group[g], scratch.s, scratch.shrink, row(h.k, t), row(h.v, t), h.stride, keys, h.head_dim);
  }
  for (int g = 0; g < groups; ++g)
    store_output(h.out + (ptrdiff_t)(first_query + g * kPanel) * h.out_stride, h.out_stride, group[g], h.head_dim);
}

static void attention(const Member& me, float* out, int out_stride, const float* qkv, int stride,
                      const int32_t* offsets, int texts, int heads, int head_dim, float scale, float* scratch) {
  Scratch& mine = ((Scratch*)scratch)[me.index];
  constexpr int kQueries = kGroups * kPanel;  // of one task
  const int width = heads * head_dim;
  const float factor = scale * 1.44269504f;
  auto blocks_of = [&](int t) INLINE_LAMBDA { return (offsets[t + 1] - offsets[t] + kQueries - 1) / kQueries; };
  int tasks = 0;
  for (int t = 0; t < texts; ++t) tasks += blocks_of(t) * heads;
  int text = 0, before = 0;  // each thread meets its tasks in ascending order and finds the text by walking
  share(me, tasks, [&](int task) INLINE_LAMBDA {
    while (task >= before + blocks_of(text) * heads) before += blocks_of(text++) * heads;
    const int blocks = blocks_of(text), head = (task - before) / blocks, first = (task - before) % blocks * kQueries;
    const int length = offsets[text + 1] - offsets[text], left = length - first;
    const float* q = qkv + (ptrdiff_t)offsets[text] * stride + head * head_dim;
    float* o = out + (ptrdiff_t)offsets[text] * out_stride + head * head_dim;
    attention_task(mine, {o, q, q + width, q + 2 * width, out_stride, stride, length, head_dim}, first,
                   left < kQueries ? left : kQueries, factor);
  });
}
