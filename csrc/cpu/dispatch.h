// Which kernel tables this machine can run.
#pragma once
#include "kernels.h"

namespace embed::cpu {

struct InstructionSet {
  const char* name;
  const Kernels* kernels;  // null if this build has none (another architecture)
  const char* missing;     // null if the CPU can run it; otherwise what it lacks, e.g. "avx512dq"
};

// All names the project knows, best first: avx512, avx2, neon, scalar. `count` receives how many.
const InstructionSet* instruction_sets(int* count);

// The table of that name if it is built and this CPU runs it, otherwise null.
const Kernels* find_kernels(const char* name);

}  // namespace embed::cpu
