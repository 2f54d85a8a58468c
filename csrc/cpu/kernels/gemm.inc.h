// y (tokens, n) = epilogue(x (tokens, k) W^T + bias): W packed in panels of kPanel columns, x read in place.
//
// Tasks are (block of rows) x (range of panels), shared out dynamically: bits don't depend on who computes.
// In a task:  for kBlockK of K:  for panel:  for chunk of K:  for tile of rows.
//   - a chunk of a panel (256 x 48 f32 = 48 KB) is used by all the task's tiles while in L1/L2
//   - kBlockRows x kBlockK of x stays in L2 while the panels stream past, each tile fetching its share of the next
//   - y holds the sum of the chunks so far; the epilogue follows the last chunk, while the tile is in L1
constexpr int kBlockRows = 192, kBlockK = 768;  // 128 .. 768 made no difference beyond 3 %
constexpr int kTasksPerThread = 4;

// y = epilogue(y + bias), rows x columns, in L1
template <Epilogue e>
static void finish(float* y, int y_stride, const float* bias, const float* residual, int residual_stride, int rows,
                   int columns) {
  for (int j = 0; j < columns; j += kLanes) {
    const Vec b = load(bias + j);
    for (int i = 0; i < rows; ++i) {
      Vec v = activate<e>(add(load(y + i * y_stride + j), b));
      if (e == Epilogue::residual) v = add(v, load(residual + i * residual_stride + j));
      store(y + i * y_stride + j, v);
    }
  }
}
constexpr decltype(&finish<Epilogue::bias>) kFinish[] = {finish<Epilogue::bias>,      finish<Epilogue::gelu>,
                                                         finish<Epilogue::gelu_tanh>, finish<Epilogue::relu>,
                                                         finish<Epilogue::silu>,      finish<Epilogue::residual>};

struct Range {
  int begin, end;
};
// part i of `parts` nearly equal parts of 0 .. count, borders at multiples of `unit`
static Range part_of(int count, int parts, int i, int unit) {
  const long units = (count + unit - 1) / unit;
  const int begin = (int)(units * i / parts) * unit, end = (int)(units * (i + 1) / parts) * unit;
  return {begin, end < count ? end : count};
}

struct Problem {  // the arguments of gemm, for one task
  float* y;
  const float *x, *residual;
  int y_stride, x_stride, residual_stride;
  const Linear& w;
  Epilogue epilogue;
};

struct Chunk {  // K elements t .. t + length of the panel whose first column is `column`, `vecs` vectors wide
  const float* b;
  int column, vecs, t, length;
};

// One chunk of one tile, and its epilogue after the last chunk.
static INLINE void gemm_tile(const Problem& g, const Chunk& chunk, int row, int height, Ahead ahead) {
  float* c = g.y + (ptrdiff_t)row * g.y_stride + chunk.column;
  const float* a = g.x + (ptrdiff_t)row * g.x_stride + chunk.t;
  const bool last = chunk.t + chunk.length >= g.w.k;
  const float* r = g.residual;
  if (g.epilogue == Epilogue::residual) r += (ptrdiff_t)row * g.residual_stride + chunk.column;
  if (last && g.epilogue == Epilogue::residual)  // 450 -> 470 GFLOP/s at 2512 x 768 x 768 (Zen 5, 2 threads)
    for (int i = 0; i < height; ++i)
      for (int j = 0; j < chunk.vecs * kLanes; j += 16) __builtin_prefetch(r + i * g.residual_stride + j);
  if (chunk.t == 0)
    tile_of<Order::rows>(height, chunk.vecs, c, g.y_stride, a, g.x_stride, chunk.b, kPanel, chunk.length, ahead, Set());
  else
    tile_of<Order::rows>(height, chunk.vecs, c, g.y_stride, a, g.x_stride, chunk.b, kPanel, chunk.length, ahead, Add());
  if (last)
    kFinish[(int)g.epilogue](c, g.y_stride, g.w.bias + chunk.column, r, g.residual_stride, height, chunk.vecs * kLanes);
}

// 9 .. 12 rows as one tall tile, in passes over parts of the panel, so that each weight is loaded once: base shape, 11
// tokens, 6.9 -> 6.1 ms (Zen 5, 2 threads).
static INLINE void gemm_tall(const Problem& g, const Chunk& chunk, Range rows, const char* next, int bytes) {
  for (int v = 0; v < chunk.vecs; v += kTallVecs) {
    const int vecs = chunk.vecs - v < kTallVecs ? chunk.vecs - v : kTallVecs, share = bytes / kTileVecs;
    const Chunk part{chunk.b + v * kLanes, chunk.column + v * kLanes, vecs, chunk.t, chunk.length};
    const Ahead ahead{next + (size_t)v * share, share * vecs / (kChunk / 4)};
    gemm_tile(g, part, rows.begin, rows.end - rows.begin, ahead);
  }
}

static INLINE void gemm_tiles(const Problem& g, const Chunk& chunk, Range rows, const Tiles& tiles, const char* next,
                              int bytes) {
  const int share = bytes / tiles.count;
  for (int i = 0; i < tiles.count; ++i) {
    const Ahead ahead{next + (size_t)i * share, share / (kChunk / 4)};
    gemm_tile(g, chunk, rows.begin + tiles.begin(i), tiles.height(i), ahead);
  }
}

static void gemm_block(const Problem& g, Range rows, Range panels) {
  const int k = g.w.k, count = rows.end - rows.begin;
  const bool tall = count > kTileRows && count <= kTallRows;
  const Tiles tiles(count);
  constexpr int kChunkBytes = kChunk * kPanel * (int)sizeof(float);
  for (int k0 = 0; k0 < k; k0 += kBlockK) {
    const int k1 = k0 + kBlockK < k ? k0 + kBlockK : k;
    for (int p = panels.begin; p < panels.end; ++p) {
      const int column = p * kPanel, left = g.w.n - column, vecs = (left < kPanel ? left : kPanel) / kLanes;
      for (int t = k0; t < k1; t += kChunk) {
        const Chunk chunk{g.w.panels + ((size_t)p * k + t) * kPanel, column, vecs, t,
                          t + kChunk < k1 ? kChunk : k1 - t};
        // Each tile fetches its part of the next chunk while it computes; the task's last chunk has none.
        const float* next = t + kChunk < k1      ? chunk.b + (size_t)kChunk * kPanel
                            : p + 1 < panels.end ? g.w.panels + ((size_t)(p + 1) * k + k0) * kPanel
                                                 : chunk.b;
        if (tall)
          gemm_tall(g, chunk, rows, (const char*)next, kChunkBytes);
        else
          gemm_tiles(g, chunk, rows, tiles, (const char*)next, kChunkBytes);
      }
    }
  }
}

static void gemm(const Member& me, float* y, int y_stride, const float* x, int x_stride, const float* residual,
                 int residual_stride, int tokens, const Linear& w, Epilogue epilogue) {
  if (tokens == 0) return;
  const Problem g{y, x, residual, y_stride, x_stride, residual_stride, w, epilogue};
  const int panels = panels_of(w.n);
  const int row_parts = (tokens + kBlockRows - 1) / kBlockRows;
  // Few rows: one range of panels per thread, so that W is read once, in order. Many: enough tasks to even out.
  const int wanted = row_parts == 1 ? me.threads : kTasksPerThread * me.threads;
  int panel_parts = (wanted + row_parts - 1) / row_parts;
  if (panel_parts > panels) panel_parts = panels;
  share(me, row_parts * panel_parts, [&](int task) INLINE_LAMBDA {
    gemm_block(g, part_of(tokens, row_parts, task / panel_parts, kTileRows),
               part_of(panels, panel_parts, task % panel_parts, 1));
  });
}
