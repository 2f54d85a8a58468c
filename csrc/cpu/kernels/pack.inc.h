// panels[p][t][j] = W[p * kPanel + j][t]: a checkpoint's matrices, stacked, widened to f32 and padded with zeros.
//
// Blocks of kLanes x kLanes are transposed in registers. A block never crosses a group of rows or of columns, since
// groups are padded to multiples of 16. Runs at memory speed (benchmarks of a load are dominated by page faults).
constexpr int kPanel = kTileVecs * kLanes;

static int panels_of(int n) { return (n + kPanel - 1) / kPanel; }

struct Rows {  // kLanes padded rows: `real` rows of `source` from `first` on, then zeros
  const Source* source;
  int first, real;
};

static INLINE int at_most_lanes(int count) { return count < 0 ? 0 : count < kLanes ? count : kLanes; }

static Rows find_rows(const Source* sources, int count, int row) {
  for (const Source* s = sources; s < sources + count; ++s) {
    const int group = round16(s->row_group), padded = s->rows / s->row_group * group;
    if (row < padded) {
      const int within = row % group;
      return {s, row / group * s->row_group + within, at_most_lanes(s->row_group - within)};
    }
    row -= padded;
  }
  return {sources, 0, 0};  // past n: the last panel's zero columns
}

// out (kLanes, kPanel apart) = the transposed block of `rows` and `columns` columns from `column` on
static INLINE void pack_block(float* out, const Rows& rows, int column, int columns) {
  const Source& s = *rows.source;
  Vec r[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    r[i] = i < rows.real ? read(s.data, s.dtype, (size_t)(rows.first + i) * s.columns + column, columns) : zero();
  transpose(r);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) store(out + i * kPanel, r[i]);
}

static void pack(const Member& me, float* panels, const Source* sources, int count, int n, int k) {
  share(me, panels_of(n), [&](int p) INLINE_LAMBDA {
    for (int j = 0; j < kPanel; j += kLanes) {
      const Rows rows = find_rows(sources, count, p * kPanel + j);
      const int column_group = rows.source->column_group, group = round16(column_group);
      float* out = panels + (size_t)p * kPanel * k + j;
      for (int column = 0, t = 0; t < k; column += column_group, t += group)
        for (int within = 0; within < group; within += kLanes)
          pack_block(out + (size_t)(t + within) * kPanel, rows, column + within, at_most_lanes(column_group - within));
    }
  });
}
