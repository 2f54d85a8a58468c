// Threads that compute with IEEE's floats, whatever the thread that started them was left with.
//
// A library linked with -ffast-math turns subnormals off in the thread that loads it, and later threads inherit that:
// F16's subnormal weights would then be read as 0, and the bits would depend on the instruction set.
#pragma once
#include <stdint.h>

namespace embed::cpu {

// For as long as it lives, this thread rounds to nearest and keeps its subnormals.
class IeeeFloats {
 public:
  IeeeFloats() : before_(control()) { set_control(kIeee); }
  ~IeeeFloats() { set_control(before_); }
  IeeeFloats(const IeeeFloats&) = delete;
  IeeeFloats& operator=(const IeeeFloats&) = delete;

 private:
  // "memory": what is computed from memory must not be moved out of the object's life.
#if defined(__x86_64__)
  using Control = uint32_t;
  static constexpr Control kIeee = 0x1f80;  // MXCSR at a process's start: every exception masked
  static Control control() {
    Control value;
    asm volatile("stmxcsr %0" : "=m"(value));
    return value;
  }
  static void set_control(Control value) { asm volatile("ldmxcsr %0" : : "m"(value) : "memory"); }
#elif defined(__aarch64__)
  using Control = uint64_t;
  static constexpr Control kIeee = 0;  // FPCR at a process's start
  static Control control() {
    Control value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set_control(Control value) { asm volatile("msr fpcr, %0" : : "r"(value) : "memory"); }
#else
  using Control = int;
  static constexpr Control kIeee = 0;
  static Control control() { return kIeee; }
  static void set_control(Control) {}
#endif

  const Control before_;
};

// Calls work() on every thread of a team of `threads`.
template <class Work>
void on_team(int threads, const Work& work) {
#pragma omp parallel num_threads(threads)
  {
    const IeeeFloats floats;
    work();
  }
}

}  // namespace embed::cpu
