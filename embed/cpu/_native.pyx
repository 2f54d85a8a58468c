# distutils: language = c++
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The bridge to csrc/cpu: each function checks its arrays, lets go of the GIL and makes one call.

A wrong array is a ValueError (a TypeError if it is no array at all), never a read out of bounds. Types are in
_native.pyi; no NumPy headers are needed, since arrays come through the buffer protocol.
"""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, uintptr_t
from libcpp.vector cimport vector

import numpy as np


MAX_HEAD_DIM, MAX_WIDTH, MAX_INNER = kMaxHeadDim, kMaxWidth, kMaxInner

_DTYPES = {"f": <int>Dtype.f32, "e": <int>Dtype.f16, "H": <int>Dtype.bf16}  # by the buffer protocol's format
_ACTIVATIONS = {
    "gelu": <int>Epilogue.gelu,
    "gelu_tanh": <int>Epilogue.gelu_tanh,
    "relu": <int>Epilogue.relu,
    "silu": <int>Epilogue.silu,
}
_EPILOGUES = {"bias": <int>Epilogue.bias, "residual": <int>Epilogue.residual, **_ACTIVATIONS}
_POOLINGS = {
    "cls": <int>Pooling.cls,
    "mean": <int>Pooling.mean,
    "max": <int>Pooling.max,
    "mean_sqrt_len": <int>Pooling.mean_sqrt_len,
    "weightedmean": <int>Pooling.weightedmean,
    "lasttoken": <int>Pooling.lasttoken,
}


def instruction_sets():
    """Map each known instruction set, best first, to why it can't run here, or None if it can."""
    cdef int count, i
    cdef const InstructionSet* sets = _instruction_sets(&count)
    reasons = {}
    for i in range(count):
        name, reason = sets[i].name.decode(), None
        if sets[i].kernels == NULL:
            reason = f"this build has no {name} kernels"
        elif sets[i].missing != NULL:
            reason = f"this CPU has no {sets[i].missing.decode()}"
        reasons[name] = reason
    return reasons


cdef const Kernels* kernels_of(str isa) except NULL:
    cdef bytes name = isa.encode()
    cdef const Kernels* kernels = find_kernels(name)
    if kernels == NULL:
        sets = instruction_sets()
        if isa in sets:
            raise ValueError(f"instruction set {isa} can't run here: {sets[isa]}")
        raise ValueError(f"instruction set {isa!r} is unknown; known are {', '.join(sets)}")
    return kernels


cdef int choice(dict table, str what, str name) except -1:
    if name not in table:
        raise ValueError(f"{what} {name!r} is none of {', '.join(table)}")
    return table[name]


cdef int rows_of(object array, str name) except -1:
    """Rows of a table."""
    rows = np.shape(array)[0] if np.ndim(array) else 0
    if not 0 < rows < 2**31:
        raise ValueError(f"{name} needs between 1 and 2**31 - 1 rows, not {rows}")
    return rows


cdef Tensor tensor(object array, str name, tuple shape) except *:
    """Look into a checkpoint's array; valid while the array lives."""
    cdef Py_buffer view
    cdef Tensor result
    PyObject_GetBuffer(array, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)
    try:
        got = tuple([view.shape[i] for i in range(view.ndim)])
        if got != shape:
            raise ValueError(f"{name} has the shape {got}, not {shape}")
        if <uintptr_t>view.buf % <uintptr_t>view.itemsize:
            raise ValueError(f"{name} lies at an unaligned address; pass a copy")
        dtype = _DTYPES.get(view.format.decode())
        if dtype is None:
            raise ValueError(f"{name} has the format {view.format.decode()!r}; float32, float16 and uint16 are read")
        result.data = view.buf
        result.dtype = <Dtype><int>dtype
    finally:
        PyBuffer_Release(&view)
    return result


cdef Table table(object array, str name, int width) except *:
    cdef Tensor look = tensor(array, name, (rows_of(array, name), width))
    cdef Table result
    result.data = look.data
    result.dtype = look.dtype
    return result


cdef int require_shape(str name, Py_ssize_t rows, Py_ssize_t columns, Py_ssize_t want_rows,
                       Py_ssize_t want_columns) except -1:
    if rows != want_rows or columns != want_columns:
        raise ValueError(f"{name} has the shape ({rows}, {columns}), not ({want_rows}, {want_columns})")
    return 0


cdef int require_length(str name, Py_ssize_t got, Py_ssize_t want) except -1:
    if got != want:
        raise ValueError(f"{name} has {got} elements, not {want}")
    return 0


cdef int require_size(str name, Py_ssize_t count) except -1:
    if not 0 < count < 2**31 - 64:
        raise ValueError(f"{name} must be at least 1 and below 2**31 - 64, not {count}")
    return 0


cdef int require_below(str name, const int32_t[::1] values, int limit) except -1:
    cdef Py_ssize_t i
    for i in range(values.shape[0]):
        if not 0 <= values[i] < limit:
            raise ValueError(f"{name}[{i}] is {values[i]}, but the table has {limit} rows")
    return 0


cdef int require_offsets(const int32_t[::1] offsets, Py_ssize_t tokens) except -1:
    """Each text has a token, and together they have all of them."""
    cdef Py_ssize_t i, last = offsets.shape[0] - 1
    if last < 1 or offsets[0] != 0 or offsets[last] != tokens:
        raise ValueError(f"offsets must run from 0 to the number of tokens, {tokens}, over at least one text")
    for i in range(last):
        if offsets[i] >= offsets[i + 1]:
            raise ValueError(f"offsets must ascend: text {i} would run from {offsets[i]} to {offsets[i + 1]}")
    return 0


def memory_bytes(str isa not None, *, int layers, int width, int inner, int heads, int threads, int max_tokens):
    """Return what an encoder of that shape will hold, (weights, workspace), without taking any memory."""
    cdef const Kernels* kernels = kernels_of(isa)
    cdef Shape shape
    shape.layers, shape.width, shape.inner, shape.heads, shape.eps = layers, width, inner, heads, 0
    shape.activation = Epilogue.gelu  # any will do
    cdef Memory memory = memory_of(kernels[0], shape, threads, max_tokens)
    return memory.weights, memory.workspace


cdef class Encoder:
    """The forward of one encoder on one kernel table; owned by one thread. See csrc/cpu/encoder.h."""

    cdef NativeEncoder* encoder
    cdef int width, inner, max_tokens, words, positions, texts
    cdef object tables  # keeps the arrays of the embedding tables alive
    cdef const int32_t[::1] offsets  # of the current batch

    def __cinit__(
        self, str isa not None, *, int layers, int width, int inner, int heads, float eps, str activation not None,
        int threads, int max_tokens,
    ):
        cdef const Kernels* kernels = kernels_of(isa)
        cdef Shape shape
        shape.layers, shape.width, shape.inner, shape.heads, shape.eps = layers, width, inner, heads, eps
        shape.activation = <Epilogue>choice(_ACTIVATIONS, "activation", activation)
        self.encoder = new NativeEncoder(kernels[0], shape, threads, max_tokens)
        self.width, self.inner, self.max_tokens = width, inner, max_tokens

    def __dealloc__(self):
        del self.encoder

    @property
    def weight_bytes(self):
        return self.encoder.memory().weights

    @property
    def workspace_bytes(self):
        return self.encoder.memory().workspace

    def load_embeddings(self, word, position, token_type, gain, bias):
        cdef Table words = table(word, "word", self.width), places = table(position, "position", self.width)
        cdef Table types = table(token_type, "token_type", self.width)
        cdef Tensor gains = tensor(gain, "gain", (self.width,)), biases = tensor(bias, "bias", (self.width,))
        with nogil:
            self.encoder.load_embeddings(words, places, types, gains, biases)
        self.words, self.positions = rows_of(word, "word"), rows_of(position, "position")
        self.tables = (word, position, token_type)

    def load_layer(
        self, int layer, *, query, query_bias, key, key_bias, value, value_bias, output, output_bias, attention_gain,
        attention_bias, up, up_bias, down, down_bias, gain, bias,
    ):
        cdef LayerTensors t
        square, vector = (self.width, self.width), (self.width,)
        t.query, t.query_bias = tensor(query, "query", square), tensor(query_bias, "query_bias", vector)
        t.key, t.key_bias = tensor(key, "key", square), tensor(key_bias, "key_bias", vector)
        t.value, t.value_bias = tensor(value, "value", square), tensor(value_bias, "value_bias", vector)
        t.output, t.output_bias = tensor(output, "output", square), tensor(output_bias, "output_bias", vector)
        t.attention_gain = tensor(attention_gain, "attention_gain", vector)
        t.attention_bias = tensor(attention_bias, "attention_bias", vector)
        t.up, t.up_bias = tensor(up, "up", (self.inner, self.width)), tensor(up_bias, "up_bias", (self.inner,))
        t.down, t.down_bias = tensor(down, "down", (self.width, self.inner)), tensor(down_bias, "down_bias", vector)
        t.gain, t.bias = tensor(gain, "gain", vector), tensor(bias, "bias", vector)
        with nogil:
            self.encoder.load_layer(layer, t)

    def embed(self, const int32_t[::1] ids not None, const int32_t[::1] positions not None,
              const int32_t[::1] offsets not None):
        require_length("positions", positions.shape[0], ids.shape[0])
        require_offsets(offsets, ids.shape[0])
        if ids.shape[0] > self.max_tokens:
            raise ValueError(f"a batch of {ids.shape[0]} tokens, but the encoder has room for {self.max_tokens}")
        require_below("ids", ids, self.words)
        require_below("positions", positions, self.positions)
        self.offsets, self.texts = offsets, <int>(offsets.shape[0] - 1)
        with nogil:
            self.encoder.embed(&ids[0], &positions[0], &offsets[0], self.texts)

    def self_attention(self, int layer):
        with nogil:
            self.encoder.self_attention(layer)

    def feed_forward(self, int layer):
        with nogil:
            self.encoder.feed_forward(layer)

    def pool(self, float[:, ::1] out not None, str pooling not None, bint normalize):
        cdef Pooling mode = <Pooling>choice(_POOLINGS, "pooling", pooling)
        require_shape("out", out.shape[0], out.shape[1], self.texts, self.width)
        with nogil:
            self.encoder.pool(&out[0, 0], mode, normalize)


include "_single.pxi"
