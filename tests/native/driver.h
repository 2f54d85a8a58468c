// What the driver's files share.
#pragma once
#include <string>
#include <vector>

#include "encoder.h"

using Floats = std::vector<float>;

std::vector<const embed::cpu::Kernels*> runnable();  // on this machine, scalar first
int forward(const char* path, const char* isa);

void check(bool fine, const std::string& what);  // counts, and names what failed
Floats random_floats(size_t count, float scale = 1);
void check_kernels();
void check_encoder();

// One layer out of next(count), which gives a tensor of so many elements, called in the order of LayerTensors.
template <class Next>
embed::cpu::LayerTensors layer_tensors(size_t width, size_t inner, Next next) {
  return {next(width * width), next(width), next(width * width), next(width),   // query, key
          next(width * width), next(width), next(width * width), next(width),   // value, output
          next(width),         next(width), next(inner * width), next(inner),   // attention's norm, up
          next(width * inner), next(width), next(width),         next(width)};  // down, norm
}
