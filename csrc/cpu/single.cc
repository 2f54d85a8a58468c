#include "single.h"

#include <math.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "team.h"

namespace embed::cpu::single {
namespace {

int round16(int count) { return (count + kLanes16 - 1) / kLanes16 * kLanes16; }

// Rows as the encoder lays them out: columns in groups, each padded with zeros to a multiple of 16. Between the rows
// lie NaNs, which spread into any result that reads there.
class Rows {
 public:
  Rows(int rows, int columns, int group = 0)
      : rows_(rows),
        columns_(columns),
        group_(group ? group : columns),
        padded_(columns / group_ * round16(group_)),
        data_((size_t)rows * stride(), NAN) {}

  Rows(const float* from, int rows, int columns, int group = 0) : Rows(rows, columns, group) {
    for (int i = 0; i < rows; ++i) {
      std::fill_n(row(i), padded_, 0.0f);
      for (int j = 0; j < columns; ++j) row(i)[place(j)] = from[(size_t)i * columns + j];
    }
  }

  void copy_out(float* to) const {
    for (int i = 0; i < rows_; ++i)
      for (int j = 0; j < columns_; ++j) to[(size_t)i * columns_ + j] = data_[(size_t)i * stride() + place(j)];
  }

  int stride() const { return padded_ + 16; }
  float* data() { return data_.data(); }

 private:
  float* row(int i) { return data_.data() + (size_t)i * stride(); }
  int place(int j) const { return j / group_ * round16(group_) + j % group_; }

  int rows_, columns_, group_, padded_;
  std::vector<float> data_;
};

}  // namespace

void pack(const Kernels& kernels, float* panels, const Source* sources, int count, int n, int k, int threads) {
  Team(threads).run([&](const Member& me) { kernels.pack(me, panels, sources, count, n, k); });
}

void gemm(const Kernels& kernels, float* y, const float* x, Tensor weight, const float* bias, const float* residual,
          int tokens, int n, int k, Epilogue epilogue, int threads) {
  const int columns = round16(n), depth = round16(k), panels = (columns + kernels.panel - 1) / kernels.panel;
  std::vector<float> packed((size_t)panels * kernels.panel * depth, NAN);
  Rows in(x, tokens, k), out(tokens, n), padded_bias(bias, 1, n),
      added(residual ? Rows(residual, tokens, n) : Rows(0, n));
  const Source source{weight.data, weight.dtype, n, k, n, k};
  const Linear linear{packed.data(), padded_bias.data(), columns, depth};
  Team(threads).run([&](const Member& me) {
    kernels.pack(me, packed.data(), &source, 1, columns, depth);
    kernels.gemm(me, out.data(), out.stride(), in.data(), in.stride(), added.data(), added.stride(), tokens, linear,
                 epilogue);
  });
  out.copy_out(y);
}

void attention(const Kernels& kernels, float* out, const float* qkv, const int32_t* offsets, int texts, int heads,
               int head_dim, int threads) {
  const int tokens = offsets[texts];
  Rows in(qkv, tokens, 3 * heads * head_dim, head_dim), context(tokens, heads * head_dim, head_dim);
  const float scale = 1.0f / sqrtf((float)head_dim);
  struct alignas(64) Line {
    float floats[16];
  };
  std::vector<Line> scratch((size_t)threads * kernels.attention_scratch / 16);
  Team(threads).run([&](const Member& me) {
    kernels.attention(me, context.data(), context.stride(), in.data(), in.stride(), offsets, texts, heads,
                      round16(head_dim), scale, scratch.data()->floats);
  });
  context.copy_out(out);
}

void layer_norm(const Kernels& kernels, float* y, const float* x, const float* gain, const float* bias, int tokens,
                int width, float eps, int threads) {
  Rows in(x, tokens, width), out(tokens, width), padded_gain(gain, 1, width), padded_bias(bias, 1, width);
  Team(threads).run([&](const Member& me) {
    kernels.layer_norm(me, out.data(), out.stride(), in.data(), in.stride(), padded_gain.data(), padded_bias.data(),
                       tokens, width, eps);
  });
  out.copy_out(y);
}

void gather(const Kernels& kernels, float* y, Table word, Table position, Table type, const int32_t* ids,
            const int32_t* positions, int tokens, int width, int threads) {
  Rows out(tokens, width);
  Team(threads).run([&](const Member& me) {
    kernels.gather(me, out.data(), out.stride(), word, position, type, ids, positions, tokens, width);
  });
  out.copy_out(y);
}

void pool(const Kernels& kernels, float* y, const float* x, const int32_t* offsets, int texts, int width,
          Pooling pooling, bool normalize, int threads) {
  Rows in(x, offsets[texts], width);
  Team(threads).run([&](const Member& me) {
    kernels.pool(me, y, in.data(), in.stride(), offsets, texts, width, pooling, normalize);
  });
}

void exp2(const Kernels& kernels, float* y, const float* x, size_t count) {
  Rows in(x, 1, (int)count), out(1, (int)count);
  const IeeeFloats floats;
  kernels.exp2(out.data(), in.data(), out.stride() - 16);
  out.copy_out(y);
}

void activation(const Kernels& kernels, float* y, const float* x, size_t count, Epilogue epilogue) {
  Rows in(x, 1, (int)count), out(1, (int)count);
  const IeeeFloats floats;
  kernels.activation(out.data(), in.data(), out.stride() - 16, epilogue);
  out.copy_out(y);
}

}  // namespace embed::cpu::single
