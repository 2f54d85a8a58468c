// Every kernel of every instruction set that runs here: against double arithmetic, against the scalar table byte for
// byte, and with teams of one and two threads. Small shapes: this also runs under sanitizers and under qemu.
//
// tests/kernels/ says why the tolerances are what they are; here they only have to catch a wrong kernel.
#include "driver.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <random>
#include <string>

#include "half.h"
#include "single.h"

using namespace embed::cpu;

namespace {

std::minstd_rand random_bits(2);

struct Half {  // random bit patterns below 2, subnormals among them, and what they mean
  std::vector<uint16_t> bits;
  Floats values;
  Half(size_t count, Dtype dtype) {
    for (size_t i = 0; i < count; ++i) {
      bits.push_back((uint16_t)(random_bits() % 2 << 15 | random_bits() % 0x4000));
      values.push_back(dtype == Dtype::f16 ? widen_f16(bits.back()) : widen_bf16(bits.back()));
    }
  }
};

double activation64(double x, Epilogue e) {
  if (e == Epilogue::gelu) return 0.5 * x * erfc(-x / sqrt(2.0));
  if (e == Epilogue::gelu_tanh) return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  if (e == Epilogue::relu) return x > 0 ? x : 0;
  if (e == Epilogue::silu) return x / (1 + exp(-x));
  return x;
}

// A result must be near `want`, and equal to the scalar table's and to two threads' to the last bit.
class Expect {
 public:
  Expect(std::string what, std::vector<double> want, double tolerance)
      : what_(std::move(what)), want_(std::move(want)), tolerance_(tolerance) {}

  template <class Run>  // run(kernels, threads) -> Floats
  void on_every_isa(Run run) const {
    Floats first;
    for (const Kernels* kernels : runnable())
      for (int threads : {1, 2}) {
        const Floats got = run(*kernels, threads);
        const std::string name = std::string(kernels->name) + " " + what_ + ", threads " + std::to_string(threads);
        check(near(got), name + ": value");
        if (first.empty()) first = got;
        check(memcmp(got.data(), first.data(), got.size() * sizeof(float)) == 0, name + ": bits");
      }
  }

 private:
  bool near(const Floats& got) const {
    for (size_t i = 0; i < want_.size(); ++i)
      if (!(fabs(got[i] - want_[i]) <= tolerance_)) {
        printf("  [%zu] is %.9g, not %.9g\n", i, got[i], want_[i]);
        return false;
      }
    return true;
  }

  std::string what_;
  std::vector<double> want_;
  double tolerance_;
};

void check_gemm(int tokens, int n, int k, Epilogue e) {
  const Floats x = random_floats((size_t)tokens * k), w = random_floats((size_t)n * k, 0.3f), bias = random_floats(n);
  const Floats residual = e == Epilogue::residual ? random_floats((size_t)tokens * n) : Floats();
  std::vector<double> want;
  for (int i = 0; i < tokens; ++i)
    for (int j = 0; j < n; ++j) {
      double sum = bias[j];
      for (int t = 0; t < k; ++t) sum += (double)x[i * k + t] * w[j * k + t];
      want.push_back(activation64(sum, e) + (residual.empty() ? 0 : residual[(size_t)i * n + j]));
    }
  const std::string what = "gemm " + std::to_string(tokens) + " x " + std::to_string(n) + " x " + std::to_string(k) +
                           " epilogue " + std::to_string((int)e);
  Expect(what, want, 1e-5).on_every_isa([&](const Kernels& kernels, int threads) {
    Floats y((size_t)tokens * n);
    single::gemm(kernels, y.data(), x.data(), {w.data(), Dtype::f32}, bias.data(),
                 residual.empty() ? nullptr : residual.data(), tokens, n, k, e, threads);
    return y;
  });
}

void check_widening(Dtype dtype) {
  constexpr int n = 33, k = 50;
  const Half w(n * k, dtype);
  const Floats x = random_floats(k), bias = random_floats(n);
  std::vector<double> want;
  for (int j = 0; j < n; ++j) {
    double sum = bias[j];
    for (int t = 0; t < k; ++t) sum += (double)x[t] * w.values[j * k + t];
    want.push_back(sum);
  }
  Expect("gemm, 16-bit weights", want, 1e-5).on_every_isa([&](const Kernels& kernels, int threads) {
    Floats y(n);
    single::gemm(kernels, y.data(), x.data(), {w.bits.data(), dtype}, bias.data(), nullptr, 1, n, k, Epilogue::bias,
                 threads);
    return y;
  });
}

std::vector<double> attention64(const Floats& qkv, const std::vector<int32_t>& offsets, int heads, int head_dim) {
  const int width = heads * head_dim;
  std::vector<double> out((size_t)offsets.back() * width);
  auto at = [&](int row, int part, int column) { return (double)qkv[(size_t)row * 3 * width + part * width + column]; };
  for (size_t t = 0; t + 1 < offsets.size(); ++t)
    for (int i = offsets[t]; i < offsets[t + 1]; ++i)
      for (int h = 0; h < heads; ++h) {
        std::vector<double> p;
        for (int j = offsets[t]; j < offsets[t + 1]; ++j) {
          double score = 0;
          for (int d = h * head_dim; d < (h + 1) * head_dim; ++d) score += at(i, 0, d) * at(j, 1, d);
          p.push_back(score / sqrt((double)head_dim));
        }
        const double top = *std::max_element(p.begin(), p.end());
        double sum = 0;
        for (double& score : p) sum += score = exp(score - top);
        for (size_t j = 0; j < p.size(); ++j)
          for (int d = h * head_dim; d < (h + 1) * head_dim; ++d)
            out[(size_t)i * width + d] += p[j] / sum * at(offsets[t] + (int)j, 2, d);
      }
  return out;
}

void check_attention(const std::vector<int32_t>& offsets, int heads, int head_dim) {
  const Floats qkv = random_floats((size_t)offsets.back() * 3 * heads * head_dim, 2);
  const std::string what = "attention, " + std::to_string(heads) + " heads of " + std::to_string(head_dim);
  Expect(what, attention64(qkv, offsets, heads, head_dim), 1e-5).on_every_isa([&](const Kernels& kernels, int threads) {
    Floats out((size_t)offsets.back() * heads * head_dim);
    single::attention(kernels, out.data(), qkv.data(), offsets.data(), (int)offsets.size() - 1, heads, head_dim,
                      threads);
    return out;
  });
}

void check_layer_norm(int tokens, int width) {
  const Floats x = random_floats((size_t)tokens * width, 3), gain = random_floats(width), bias = random_floats(width);
  std::vector<double> want;
  for (int i = 0; i < tokens; ++i) {
    const float* row = x.data() + (size_t)i * width;
    double mean = 0, variance = 0;
    for (int j = 0; j < width; ++j) mean += row[j] / (double)width;
    for (int j = 0; j < width; ++j) variance += (row[j] - mean) * (row[j] - mean) / width;
    for (int j = 0; j < width; ++j) want.push_back((row[j] - mean) / sqrt(variance + 1e-5) * gain[j] + bias[j]);
  }
  Expect("layer_norm of " + std::to_string(width), want, 3e-6).on_every_isa([&](const Kernels& kernels, int threads) {
    Floats y(x.size());
    single::layer_norm(kernels, y.data(), x.data(), gain.data(), bias.data(), tokens, width, 1e-5f, threads);
    return y;
  });
}

void check_gather(int width) {
  const Half word(5 * width, Dtype::bf16), position(4 * width, Dtype::f16);
  const Floats type = random_floats(width);
  const std::vector<int32_t> ids{4, 0, 4, 2}, positions{0, 3, 1, 1};
  std::vector<double> want;
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < width; ++j)
      want.push_back((word.values[ids[i] * width + j] + type[j]) + position.values[positions[i] * width + j]);
  Expect("gather of " + std::to_string(width), want, 0).on_every_isa([&](const Kernels& kernels, int threads) {
    Floats y(4 * width);
    single::gather(kernels, y.data(), {word.bits.data(), Dtype::bf16}, {position.bits.data(), Dtype::f16},
                   {type.data(), Dtype::f32}, ids.data(), positions.data(), 4, width, threads);
    return y;
  });
}

double pool64(const float* x, int length, int width, Pooling pooling) {
  double sum = 0, weighted = 0, top = -INFINITY;
  for (int i = 0; i < length; ++i) {
    const double v = x[(size_t)i * width];
    sum += v, weighted += (i + 1) * v, top = std::max(top, v);
  }
  if (pooling == Pooling::cls) return x[0];
  if (pooling == Pooling::lasttoken) return x[(size_t)(length - 1) * width];
  if (pooling == Pooling::max) return top;
  if (pooling == Pooling::mean) return sum / length;
  return pooling == Pooling::mean_sqrt_len ? sum / sqrt((double)length) : weighted / (0.5 * length * (length + 1.0));
}

void check_pool(Pooling pooling, bool normalize, int width) {
  const std::vector<int32_t> offsets{0, 1, 4, 200};
  const Floats x = random_floats((size_t)offsets.back() * width);
  std::vector<double> want;
  for (int t = 0; t < 3; ++t) {
    double square = 0;
    for (int j = 0; j < width; ++j) {
      want.push_back(pool64(&x[(size_t)offsets[t] * width + j], offsets[t + 1] - offsets[t], width, pooling));
      square += want.back() * want.back();
    }
    if (normalize)
      for (int j = 0; j < width; ++j) want[(size_t)t * width + j] /= sqrt(square);
  }
  const std::string what = "pool " + std::to_string((int)pooling) + (normalize ? ", normalized" : "");
  Expect(what, want, 2e-6).on_every_isa([&](const Kernels& kernels, int threads) {
    Floats y(3 * width);
    single::pool(kernels, y.data(), x.data(), offsets.data(), 3, width, pooling, normalize, threads);
    return y;
  });
}

void check_curves() {
  Floats x;
  for (int i = -4000; i <= 4000; ++i) x.push_back(i * 5e-3f);
  for (Epilogue e : {Epilogue::gelu, Epilogue::gelu_tanh, Epilogue::relu, Epilogue::silu}) {
    std::vector<double> want;
    for (float v : x) want.push_back(activation64(v, e));
    Expect("activation " + std::to_string((int)e), want, 3e-6).on_every_isa([&](const Kernels& kernels, int) {
      Floats y(x.size());
      single::activation(kernels, y.data(), x.data(), x.size(), e);
      return y;
    });
  }
  for (float& v : x) v = v * 7.5f - 24;  // -174 .. 126, through the subnormals
  std::vector<double> want;
  for (float& v : x) v = std::min(v, 0.0f), want.push_back(exp2((double)v));
  Expect("exp2", want, 1.2e-7).on_every_isa([&](const Kernels& kernels, int) {
    Floats y(x.size());
    single::exp2(kernels, y.data(), x.data(), x.size());
    return y;
  });
}

}  // namespace

void check_kernels() {
  for (Epilogue e :
       {Epilogue::bias, Epilogue::gelu, Epilogue::gelu_tanh, Epilogue::relu, Epilogue::silu, Epilogue::residual})
    check_gemm(13, 40, 48, e);
  for (int tokens : {1, 2, 5, 7, 8, 9, 12, 13, 23}) check_gemm(tokens, 112, 32, Epilogue::residual);
  check_gemm(3, 5, 7, Epilogue::gelu);       // nothing a multiple of 16
  check_gemm(200, 96, 16, Epilogue::bias);   // more rows than a task takes
  check_gemm(10, 64, 1040, Epilogue::gelu);  // more K than a block, the last chunk short
  check_widening(Dtype::f16);
  check_widening(Dtype::bf16);
  check_attention({0, 1, 3, 50, 67, 131, 132}, 2, 16);
  check_attention({0, 200}, 1, 32);  // several key blocks, several groups of queries
  check_attention({0, 20, 23}, 3, 8);
  check_attention({0, 5, 70}, 1, 128);
  for (int width : {1, 15, 16, 17, 48, 312}) check_layer_norm(3, width), check_gather(width);
  for (int pooling = 0; pooling <= (int)Pooling::lasttoken; ++pooling)
    for (bool normalize : {false, true}) check_pool((Pooling)pooling, normalize, 37);
  check_curves();
}
