// Everything that is written once and compiled once per instruction set, inside that set's namespace, on top of its Vec
// (csrc/README.md lists what a Vec must offer).
#include "share.inc.h"
#include "lanes.inc.h"
#include "activation.inc.h"
#include "tile.inc.h"
#include "pack.inc.h"
#include "gemm.inc.h"
#include "attention.inc.h"
#include "layer_norm.inc.h"
#include "gather.inc.h"
#include "pool.inc.h"

#define KERNEL_TABLE(name) \
  { name, kPanel, kScratchFloats, pack, gemm, attention, layer_norm, gather, pool, exp2_array, activation_array }
