/*
 * Prints what an all-reduce of 8 bytes in a world of one rank takes, in nanoseconds: the way
 * through the library and nothing else.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <time.h>

int main(void) {
    enum { CALLS = 1000000 };
    brigade_comm_t comm;
    struct timespec begun, ended;
    double data = 1;
    int call;
    CHECK(brigade_comm_init_from_env(&comm, NULL));
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (call = 0; call < CALLS; call++)
        CHECK(brigade_all_reduce(&data, &data, 1, BRIGADE_FLOAT64, BRIGADE_MAX, comm, NULL));
    clock_gettime(CLOCK_MONOTONIC, &ended);
    CHECK(brigade_comm_destroy(comm));
    printf("%.2f\n", ((double)(ended.tv_sec - begun.tv_sec) * 1e9 +
                      (double)(ended.tv_nsec - begun.tv_nsec)) / CALLS);
    return 0;
}
