/*
 * Two ranks, one of which ends its call because the function says so that the call asks while it
 * waits. Who would do so is an interpreter that was sent a signal.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <string.h>
#include <time.h>

struct asked {
    brigade_comm_t comm;
    int times;
    int end_at;
};

static int ask(void *user) {
    struct asked *asked = (struct asked *)user;
    /* It is in the middle of a call. */
    RESULT(BRIGADE_INVALID_USAGE, brigade_barrier(asked->comm, NULL));
    return ++asked->times == asked->end_at;
}

static void rest(long ms) {
    const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

int main(void) {
    struct asked asked = {NULL, 0, 0};
    int rank;
    CHECK(brigade_comm_init_from_env(&asked.comm, NULL));
    CHECK(brigade_comm_rank(asked.comm, &rank));
    CHECK(brigade_interrupt_by(ask, &asked));
    /* Rank 0 is on its way into the barrier when rank 1 begins to rest. */
    if (rank == 0)
        CHECK(brigade_send(&rank, 1, BRIGADE_INT32, 1, asked.comm, NULL));
    if (rank == 1) {
        int from;
        CHECK(brigade_recv(&from, 1, BRIGADE_INT32, 0, asked.comm, NULL));
        rest(300);
    }
    CHECK(brigade_barrier(asked.comm, NULL));
    /* Who waited was asked, and went on; and with nobody to ask nobody is. */
    REQUIRE(asked.times > 0 || rank == 1);
    CHECK(brigade_interrupt_by(NULL, NULL));
    asked.times = 0;
    if (rank == 1)
        rest(300);
    CHECK(brigade_barrier(asked.comm, NULL));
    REQUIRE(asked.times == 0);
    CHECK(brigade_interrupt_by(ask, &asked));
    asked.end_at = 3;
    if (rank == 1)
        rest(1000);
    RESULT(BRIGADE_ABORTED, brigade_barrier(asked.comm, NULL));
    REQUIRE(strstr(brigade_last_error(), "rank 0 aborted: interrupted during barrier") != NULL);
    REQUIRE(rank == 1 || asked.times == 3);
    CHECK(brigade_comm_destroy(asked.comm));
    printf("rank %d of 2: all as it should be\n", rank);
    return 0;
}
