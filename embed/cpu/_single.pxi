# Part of _native.pyx: csrc/cpu/single.h, each kernel alone on unpadded arrays, for the tests.

cdef int padded(str name, Py_ssize_t count, int group) except -1:
    """Return `count` as it is when each group of `group` is padded to a multiple of 16."""
    require_size(name, count)
    if group < 1 or count % group:
        raise ValueError(f"{count} {name} aren't made of groups of {group}")
    return count // group * ((group + 15) // 16 * 16)


def pack(str isa not None, weights, *, int row_group, int column_group, int threads=1):
    cdef const Kernels* kernels = kernels_of(isa)
    cdef vector[Source] sources
    cdef Source source
    cdef Tensor look
    cdef Py_ssize_t rows, columns
    rows, columns = np.shape(weights[0])
    cdef int n = padded("rows", rows, row_group) * <int>len(weights), k = padded("columns", columns, column_group)
    source.rows, source.columns, source.row_group, source.column_group = rows, columns, row_group, column_group
    require_size("threads", threads)
    for weight in weights:
        look = tensor(weight, "weight", (rows, columns))
        source.data, source.dtype = look.data, look.dtype
        sources.push_back(source)
    y = np.full(((n + kernels.panel - 1) // kernels.panel, k, kernels.panel), np.nan, np.float32)
    cdef float[:, :, ::1] out = y
    with nogil:
        _pack(kernels[0], &out[0, 0, 0], sources.data(), <int>sources.size(), n, k, threads)
    return y


def gemm(str isa not None, const float[:, ::1] x not None, weight, const float[::1] bias not None, *,
         str epilogue not None="bias", const float[:, ::1] residual=None, int threads=1):
    cdef const Kernels* kernels = kernels_of(isa)
    cdef Epilogue end = <Epilogue>choice(_EPILOGUES, "epilogue", epilogue)
    cdef Py_ssize_t tokens = x.shape[0], n = bias.shape[0], k = x.shape[1]
    cdef Tensor w = tensor(weight, "weight", (n, k))
    cdef const float* added = NULL
    for name, size in (("tokens", tokens), ("n", n), ("k", k), ("threads", threads)):
        require_size(name, size)
    if (residual is not None) != (end == Epilogue.residual):
        raise ValueError("residual goes with the epilogue of that name, and with no other")
    if residual is not None:
        require_shape("residual", residual.shape[0], residual.shape[1], tokens, n)
        added = &residual[0, 0]
    y = np.empty((tokens, n), np.float32)
    cdef float[:, ::1] out = y
    with nogil:
        _gemm(kernels[0], &out[0, 0], &x[0, 0], w, &bias[0], added, tokens, n, k, end, threads)
    return y


def attention(str isa not None, const float[:, ::1] qkv not None, const int32_t[::1] offsets not None, *, int heads,
              int threads=1):
    cdef const Kernels* kernels = kernels_of(isa)
    require_offsets(offsets, qkv.shape[0])
    require_size("heads", heads)
    require_size("threads", threads)
    cdef Py_ssize_t head_dim = qkv.shape[1] // 3 // heads
    if head_dim * 3 * heads != qkv.shape[1] or not 0 < head_dim <= kMaxHeadDim:
        raise ValueError(f"qkv has {qkv.shape[1]} columns, not 3 * {heads} heads of 1 to {kMaxHeadDim}")
    y = np.empty((qkv.shape[0], heads * head_dim), np.float32)
    cdef float[:, ::1] out = y
    with nogil:
        _attention(kernels[0], &out[0, 0], &qkv[0, 0], &offsets[0], <int>(offsets.shape[0] - 1), heads, head_dim,
                   threads)
    return y


def layer_norm(str isa not None, const float[:, ::1] x not None, const float[::1] gain not None,
               const float[::1] bias not None, *, float eps, int threads=1):
    cdef const Kernels* kernels = kernels_of(isa)
    cdef Py_ssize_t tokens = x.shape[0], width = x.shape[1]
    for name, size in (("tokens", tokens), ("width", width), ("threads", threads)):
        require_size(name, size)
    require_length("gain", gain.shape[0], width)
    require_length("bias", bias.shape[0], width)
    y = np.empty((tokens, width), np.float32)
    cdef float[:, ::1] out = y
    with nogil:
        _layer_norm(kernels[0], &out[0, 0], &x[0, 0], &gain[0], &bias[0], tokens, width, eps, threads)
    return y


def gather(str isa not None, word, position, token_type, const int32_t[::1] ids not None,
           const int32_t[::1] positions not None, *, int threads=1):
    cdef const Kernels* kernels = kernels_of(isa)
    cdef int words = rows_of(word, "word"), places = rows_of(position, "position")
    cdef Py_ssize_t tokens = ids.shape[0], width = np.size(word) // words
    for name, size in (("tokens", tokens), ("width", width), ("threads", threads)):
        require_size(name, size)
    cdef Table w = table(word, "word", width), p = table(position, "position", width)
    cdef Table t = table(token_type, "token_type", width)
    require_length("positions", positions.shape[0], tokens)
    require_below("ids", ids, words)
    require_below("positions", positions, places)
    y = np.empty((tokens, width), np.float32)
    cdef float[:, ::1] out = y
    with nogil:
        _gather(kernels[0], &out[0, 0], w, p, t, &ids[0], &positions[0], tokens, width, threads)
    return y


def pool(str isa not None, const float[:, ::1] states not None, const int32_t[::1] offsets not None, *,
         str pooling not None, bint normalize, int threads=1):
    cdef const Kernels* kernels = kernels_of(isa)
    cdef Pooling mode = <Pooling>choice(_POOLINGS, "pooling", pooling)
    cdef Py_ssize_t width = states.shape[1]
    cdef int texts
    require_offsets(offsets, states.shape[0])
    require_size("width", width)
    require_size("threads", threads)
    texts = <int>(offsets.shape[0] - 1)
    y = np.empty((texts, width), np.float32)
    cdef float[:, ::1] out = y
    with nogil:
        _pool(kernels[0], &out[0, 0], &states[0, 0], &offsets[0], texts, width, mode, normalize, threads)
    return y


def exp2(str isa not None, const float[::1] x not None):
    cdef const Kernels* kernels = kernels_of(isa)
    require_size("x", x.shape[0])
    y = np.empty(x.shape[0], np.float32)
    cdef float[::1] out = y
    with nogil:
        _exp2(kernels[0], &out[0], &x[0], x.shape[0])
    return y


def activation(str isa not None, const float[::1] x not None, *, str name not None):
    cdef const Kernels* kernels = kernels_of(isa)
    cdef Epilogue function = <Epilogue>choice(_ACTIVATIONS, "activation", name)
    require_size("x", x.shape[0])
    y = np.empty(x.shape[0], np.float32)
    cdef float[::1] out = y
    with nogil:
        _activation(kernels[0], &out[0], &x[0], x.shape[0], function)
    return y
