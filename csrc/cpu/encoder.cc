// The sub-layers of the forward over one kernel table; see encoder.h. Each is one run of the team, and the kernels' own
// barriers do between them.
#include "encoder.h"

#include <math.h>
#include <string.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "half.h"

namespace embed::cpu {
namespace {

constexpr int kRowGap = 16;  // floats between rows: rows 4,096 bytes apart would share one L1 set (up to 10 % of GEMM)

int round16(int count) { return (count + kLanes16 - 1) / kLanes16 * kLanes16; }
int stride_of(int columns) { return columns + kRowGap; }

float element(const Tensor& tensor, size_t i) {
  if (tensor.dtype == Dtype::f32) return ((const float*)tensor.data)[i];
  const uint16_t bits = ((const uint16_t*)tensor.data)[i];
  return tensor.dtype == Dtype::f16 ? widen_f16(bits) : widen_bf16(bits);
}

// out = the vector's groups of `group` elements, each padded to a multiple of 16 (the arena's zeros); returns the end
float* copy_groups(float* out, const Tensor& vector, int count, int group) {
  for (int i = 0; i < count; ++i) out[i / group * round16(group) + i % group] = element(vector, i);
  return out + count / group * round16(group);
}

const Shape& checked(const Shape& s, int threads, int max_tokens) {
  auto refuse_unless = [](bool fine, const char* message) {
    if (!fine) throw std::invalid_argument(message);
  };
  refuse_unless(s.layers > 0 && s.width > 0 && s.inner > 0 && s.heads > 0,
                "layers, width, inner and heads must each be at least 1");
  if (s.width > kMaxWidth || s.inner > kMaxInner)
    throw std::invalid_argument("width is at most " + std::to_string(kMaxWidth) + " and inner at most " +
                                std::to_string(kMaxInner));
  refuse_unless(s.width % s.heads == 0, "width must be a multiple of heads");
  if (s.width / s.heads > kMaxHeadDim)
    throw std::invalid_argument("a head is at most " + std::to_string(kMaxHeadDim) + " wide, not " +
                                std::to_string(s.width / s.heads));
  refuse_unless(s.activation != Epilogue::bias && s.activation != Epilogue::residual, "this is no activation");
  refuse_unless(threads > 0 && max_tokens > 0, "threads and max_tokens must each be at least 1");
  return s;
}

Padded padded(const Shape& s) {
  const int head_dim = round16(s.width / s.heads);
  return {head_dim, s.heads * head_dim, round16(s.width), round16(s.inner)};
}

size_t panel_floats(const Kernels& kernels, int n, int k) {
  return (size_t)((n + kernels.panel - 1) / kernels.panel) * kernels.panel * k;
}

size_t weight_floats(const Kernels& kernels, const Shape& shape) {
  const auto [head_dim, heads, width, inner] = padded(shape);
  const size_t matrices = panel_floats(kernels, 3 * heads, width) + panel_floats(kernels, width, heads) +
                          panel_floats(kernels, inner, width) + panel_floats(kernels, width, inner);
  const size_t vectors = 3 * (size_t)heads + 6 * (size_t)width + inner;
  return shape.layers * (matrices + vectors) + 2 * (size_t)width;
}

struct Workspace {  // floats of each buffer
  size_t narrow, context, wide, scratch;
  size_t total() const { return 2 * narrow + context + wide + scratch; }  // two narrow ones: states and sums
};

Workspace workspace(const Kernels& kernels, const Padded& padded, int threads, int max_tokens) {
  const size_t rows = max_tokens;
  return {rows * stride_of(padded.width), rows * stride_of(padded.heads),
          rows * stride_of(std::max(3 * padded.heads, padded.inner)), (size_t)threads * kernels.attention_scratch};
}

}  // namespace

Memory memory_of(const Kernels& kernels, const Shape& shape, int threads, int max_tokens) {
  checked(shape, threads, max_tokens);
  return {Arena::whole_pages(sizeof(float) * weight_floats(kernels, shape)),
          Arena::whole_pages(sizeof(float) * workspace(kernels, padded(shape), threads, max_tokens).total())};
}

Encoder::Encoder(const Kernels& kernels, const Shape& shape, int threads, int max_tokens)
    : kernels_(kernels),
      shape_(checked(shape, threads, max_tokens)),
      max_tokens_(max_tokens),
      padded_(padded(shape)),
      team_(threads),
      weights_(memory_of(kernels, shape, threads, max_tokens).weights),
      workspace_(memory_of(kernels, shape, threads, max_tokens).workspace),
      layers_(shape.layers) {
  carve_workspace();
}

// By capacity, so that a buffer lies at the same place whatever the batch, and memory once touched serves all.
void Encoder::carve_workspace() {
  const Workspace sizes = workspace(kernels_, padded_, team_.threads(), max_tokens_);
  states_ = workspace_.take(sizes.narrow);
  sums_ = workspace_.take(sizes.narrow);
  context_ = workspace_.take(sizes.context);
  wide_ = workspace_.take(sizes.wide);
  scratch_ = workspace_.take(sizes.scratch);
}

const float* Encoder::copy(const Tensor& vector, int count) {
  float* out = weights_.take(round16(count));
  copy_groups(out, vector, count, count);
  return out;
}

Linear Encoder::pack(const Source* sources, const Tensor* biases, int count, int n, int k) {
  float *panels = weights_.take(panel_floats(kernels_, n, k)), *bias = weights_.take(n), *end = bias;
  team_.run([&](const Member& me) { kernels_.pack(me, panels, sources, count, n, k); });
  for (int i = 0; i < count; ++i) end = copy_groups(end, biases[i], sources[i].rows, sources[i].row_group);
  return {panels, bias, n, k};
}

void Encoder::load_embeddings(Table word, Table position, Table type, Tensor gain, Tensor bias) {
  if (embedding_gain_) throw std::logic_error("the embeddings are already loaded");
  const IeeeFloats floats;
  word_ = word, position_ = position, type_ = type;
  embedding_bias_ = copy(bias, shape_.width);
  embedding_gain_ = copy(gain, shape_.width);
}

void Encoder::load_layer(int layer, const LayerTensors& t) {
  Layer& l = layers_.at(layer);
  if (l.loaded) throw std::logic_error("layer " + std::to_string(layer) + " is already loaded");
  const IeeeFloats floats;
  const int width = shape_.width, inner = shape_.inner, head_dim = width / shape_.heads;
  auto source = [](const Tensor& tensor, int rows, int columns, int row_group, int column_group) {
    return Source{tensor.data, tensor.dtype, rows, columns, row_group, column_group};
  };
  const Source qkv[] = {source(t.query, width, width, head_dim, width), source(t.key, width, width, head_dim, width),
                        source(t.value, width, width, head_dim, width)};
  const Tensor qkv_bias[] = {t.query_bias, t.key_bias, t.value_bias};
  const Source output = source(t.output, width, width, width, head_dim);
  const Source up = source(t.up, inner, width, inner, width), down = source(t.down, width, inner, width, inner);
  l.qkv = pack(qkv, qkv_bias, 3, 3 * padded_.heads, padded_.width);
  l.output = pack(&output, &t.output_bias, 1, padded_.width, padded_.heads);
  l.up = pack(&up, &t.up_bias, 1, padded_.inner, padded_.width);
  l.down = pack(&down, &t.down_bias, 1, padded_.width, padded_.inner);
  l.attention_gain = copy(t.attention_gain, width), l.attention_bias = copy(t.attention_bias, width);
  l.gain = copy(t.gain, width), l.bias = copy(t.bias, width);
  l.loaded = true;
}

const Encoder::Layer& Encoder::loaded(int layer) const {
  const Layer& l = layers_.at(layer);
  if (!l.loaded) throw std::logic_error("layer " + std::to_string(layer) + " has no weights yet");
  return l;
}

void Encoder::require_batch() const {
  if (!batch_.offsets) throw std::logic_error("embed() comes before the layers and pool()");
}

// y (tokens, n) = epilogue(x W^T + bias), the residual being the states
void Encoder::gemm(const Member& me, float* y, int y_stride, const float* x, int x_stride, const Linear& weights,
                   Epilogue epilogue) const {
  kernels_.gemm(me, y, y_stride, x, x_stride, states_, stride_of(padded_.width), batch_.tokens, weights, epilogue);
}

void Encoder::normalize(const Member& me, float* y, const float* x, const float* gain, const float* bias) const {
  const int stride = stride_of(padded_.width);
  kernels_.layer_norm(me, y, stride, x, stride, gain, bias, batch_.tokens, shape_.width, shape_.eps);
}

void Encoder::embed(const int32_t* ids, const int32_t* positions, const int32_t* offsets, int texts) {
  if (!embedding_gain_) throw std::logic_error("the embeddings have no weights yet");
  if (offsets[texts] > max_tokens_)
    throw std::length_error("a batch of " + std::to_string(offsets[texts]) + " tokens, but room for " +
                            std::to_string(max_tokens_));
  batch_ = {offsets, texts, offsets[texts]};
  team_.run([&](const Member& me) {
    kernels_.gather(me, states_, stride_of(padded_.width), word_, position_, type_, ids, positions, batch_.tokens,
                    shape_.width);
    normalize(me, states_, states_, embedding_gain_, embedding_bias_);
  });
}

void Encoder::self_attention(int layer) {
  require_batch();
  const Layer& l = loaded(layer);
  const int narrow = stride_of(padded_.width), context = stride_of(padded_.heads), wide = stride_of(3 * padded_.heads);
  const float scale = 1.0f / sqrtf((float)(shape_.width / shape_.heads));
  team_.run([&](const Member& me) {
    gemm(me, wide_, wide, states_, narrow, l.qkv, Epilogue::bias);
    kernels_.attention(me, context_, context, wide_, wide, batch_.offsets, batch_.texts, shape_.heads, padded_.head_dim,
                       scale, scratch_);
    gemm(me, sums_, narrow, context_, context, l.output, Epilogue::residual);
    normalize(me, states_, sums_, l.attention_gain, l.attention_bias);
  });
}

void Encoder::feed_forward(int layer) {
  require_batch();
  const Layer& l = loaded(layer);
  const int narrow = stride_of(padded_.width), wide = stride_of(padded_.inner);
  team_.run([&](const Member& me) {
    gemm(me, wide_, wide, states_, narrow, l.up, shape_.activation);
    gemm(me, sums_, narrow, wide_, wide, l.down, Epilogue::residual);
    normalize(me, states_, sums_, l.gain, l.bias);
  });
}

void Encoder::pool(float* out, Pooling pooling, bool normalize) {
  require_batch();
  team_.run([&](const Member& me) {
    kernels_.pool(me, out, states_, stride_of(padded_.width), batch_.offsets, batch_.texts, shape_.width, pooling,
                  normalize);
  });
  batch_ = {};
}

}  // namespace embed::cpu
