// The kernel table of each instruction set. Its file is guarded by the macro that dispatch.cc asks: the compiler knows
// which machine it builds for, and a build script doesn't (a cross build, a 32-bit system on a 64-bit processor).
#pragma once
#include "../kernels.h"

namespace embed::cpu {

namespace scalar {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace neon {
extern const Kernels kernels;
}

}  // namespace embed::cpu
