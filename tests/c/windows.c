/*
 * Windows and messages from anybody: blocks go round a ring of windows, a rank collects what all
 * others send in whatever order they come, and nonsense is refused.
 */
#include "check.h"

#include <string.h>

#define BLOCK 3000
#define ROUNDS 50

static void fill(unsigned char *block, int rank, int round) {
    int at;
    for (at = 0; at < BLOCK; at++)
        block[at] = (unsigned char)(at * 7 + rank * 31 + round * 13);
}

/* Each rank writes into the next one's window; signal 0 says that a block is there, signal 1 that
 * it was read. */
static void ring(brigade_comm_t comm, int rank, int size) {
    static unsigned char sent[BLOCK], got[BLOCK], wanted[BLOCK];
    const int next = (rank + 1) % size, last = (rank + size - 1) % size;
    brigade_window_t window;
    size_t bytes, signals;
    uint64_t value;
    int round;
    CHECK(brigade_window_create(&window, BLOCK + 1 + (size_t)rank, 2, comm));
    CHECK(brigade_window_size(next, &bytes, &signals, window));
    REQUIRE(bytes == BLOCK + 1 + (size_t)next && signals == 2);
    for (round = 1; round <= ROUNDS; round++) {
        fill(sent, rank, round);
        CHECK(brigade_window_put(sent, BLOCK, next, 1, window));
        CHECK(brigade_window_signal(next, 0, 1, window));
        CHECK(brigade_window_wait(0, (uint64_t)round, -1, &value, window));
        REQUIRE(value == (uint64_t)round);
        CHECK(brigade_window_get(got, BLOCK, rank, 1, window));
        fill(wanted, last, round);
        REQUIRE(memcmp(got, wanted, BLOCK) == 0);
        CHECK(brigade_window_signal(last, 1, 1, window));
        CHECK(brigade_window_wait(1, (uint64_t)round, 60000, NULL, window));
    }
    CHECK(brigade_barrier(comm, NULL));
    CHECK(brigade_window_get(got, BLOCK, next, 1, window));
    fill(wanted, rank, ROUNDS);
    REQUIRE(memcmp(got, wanted, BLOCK) == 0);
    CHECK(brigade_barrier(comm, NULL));
    CHECK(brigade_window_destroy(window));
}

/* What makes no sense is refused, and everything goes on. */
static void nonsense(brigade_comm_t comm, int size) {
    brigade_window_t window, none = (brigade_window_t)&window;
    unsigned char byte = 0;
    uint64_t value = 7;
    CHECK(brigade_window_create(&window, 10, 1, comm));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_window_create(NULL, 10, 1, comm));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_window_create(&none, 10, 1, (brigade_comm_t)window));
    none = (brigade_window_t)&window;
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_window_put(&byte, 1, 0, 10, window));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_window_put(&byte, 1, 0, SIZE_MAX, window));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_window_put(&byte, SIZE_MAX, 0, 0, window));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_window_put(NULL, 1, 0, 0, window));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_window_put(&byte, 1, size, 0, window));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_window_get(&byte, 1, -1, 0, window));
    REQUIRE(strstr(brigade_last_error(), "a window: rank -1 of ") != NULL);
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_window_get(&byte, 1, 0, 0, none));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_window_signal(0, 1, 1, window));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_window_wait(1, 0, 0, NULL, window));
    RESULT(BRIGADE_IN_PROGRESS, brigade_window_wait(0, 1, 10, &value, window));
    REQUIRE(value == 0);
    CHECK(brigade_window_put(NULL, 0, 0, 10, window));
    CHECK(brigade_group_start());
    RESULT(BRIGADE_INVALID_USAGE, brigade_window_create(&none, 1, 1, comm));
    RESULT(BRIGADE_INVALID_USAGE, brigade_group_end(NULL));
    CHECK(brigade_window_destroy(window));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_window_put(&byte, 1, 0, 0, window));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_window_destroy(window));
    CHECK(brigade_barrier(comm, NULL));
}

/* Rank 0 receives what the others send; each message says who sent it, and which it is. */
static void anybody(brigade_comm_t comm, int rank, int size) {
    int32_t message[64];
    int32_t counts[64] = {0};
    int source = -1, at;
    size_t received = 0;
    if (rank > 0) {
        for (at = 0; at < ROUNDS; at++) {
            message[0] = rank;
            message[1] = at;
            CHECK(brigade_send(message, 2 + (size_t)at % 60, BRIGADE_INT32, 0, comm, NULL));
        }
        return;
    }
    for (at = 0; at < ROUNDS * (size - 1); at++) {
        CHECK(brigade_recv_any(message, 64, BRIGADE_INT32, comm, &source, &received));
        REQUIRE(source == message[0] && source > 0 && source < size);
        REQUIRE(message[1] == counts[source] && received == 2 + (size_t)counts[source] % 60);
        counts[source]++;
    }
    RESULT(BRIGADE_INVALID_ARGUMENT,
           brigade_recv_any(message, 64, BRIGADE_INT32, comm, NULL, &received));
    RESULT(BRIGADE_INVALID_ARGUMENT,
           brigade_recv_any(NULL, 64, BRIGADE_INT32, comm, &source, NULL));
}

int main(void) {
    brigade_comm_t comm;
    int rank, size;
    CHECK(brigade_comm_init_from_env(&comm, NULL));
    CHECK(brigade_comm_rank(comm, &rank));
    CHECK(brigade_comm_size(comm, &size));
    ring(comm, rank, size);
    nonsense(comm, size);
    anybody(comm, rank, size);
    CHECK(brigade_comm_finalize(comm));
    CHECK(brigade_comm_destroy(comm));
    printf("rank %d of %d: all as it should be\n", rank, size);
    return 0;
}
