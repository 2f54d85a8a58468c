// Which kernel tables this machine can run. The only file that asks the CPU.
#include "dispatch.h"

#include <string.h>

#include "isa/tables.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace embed::cpu {
namespace {

constexpr const char* kOtherMachine = "another architecture";

#if defined(__x86_64__)
// libgcc's answer takes in whether the operating system saves the wide registers (XGETBV).
#define EMBED_LACKS(feature) \
  if (!__builtin_cpu_supports(feature)) return feature

// clang 14, and GCC before 11, don't know the feature's name. What it asks of the operating system, AVX2 does too.
bool has_f16c() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && ecx & bit_F16C;
}

const char* missing_for_avx2() {
  EMBED_LACKS("avx2");
  EMBED_LACKS("fma");
  if (!has_f16c()) return "f16c";
  EMBED_LACKS("bmi2");
  return nullptr;
}

const char* missing_for_avx512() {
  if (const char* lacks = missing_for_avx2()) return lacks;
  EMBED_LACKS("avx512f");
  EMBED_LACKS("avx512bw");
  EMBED_LACKS("avx512vl");
  EMBED_LACKS("avx512dq");
  return nullptr;
}

const InstructionSet kSets[] = {{"avx512", &avx512::kernels, missing_for_avx512()},
                                {"avx2", &avx2::kernels, missing_for_avx2()},
                                {"neon", nullptr, kOtherMachine},
                                {"scalar", &scalar::kernels, nullptr}};
#elif defined(__aarch64__)
const char* missing_for_neon() {
#if defined(__linux__)
  constexpr unsigned long kAdvancedSimd = 1 << 1;  // HWCAP_ASIMD
  if (!(getauxval(AT_HWCAP) & kAdvancedSimd)) return "asimd";
#endif
  return nullptr;
}

const InstructionSet kSets[] = {{"avx512", nullptr, kOtherMachine},
                                {"avx2", nullptr, kOtherMachine},
                                {"neon", &neon::kernels, missing_for_neon()},
                                {"scalar", &scalar::kernels, nullptr}};
#else
const InstructionSet kSets[] = {{"avx512", nullptr, kOtherMachine},
                                {"avx2", nullptr, kOtherMachine},
                                {"neon", nullptr, kOtherMachine},
                                {"scalar", &scalar::kernels, nullptr}};
#endif

}  // namespace

const InstructionSet* instruction_sets(int* count) {
  *count = sizeof kSets / sizeof *kSets;
  return kSets;
}

const Kernels* find_kernels(const char* name) {
  for (const InstructionSet& set : kSets)
    if (strcmp(set.name, name) == 0) return set.missing ? nullptr : set.kernels;
  return nullptr;
}

}  // namespace embed::cpu
