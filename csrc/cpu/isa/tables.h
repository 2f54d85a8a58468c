// The kernel table of each instruction set; setup.py links those of the machine it builds for.
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
