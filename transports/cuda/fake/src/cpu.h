// CUDA C++ on a processor: what the fake compiler puts in front of a kernel's source. The threads
// of a block are fibers on one thread of the system, so __syncthreads and warp intrinsics are
// switches; blocks run one after the other until one waits for somebody else, and from then on
// further blocks get threads of their own. Only x86-64.
#pragma once
#define BRIGADE_CPU 1

// The C++ library comes first: it uses some of the words that the language below redefines.
#include <cmath>
#include <cstdio>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpu_types.h"
#include "cpu_races.h"
#include "cpu_fibers.h"
#include "cpu_blocks.h"
#include "cpu_intrinsics.h"
