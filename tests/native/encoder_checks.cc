// The whole encoder on random weights: the same bytes on every instruction set, from any team, in any batch.
#include <string.h>

#include "driver.h"

using namespace embed::cpu;

namespace {

Tensor tensor(const Floats& v) { return {v.data(), Dtype::f32}; }
Table table(const Floats& v) { return {v.data(), Dtype::f32}; }

constexpr int kVocab = 50, kPositions = 200, kMaxTokens = 300;

struct Model {
  Shape shape;
  Floats word, position, type, gain, bias;
  std::vector<Floats> tensors;  // layer by layer, in the order of LayerTensors

  explicit Model(const Shape& s)
      : shape(s),
        word(random_floats((size_t)kVocab * s.width)),
        position(random_floats((size_t)kPositions * s.width)),
        type(random_floats(s.width)),
        gain(random_floats(s.width)),
        bias(random_floats(s.width)) {
    for (int layer = 0; layer < s.layers; ++layer)
      layer_tensors(s.width, s.inner,
                    [&](size_t count) { return tensor(tensors.emplace_back(random_floats(count, 0.3f))); });
  }

  void load(Encoder& encoder) const {
    encoder.load_embeddings(table(word), table(position), table(type), tensor(gain), tensor(bias));
    size_t next = 0;
    for (int layer = 0; layer < shape.layers; ++layer)
      encoder.load_layer(layer,
                         layer_tensors(shape.width, shape.inner, [&](size_t) { return tensor(tensors[next++]); }));
  }
};

Floats forward(const Model& model, Encoder& encoder, const std::vector<int>& lengths) {
  std::vector<int32_t> ids, positions, offsets{0};
  for (int length : lengths) {
    for (int i = 0; i < length; ++i) ids.push_back((7 * i + length) % kVocab), positions.push_back(i);
    offsets.push_back(offsets.back() + length);
  }
  encoder.embed(ids.data(), positions.data(), offsets.data(), (int)lengths.size());
  for (int i = 0; i < model.shape.layers; ++i) encoder.self_attention(i), encoder.feed_forward(i);
  Floats out(lengths.size() * model.shape.width);
  encoder.pool(out.data(), Pooling::mean, true);
  return out;
}

bool same(const float* a, const float* b, size_t count) { return memcmp(a, b, count * sizeof(float)) == 0; }

void check_model(const Shape& shape) {
  const Model model(shape);
  const std::vector<int> lengths{3, 140, 1, 17, 64};
  Floats first;
  for (const Kernels* kernels : runnable())
    for (int threads : {1, 2, 3}) {
      Encoder encoder(*kernels, shape, threads, kMaxTokens);
      model.load(encoder);
      const Floats batched = forward(model, encoder, lengths);
      if (first.empty()) first = batched;
      const std::string what = std::string(kernels->name) + " encoder of " + std::to_string(shape.width) +
                               ", threads " + std::to_string(threads);
      check(same(batched.data(), first.data(), batched.size()), what + ": bits");
      for (size_t i = 0; i < lengths.size(); ++i)
        check(same(forward(model, encoder, {lengths[i]}).data(), &batched[i * shape.width], shape.width),
              what + ": text " + std::to_string(i) + " alone");
    }
}

}  // namespace

void check_encoder() {
  check_model({2, 32, 64, 4, 1e-5f, Epilogue::gelu});         // heads of 8
  check_model({1, 90, 130, 3, 1e-12f, Epilogue::gelu_tanh});  // heads of 30, nothing a multiple of 16
  check_model({1, 128, 64, 1, 1e-5f, Epilogue::silu});        // one head of 128
}
