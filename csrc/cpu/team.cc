// See team.h. Waiting is on Linux's futexes: a thread that sleeps is woken by the one that changes the word.
#include "team.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <system_error>

namespace embed::cpu {
namespace {

// Zen 4, 2 threads: a barrier of two threads on cores of their own is passed within 0.2 us; a yield to nobody takes
// 0.3 us, so that waiting goes on for about 0.3 ms, several times what a loop of a short text takes.
constexpr int kSpins = 50, kYields = 1000;
// Kernels need less than 64 KB; the rest is for the thread-local variables of whatever libraries the process has.
constexpr size_t kStackBytes = 512 << 10;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void Team::Signal::raise() {
  word.fetch_add(1);
  if (sleepers.load() > 0) syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void Team::Signal::wait_while(uint32_t value) {
  for (int i = 0; i < kSpins + kYields; ++i) {
    if (word.load(std::memory_order_acquire) != value) return;
    if (i < kSpins)
      pause();
    else
      sched_yield();
  }
  sleepers.fetch_add(1);
  while (word.load() == value) syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
  sleepers.fetch_sub(1);
}

Team::Team(int threads) : threads_(threads), process_(getpid()), helpers_(threads - 1) {
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, kStackBytes);
  int error = 0;
  for (int i = 0; i < threads - 1 && !error; ++i) {
    helpers_[i] = {this, i + 1, {}};
    auto serve = [](void* helper) -> void* {
      ((Helper*)helper)->team->serve(((Helper*)helper)->index);
      return nullptr;
    };
    error = pthread_create(&helpers_[i].thread, &small, serve, &helpers_[i]);
    if (error) helpers_.resize(i);
  }
  pthread_attr_destroy(&small);
  if (!error) return;
  stop();
  throw std::system_error(error, std::generic_category(), "thread " + std::to_string(helpers_.size() + 2));
}

Team::~Team() {
  if (getpid() == process_) stop();
}

void Team::stop() {
  call_ = nullptr;
  start_.raise();
  for (Helper& helper : helpers_) pthread_join(helper.thread, nullptr);
}

void Team::run(Call call, const void* work) {
  const IeeeFloats floats;
  call_ = call, work_ = work;
  if (threads_ > 1) start_.raise();
  call(work, member(0));
  await();
}

void Team::serve(int index) {
  const IeeeFloats floats;
  for (uint32_t runs = 0;; ++runs) {
    start_.wait_while(runs);
    if (!call_) return;
    call_(work_, member(index));
    await();
  }
}

// The last to come begins the next loop and lets the others go.
void Team::await() {
  const uint32_t phase = barrier_.word.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < threads_) return barrier_.wait_while(phase);
  arrived_.store(0, std::memory_order_relaxed);
  next_.value = 0;
  if (threads_ > 1) barrier_.raise();
}

void await_all(const Member& me) { me.team->await(); }

}  // namespace embed::cpu
