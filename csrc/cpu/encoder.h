// A text encoder over a packed batch, written against one kernel table: the sub-layers of the forward, one run
// of the team each. Weights are packed once into an arena on huge pages; activations live in one workspace that is
// reserved for `max_tokens` rows and touched only as far as batches need it. Not thread-safe: one thread owns an
// encoder.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"
#include "team.h"

namespace embed::cpu {

// A task of GEMM counts the elements of its rows in an int: 192 rows of 3 * 16 * 65536 (Q, K, V; heads of 1, padded).
constexpr int kMaxWidth = 1 << 16, kMaxInner = 1 << 18;

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

struct Padded {                       // counts of columns, each a multiple of 16
  int head_dim, heads, width, inner;  // `heads`: all of them, side by side
};

class Arena {  // zeroed memory straight from the kernel, 2 MiB aligned, on huge pages where allowed
 public:
  static size_t whole_pages(size_t bytes);  // what an arena for so many bytes takes
  explicit Arena(size_t bytes);             // throws std::bad_alloc
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  float* take(size_t floats);  // 64-byte aligned
  size_t bytes() const { return bytes_; }

 private:
  char* data_;
  size_t bytes_, used_ = 0;
};

struct Memory {  // in bytes
  size_t weights;
  size_t workspace;  // reserved, not touched
};

// What an encoder will hold; takes no memory. Throws as its constructor does.
Memory memory_of(const Kernels& kernels, const Shape& shape, int threads, int max_tokens);

class Encoder {
 public:
  // Throws std::invalid_argument if the shape is one that the kernels can't hold, std::system_error without threads.
  Encoder(const Kernels& kernels, const Shape& shape, int threads, int max_tokens);

  // Tables are read in place for the encoder's life; gain and bias are copied.
  void load_embeddings(Table word, Table position, Table type, Tensor gain, Tensor bias);
  void load_layer(int layer, const LayerTensors& tensors);  // packs; the tensors may go away afterwards

  // One forward, in this order, over a batch whose arrays the caller keeps until pool() returns. Ids and positions lie
  // in their tables, every text has a token; more than max_tokens: std::length_error. Out of order, or before every
  // weight is there: std::logic_error; a layer that doesn't exist: std::out_of_range.
  void embed(const int32_t* ids, const int32_t* positions, const int32_t* offsets, int texts);
  void self_attention(int layer);  // states = norm(states + W softmax(Q K^T / sqrt(head_dim)) V)
  void feed_forward(int layer);    // states = norm(states + W activation(W states))
  void pool(float* out, Pooling pooling, bool normalize);  // out (texts, width)

  Memory memory() const { return {weights_.bytes(), workspace_.bytes()}; }

 private:
  struct Layer {
    Linear qkv, output, up, down;
    const float *attention_gain, *attention_bias, *gain, *bias;
    bool loaded = false;
  };
  struct Batch {
    const int32_t* offsets = nullptr;  // null between batches
    int texts = 0, tokens = 0;
  };

  void carve_workspace();
  const float* copy(const Tensor& vector, int count);
  Linear pack(const Source* sources, const Tensor* biases, int count, int n, int k);
  const Layer& loaded(int layer) const;
  void require_batch() const;
  void gemm(const Member& me, float* y, int y_stride, const float* x, int x_stride, const Linear& weights,
            Epilogue epilogue) const;
  void normalize(const Member& me, float* y, const float* x, const float* gain, const float* bias) const;

  const Kernels& kernels_;
  const Shape shape_;
  const int max_tokens_;
  const Padded padded_;
  Team team_;
  Arena weights_, workspace_;
  std::vector<Layer> layers_;
  Table word_{}, position_{}, type_{};
  const float *embedding_gain_ = nullptr, *embedding_bias_ = nullptr;
  // (max_tokens, padded width or more). `wide_` holds Q | K | V, then the feed-forward's inner activations.
  float *states_, *sums_, *context_, *wide_;
  float* scratch_;  // attention's, for every thread
  Batch batch_;
};

}  // namespace embed::cpu
