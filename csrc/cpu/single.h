// Single kernels on unpadded arrays, for the tests: each copies its inputs into padded rows, forks a team of `threads`
// and copies the result out. Shapes as in kernels.h, rows without a stride.
#pragma once
#include "encoder.h"

namespace embed::cpu::single {

// panels as in kernels.h, which are not zeroed before
void pack(const Kernels& kernels, float* panels, const Source* sources, int count, int n, int k, int threads);

// y (tokens, n) = epilogue(x (tokens, k) W (n, k)^T + bias (n)), residual (tokens, n) or null
void gemm(const Kernels& kernels, float* y, const float* x, Tensor weight, const float* bias, const float* residual,
          int tokens, int n, int k, Epilogue epilogue, int threads);

// out (tokens, heads * head_dim), qkv (tokens, 3 * heads * head_dim), scaled by 1 / sqrt(head_dim)
void attention(const Kernels& kernels, float* out, const float* qkv, const int32_t* offsets, int texts, int heads,
               int head_dim, int threads);

void layer_norm(const Kernels& kernels, float* y, const float* x, const float* gain, const float* bias, int tokens,
                int width, float eps, int threads);

void gather(const Kernels& kernels, float* y, Table word, Table position, Table type, const int32_t* ids,
            const int32_t* positions, int tokens, int width, int threads);

void pool(const Kernels& kernels, float* y, const float* x, const int32_t* offsets, int texts, int width,
          Pooling pooling, bool normalize, int threads);

void exp2(const Kernels& kernels, float* y, const float* x, size_t count);
void activation(const Kernels& kernels, float* y, const float* x, size_t count, Epilogue epilogue);

}  // namespace embed::cpu::single
