// What every instruction set's file includes before it names its target.
//
// Nothing in here, or in the kernels, may leave an object as a weak or mergeable symbol: the linker keeps one copy of
// such a symbol, and an old CPU would then run the one compiled for AVX-512. So: C headers, an anonymous namespace, and
// functions that are static or always inlined. tests/native/test_symbols.py looks at the objects.
#pragma once
#include <float.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../half.h"
#include "tables.h"

#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))
