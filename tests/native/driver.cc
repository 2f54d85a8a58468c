// driver                       checks every kernel on every instruction set of this machine; exit code 0 if all passed
// driver forward FILE ISA      runs the forward in FILE (tests/native/dump.py wrote it), its vectors' bytes to stdout
// driver isas                  one line an instruction set that runs here
#include "driver.h"

#include <stdio.h>
#include <string.h>

#include <exception>
#include <random>

#include "dispatch.h"

using namespace embed::cpu;

static int passed = 0, failed = 0;

void check(bool fine, const std::string& what) {
  fine ? ++passed : ++failed;
  if (!fine) printf("FAILED %s\n", what.c_str());
}

Floats random_floats(size_t count, float scale) {  // the same on every machine
  static std::minstd_rand source(1);
  Floats v(count);
  for (float& x : v) x = ((int)(source() % 20001) - 10000) * 1e-4f * scale;
  return v;
}

std::vector<const Kernels*> runnable() {
  int count;
  const InstructionSet* sets = instruction_sets(&count);
  std::vector<const Kernels*> found;
  for (int i = count; i-- > 0;)  // the last is scalar
    if (const Kernels* kernels = find_kernels(sets[i].name)) found.push_back(kernels);
  return found;
}

static int check_all() {
  check_kernels();
  check_encoder();
  for (const Kernels* kernels : runnable()) printf("%s ", kernels->name);
  printf("\n%d passed, %d failed\n", passed, failed);
  return failed ? 1 : 0;
}

int main(int argc, char** argv) try {
  if (argc == 1) return check_all();
  if (argc == 4 && strcmp(argv[1], "forward") == 0) return forward(argv[2], argv[3]);
  if (argc == 2 && strcmp(argv[1], "isas") == 0) {
    for (const Kernels* kernels : runnable()) puts(kernels->name);
    return 0;
  }
  fprintf(stderr, "usage: driver [forward FILE ISA | isas]\n");
  return 2;
} catch (const std::exception& ex) {
  fprintf(stderr, "driver: %s\n", ex.what());
  return 1;
}
