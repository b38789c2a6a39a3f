/*
 * Prints the nanoseconds that an all-reduce of 8 bytes takes in a world of one rank, at the least:
 * the way through the library and nothing else.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <time.h>

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(void) {
    /* Stretches so short that many of them meet nobody else on the core. */
    enum { STRETCHES = 500, CALLS = 2000 };
    brigade_comm_t comm;
    double data = 1, least_ns = 1e9;
    int stretch, call;
    CHECK(brigade_comm_init_from_env(&comm, NULL));
    for (stretch = 0; stretch < STRETCHES; stretch++) {
        double begun = now_ns(), ns;
        for (call = 0; call < CALLS; call++)
            CHECK(brigade_all_reduce(&data, &data, 1, BRIGADE_FLOAT64, BRIGADE_MAX, comm, NULL));
        ns = (now_ns() - begun) / CALLS;
        least_ns = ns < least_ns ? ns : least_ns;
    }
    CHECK(brigade_comm_destroy(comm));
    printf("%.2f\n", least_ns);
    return 0;
}
