/* The few functions of CUDA's driver that programs here need, found at run time as the library finds
 * them: BRIGADE_CUDA_LIBRARY names the file, else it is libcuda.so.1. */
#ifndef CUDA_H
#define CUDA_H

#include "check.h"

#include <dlfcn.h>

#define CUDA_FUNCTIONS(X)                                                                       \
    X(cuInit, (unsigned flags))                                                                 \
    X(cuDevicePrimaryCtxRetain, (void **context, int device))                                   \
    X(cuCtxPushCurrent_v2, (void *context))                                                     \
    X(cuMemAlloc_v2, (uint64_t *address, size_t bytes))                                         \
    X(cuMemFree_v2, (uint64_t address))                                                         \
    X(cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags))                            \
    X(cuMemFreeHost, (void *memory))                                                            \
    X(cuMemcpyAsync, (uint64_t target, uint64_t source, size_t bytes, void *stream))            \
    X(cuStreamCreateWithPriority, (void **stream, unsigned flags, int priority))                \
    X(cuStreamSynchronize, (void *stream))                                                      \
    X(cuStreamDestroy_v2, (void *stream))                                                       \
    X(cuStreamBeginCapture_v2, (void *stream, unsigned mode))                                   \
    X(cuStreamEndCapture, (void *stream, void **graph))                                         \
    X(cuGraphInstantiateWithFlags, (void **executable, void *graph, uint64_t flags))            \
    X(cuGraphUpload, (void *executable, void *stream))                                          \
    X(cuGraphLaunch, (void *executable, void *stream))                                          \
    X(cuGraphDestroy, (void *graph))                                                            \
    X(cuGraphExecDestroy, (void *executable))

#define DECLARE(name, arguments) static unsigned(*name) arguments;
CUDA_FUNCTIONS(DECLARE)

#define CU(call)                                                                                \
    do {                                                                                        \
        unsigned code_ = (call);                                                                \
        if (code_ != 0) {                                                                       \
            fprintf(stderr, "%s:%d: %s: %u\n", __FILE__, __LINE__, #call, code_);               \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

/* Streams that do not wait for the default stream, and captures that look at their thread only. */
enum { CU_STREAM_NON_BLOCKING = 1, CU_CAPTURE_THREAD = 1 };

/* Open the driver: once in a process, before its threads. */
static void cuda_open(void) {
    const char *named = getenv("BRIGADE_CUDA_LIBRARY");
    void *library = dlopen(named != NULL && *named ? named : "libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
#define FIND(name, arguments) REQUIRE((*(void **)&name = dlsym(library, #name)) != NULL);
    CUDA_FUNCTIONS(FIND)
    CU(cuInit(0));
}

/* Give the calling thread the first device. */
static void cuda_enter(void) {
    void *context;
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxPushCurrent_v2(context));
}

#endif
