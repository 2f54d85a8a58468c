// A text encoder over a packed batch, written against one kernel table: the sub-layers of the forward, one OpenMP
// region each. Weights are packed once into an arena on huge pages; activations live in one workspace that is reserved
// for `max_tokens` rows and touched only as far as batches need it. Not thread-safe: one thread owns an encoder.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace embed::cpu {

struct Shape {
  int layers, width, inner, heads;
  float eps;
  Epilogue activation;  // gelu, gelu_tanh, relu or silu
};

struct Tensor {  // of a checkpoint, row-major, contiguous
  const void* data;
  Dtype dtype;
};

struct LayerTensors {  // weights (out, in); width, inner as in Shape
  Tensor query, query_bias, key, key_bias, value, value_bias, output, output_bias, attention_gain, attention_bias;
  Tensor up, up_bias, down, down_bias, gain, bias;
};

class Arena {  // zeroed memory straight from the kernel, 2 MiB aligned, on huge pages where allowed
 public:
  explicit Arena(size_t bytes);  // throws std::bad_alloc
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  float* take(size_t floats);  // 64-byte aligned
  size_t bytes() const { return bytes_; }

 private:
  char* data_;
  size_t bytes_, used_ = 0;
};

class Encoder {
 public:
  Encoder(const Kernels& kernels, const Shape& shape, int threads, int max_tokens);

  // Tables are read in place for the encoder's life; gain and bias are copied.
  void load_embeddings(Table word, Table position, Table type, Tensor gain, Tensor bias);
  void load_layer(int layer, const LayerTensors& tensors);  // packs; the tensors may go away afterwards

  // One forward, in this order, over a batch whose arrays the caller keeps until pool() returns.
  void embed(const int32_t* ids, const int32_t* positions, const int32_t* offsets, int texts);
  void self_attention(int layer);  // states = norm(states + W softmax(Q K^T / sqrt(head_dim)) V)
  void feed_forward(int layer);    // states = norm(states + W activation(W states))
  void pool(float* out, Pooling pooling, bool normalize);  // out (texts, width)

  size_t weight_bytes() const;
  size_t workspace_bytes() const;  // reserved, not touched

 private:
  // (the implementation decides)
};

}  // namespace embed::cpu
