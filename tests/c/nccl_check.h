/* What the program for NCCL says when something is not as it should be. */
#ifndef NCCL_CHECK_H
#define NCCL_CHECK_H

#include "nccl.h"

#include <stdio.h>
#include <stdlib.h>

#define RESULT(wanted, call)                                                                \
    do {                                                                                    \
        ncclResult_t result_ = (call);                                                      \
        if (result_ != (wanted)) {                                                          \
            fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call,               \
                    ncclGetErrorString(result_), ncclGetLastError(NULL));                   \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

#define CHECK(call) RESULT(ncclSuccess, call)
#define REFUSED(call) RESULT(ncclInvalidArgument, call)
#define MISUSED(call) RESULT(ncclInvalidUsage, call)

#define REQUIRE(condition)                                                                  \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__,     \
                    #condition, ncclGetLastError(NULL));                                    \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

#endif
