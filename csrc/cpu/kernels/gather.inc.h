// y (tokens, width) = (word[ids] + type[0]) + position[positions], and zeros in the padding after each row.
//
// The tables are read in place, in their own dtype, widened exactly; nothing past a row's `width` elements is read.
// Two f32 additions, so exact to 1 ULP of the larger partial sum.
static void gather(const Member& me, float* y, int y_stride, Table word, Table position, Table type, const int32_t* ids,
                   const int32_t* positions, int tokens, int width) {
  share_rows(me, tokens, [&](int i) INLINE_LAMBDA {
    const size_t w = (size_t)ids[i] * width, p = (size_t)positions[i] * width;
    for (int j = 0; j < round16(width); j += kLanes) {
      const Vec sum = add(read(word.data, word.dtype, w + j, width - j), read(type.data, type.dtype, j, width - j));
      store(y + (ptrdiff_t)i * y_stride + j, add(sum, read(position.data, position.dtype, p + j, width - j)));
    }
  });
}
