"""What _native.pyx takes from csrc/cpu: the declarations that it needs, in the headers' words."""

from libc.stdint cimport int32_t
from libcpp cimport bool


cdef extern from "kernels.h" namespace "embed::cpu" nogil:
    const int kMaxHeadDim
    cdef enum class Dtype:
        f32, f16, bf16
    cdef enum class Epilogue:
        bias, gelu, gelu_tanh, relu, silu, residual
    cdef enum class Pooling:
        cls, mean, max, mean_sqrt_len, weightedmean, lasttoken
    cdef cppclass Table:
        const void* data
        Dtype dtype
    cdef cppclass Source:
        const void* data
        Dtype dtype
        int rows, columns, row_group, column_group
    cdef cppclass Kernels:
        int panel

cdef extern from "dispatch.h" namespace "embed::cpu" nogil:
    cdef cppclass InstructionSet:
        const char* name
        const Kernels* kernels
        const char* missing
    const InstructionSet* _instruction_sets "embed::cpu::instruction_sets"(int* count)
    const Kernels* find_kernels(const char* name)

cdef extern from "encoder.h" namespace "embed::cpu" nogil:
    const int kMaxWidth, kMaxInner
    cdef cppclass Tensor:
        const void* data
        Dtype dtype
    cdef cppclass Shape:
        int layers, width, inner, heads
        float eps
        Epilogue activation
    cdef cppclass LayerTensors:
        Tensor query, query_bias, key, key_bias, value, value_bias, output, output_bias
        Tensor attention_gain, attention_bias, up, up_bias, down, down_bias, gain, bias
    cdef cppclass Memory:
        size_t weights, workspace
    Memory memory_of(const Kernels& kernels, const Shape& shape, int threads, int max_tokens) except +
    cdef cppclass NativeEncoder "embed::cpu::Encoder":
        NativeEncoder(const Kernels& kernels, const Shape& shape, int threads, int max_tokens) except +
        void load_embeddings(Table word, Table position, Table type, Tensor gain, Tensor bias) except +
        void load_layer(int layer, const LayerTensors& tensors) except +
        void embed(const int32_t* ids, const int32_t* positions, const int32_t* offsets, int texts) except +
        void self_attention(int layer) except +
        void feed_forward(int layer) except +
        void pool(float* out, Pooling pooling, bool normalize) except +
        Memory memory()

cdef extern from "single.h" namespace "embed::cpu::single" nogil:
    void _pack "embed::cpu::single::pack"(
        const Kernels& kernels, float* panels, const Source* sources, int count, int n, int k, int threads) except +
    void _gemm "embed::cpu::single::gemm"(
        const Kernels& kernels, float* y, const float* x, Tensor weight, const float* bias, const float* residual,
        int tokens, int n, int k, Epilogue epilogue, int threads) except +
    void _attention "embed::cpu::single::attention"(
        const Kernels& kernels, float* out, const float* qkv, const int32_t* offsets, int texts, int heads,
        int head_dim, int threads) except +
    void _layer_norm "embed::cpu::single::layer_norm"(
        const Kernels& kernels, float* y, const float* x, const float* gain, const float* bias, int tokens, int width,
        float eps, int threads) except +
    void _gather "embed::cpu::single::gather"(
        const Kernels& kernels, float* y, Table word, Table position, Table type, const int32_t* ids,
        const int32_t* positions, int tokens, int width, int threads) except +
    void _pool "embed::cpu::single::pool"(
        const Kernels& kernels, float* y, const float* x, const int32_t* offsets, int texts, int width,
        Pooling pooling, bool normalize, int threads) except +
    void _exp2 "embed::cpu::single::exp2"(const Kernels& kernels, float* y, const float* x, size_t count) except +
    void _activation "embed::cpu::single::activation"(
        const Kernels& kernels, float* y, const float* x, size_t count, Epilogue epilogue) except +
