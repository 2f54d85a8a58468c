// The contract between the encoder and the kernels of one instruction set (ISA).
//
// Dimension names are those of csrc/README.md: tokens (rows of a packed batch), texts, width, inner, heads, head_dim.
// Activations are f32, row-major, `stride` floats from one row to the next. Every count of columns (n, k, head_dim, a
// padded width) is a multiple of kLanes16; the encoder pads with zeros when it packs, and zeros stay zeros.
// What takes a Member is called by ALL threads of a team, each with its own; they share the work, and all return when
// it is done.
//
// Bits: an output element depends on its own row (in attention and pooling: its own text) and on the weights; never on
// the number of rows, their neighbours, the team's size, the tile that computed it, or the ISA.
#pragma once
#include <cstddef>
#include <cstdint>

#include "member.h"

namespace embed::cpu {

// Part of the numbers' definition, the same for every ISA; not tuning knobs.
constexpr int kChunk = 256;    // K elements in one fma chain; the chains' sums are added in order
constexpr int kLanes16 = 16;   // virtual lanes of every row-wise reduction, and the unit of padding
constexpr int kKeyBlock = 64;  // attention's keys per step of the running softmax, from the text's first token

constexpr int kMaxHeadDim = 128;  // what attention's scratch is made for

enum class Dtype { f32, f16, bf16 };  // of a checkpoint's tensor
enum class Epilogue { bias, gelu, gelu_tanh, relu, silu, residual };
enum class Pooling { cls, mean, max, mean_sqrt_len, weightedmean, lasttoken };

struct Linear {         // y = x W^T + bias
  const float* panels;  // ceil(n / panel) panels of (k, panel) f32, zero columns past n
  const float* bias;    // (n) f32
  int n, k;
};

// A checkpoint's matrix (rows, columns), row-major, on its way into panels. Rows lie in groups of `row_group`, each
// padded with zero rows to a multiple of 16 (one group a head for Q, K, V; one in all otherwise); columns likewise.
struct Source {
  const void* data;
  Dtype dtype;
  int rows, columns, row_group, column_group;
};

struct Table {  // an embedding table (rows, width), row-major without padding, read in place
  const void* data;
  Dtype dtype;
};

struct Kernels {
  const char* name;
  int panel;              // columns of a weight panel
  int attention_scratch;  // floats that attention needs for each thread of the team

  // panels (ceil(n / panel), k, panel) f32 = the `count` sources stacked, widened exactly to f32, padded to (n, k).
  void (*pack)(const Member& me, float* panels, const Source* sources, int count, int n, int k);

  // y (tokens, n) = epilogue(x (tokens, k) W^T + bias). residual (tokens, n) is added by Epilogue::residual alone;
  // y may alias neither x nor residual.
  void (*gemm)(const Member& me, float* y, int y_stride, const float* x, int x_stride, const float* residual,
               int residual_stride, int tokens, const Linear& weights, Epilogue epilogue);

  // out (tokens, heads * head_dim) = softmax(scale Q K^T) V per text and head; qkv (tokens, 3 * heads * head_dim) is
  // Q | K | V. offsets (texts + 1) i32: text t has rows offsets[t] .. offsets[t + 1]. scratch (threads of the team,
  // attention_scratch), aligned to 64 bytes, is overwritten; 200 KB a thread would be too much for a small stack.
  void (*attention)(const Member& me, float* out, int out_stride, const float* qkv, int qkv_stride,
                    const int32_t* offsets, int texts, int heads, int head_dim, float scale, float* scratch);

  // y (tokens, width) = (x - mean) / sqrt(variance + eps) * gain + bias over the first `width` columns, zeros in the
  // padding after them; gain, bias (padded width). y may alias x.
  void (*layer_norm)(const Member& me, float* y, int y_stride, const float* x, int x_stride, const float* gain,
                     const float* bias, int tokens, int width, float eps);

  // y[i] = (word[ids[i]] + type[0]) + position[positions[i]]  (tokens, width), zeros in the padding.
  void (*gather)(const Member& me, float* y, int y_stride, Table word, Table position, Table type, const int32_t* ids,
                 const int32_t* positions, int tokens, int width);

  // y (texts, width), unpadded: one vector a text out of x (tokens, width); scaled to length 1 if `normalize`
  // (divided by max(norm, 1e-12), as torch.nn.functional.normalize does).
  void (*pool)(const Member& me, float* y, const float* x, int x_stride, const int32_t* offsets, int texts, int width,
               Pooling pooling, bool normalize);

  // y[i] = f(x[i]), count a multiple of 16, one thread: for the tests of their error.
  void (*exp2)(float* y, const float* x, size_t count);
  void (*activation)(float* y, const float* x, size_t count, Epilogue epilogue);
};

}  // namespace embed::cpu
