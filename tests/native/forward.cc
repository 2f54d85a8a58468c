// Runs a forward that tests/native/dump.py wrote down, so that any machine's bytes can be compared with any other's.
//
// The file, little-endian: eleven int32 (layers, width, inner, heads, activation, pooling, normalize, texts, tokens,
// vocab, positions), one f32 (eps); then f32 tensors: word, position, type, gain, bias, and per layer those of
// LayerTensors in its order; then int32 ids (tokens), positions (tokens), offsets (texts + 1).
#include "driver.h"

#include <stdio.h>

#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "dispatch.h"

using namespace embed::cpu;

namespace {

struct Header {
  int32_t layers, width, inner, heads, activation, pooling, normalize, texts, tokens, vocab, positions;
  float eps;
};

class Reader {
 public:
  explicit Reader(const char* path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error(std::string("cannot read ") + path);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
  }
  template <class T>
  const T* take(size_t count) {
    if (count * sizeof(T) > bytes_.size() - at_) throw std::runtime_error("the file is too short for its header");
    const char* p = bytes_.data() + at_;
    at_ += count * sizeof(T);
    return (const T*)p;
  }
  Tensor tensor(size_t count) { return {take<float>(count), Dtype::f32}; }
  Table table(size_t count) { return {take<float>(count), Dtype::f32}; }

 private:
  std::vector<char> bytes_;
  size_t at_ = 0;
};

}  // namespace

int forward(const char* path, const char* isa) {
  const Kernels* kernels = find_kernels(isa);
  if (!kernels) throw std::runtime_error(std::string("this machine doesn't run ") + isa);
  Reader in(path);
  const Header h = *in.take<Header>(1);
  const Shape shape{h.layers, h.width, h.inner, h.heads, h.eps, (Epilogue)h.activation};
  Encoder encoder(*kernels, shape, 2, h.tokens);
  const size_t width = h.width;
  const Table word = in.table(h.vocab * width), position = in.table(h.positions * width), type = in.table(width);
  const Tensor gain = in.tensor(width), bias = in.tensor(width);
  encoder.load_embeddings(word, position, type, gain, bias);
  for (int i = 0; i < h.layers; ++i)
    encoder.load_layer(i, layer_tensors(width, h.inner, [&](size_t count) { return in.tensor(count); }));
  const int32_t *ids = in.take<int32_t>(h.tokens), *positions = in.take<int32_t>(h.tokens);
  encoder.embed(ids, positions, in.take<int32_t>(h.texts + 1), h.texts);
  for (int i = 0; i < h.layers; ++i) encoder.self_attention(i), encoder.feed_forward(i);
  std::vector<float> vectors(h.texts * width);
  encoder.pool(vectors.data(), (Pooling)h.pooling, h.normalize);
  return fwrite(vectors.data(), sizeof(float), vectors.size(), stdout) == vectors.size() ? 0 : 1;
}
