// A team of threads that compute one thing together, and how they wait for each other.
//
// Why not OpenMP's: GCC's runtime waits by spinning, for milliseconds and without offering its core to others, so that
// a team stands still whenever one of its threads has lost its core to another program. Short texts on all-MiniLM-L6-v2
// beside a busy program, 2 cores of Zen 4: median 10 ms, p99 450 ms; with this team 2.5 and 6 ms; alone 1.5 ms either
// way. (OMP_WAIT_POLICY=passive sleeps at once: 3.4 ms alone, since a short text has 54 barriers.) Here a thread spins
// for a microsecond or two, then yields its core between looks for as long as a loop may take, then sleeps.
//
// All threads compute with IEEE's floats, whatever the thread that started them was left with.
// A library linked with -ffast-math turns subnormals off in the thread that loads it, and later threads inherit that:
// F16's subnormal weights would then be read as 0, and the bits would depend on the instruction set.
#pragma once
#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

#include <atomic>
#include <vector>

#include "member.h"

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

// `threads` threads, of which the one that calls run() is the first. Used by one thread at a time.
class Team {
 public:
  // Throws std::system_error where the system has no thread left.
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return threads_; }

  // Calls work(member) on every thread, and returns when all have.
  template <class Work>
  void run(const Work& work) {
    run([](const void* work, const Member& me) { (*(const Work*)work)(me); }, &work);
  }

 private:
  // A word that changes, and those who wait for it.
  struct alignas(64) Signal {
    std::atomic<uint32_t> word{0};
    std::atomic<int> sleepers{0};
    void raise();                     // changes the word and wakes everybody
    void wait_while(uint32_t value);  // returns once the word isn't `value`
  };
  struct Helper {
    Team* team;
    int index;
    pthread_t thread;
  };
  using Call = void (*)(const void* work, const Member& me);

  friend void await_all(const Member& me);
  void run(Call call, const void* work);
  void await();
  void serve(int index);
  void stop();
  Member member(int index) { return {this, &next_.value, index, threads_}; }

  const int threads_;
  const pid_t process_;  // a forked child has this object, but not its threads
  std::vector<Helper> helpers_;
  Call call_ = nullptr;  // null: the helpers end
  const void* work_ = nullptr;
  Signal start_, barrier_;
  alignas(64) std::atomic<int> arrived_{0};
  struct alignas(64) {
    int value = 0;
  } next_;  // task of the loop that is under way; see share()
};

}  // namespace embed::cpu
