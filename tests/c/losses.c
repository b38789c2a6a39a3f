/*
 * Four processes, of which two are killed one after the other, the second one while the others make
 * a group without the first. They hear of both, and go on without both, though each of the killed
 * has a child that goes on. First none of them is the rank that all the others joined through, then
 * the second, then the first: then nobody tells of the other one, and it may take a deadline.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS 4
#define PATIENCE 10 /* seconds */

static int64_t sum_of(brigade_comm_t comm, int64_t mine) {
    int64_t sum = 0;
    CHECK(brigade_all_reduce(&mine, &sum, 1, BRIGADE_INT64, BRIGADE_SUM, comm, NULL));
    return sum;
}

static int is_victim(int rank, const int victims[2]) {
    return rank == victims[0] || rank == victims[1];
}

/* The second loss is told of as the first one is, where the rank that knows is there. */
static void hear_of(brigade_comm_t comm, const int victims[2]) {
    const struct timespec nap = {0, 1000 * 1000};
    brigade_result_t gone;
    int rank, naps = 0;
    do {
        REQUIRE(naps++ < PATIENCE * 1000);
        nanosleep(&nap, NULL);
        CHECK(brigade_comm_get_rank_error(comm, victims[1], &gone));
    } while (gone == BRIGADE_SUCCESS);
    for (rank = 0; rank < RANKS; rank++) {
        CHECK(brigade_comm_get_rank_error(comm, rank, &gone));
        REQUIRE(gone == (is_victim(rank, victims) ? BRIGADE_PEER_LOST : BRIGADE_SUCCESS));
    }
}

/* Be killed, and leave a child behind, which ends when all the others have. */
static void end(const int pipe[2]) {
    const pid_t child = fork();
    char byte;
    REQUIRE(child >= 0);
    if (child == 0) {
        close(pipe[1]);
        while (read(pipe[0], &byte, 1) > 0)
            continue;
        _exit(0);
    }
    raise(SIGKILL);
}

static void go_on(brigade_comm_t comm, int rank, const int victims[2], const int pipe[2]) {
    brigade_comm_t rest;
    brigade_result_t result;
    char lost[32];
    int size;
    if (rank == victims[1])
        end(pipe);
    result = brigade_comm_shrink(comm, victims, 1, &rest, NULL);
    REQUIRE(result != BRIGADE_SUCCESS);
    snprintf(lost, sizeof lost, "rank %d", victims[1]);
    REQUIRE(strstr(brigade_last_error(), lost) != NULL);
    if (victims[0] != 0) {
        snprintf(lost, sizeof lost, "rank %d is lost", victims[1]);
        REQUIRE(result == BRIGADE_PEER_LOST || result == BRIGADE_INVALID_ARGUMENT);
        REQUIRE(strstr(brigade_last_error(), lost) != NULL);
        REQUIRE(strstr(brigade_last_error(), "shrink") != NULL);
        hear_of(comm, victims);
    }
    CHECK(brigade_comm_shrink(comm, victims, 2, &rest, NULL));
    CHECK(brigade_comm_size(rest, &size));
    REQUIRE(size == RANKS - 2 && sum_of(rest, rank) == 6 - victims[0] - victims[1]);
    CHECK(brigade_comm_destroy(comm));
    CHECK(brigade_comm_finalize(rest));
    CHECK(brigade_comm_destroy(rest));
}

/* One rank. The first one draws the id, and writes it to the pipe once for each other. */
static int be(int rank, const int victims[2], const int pipe[2]) {
    brigade_comm_t comm;
    brigade_unique_id_t id;
    int64_t one = 1, sum;
    char done = 1;
    int at;
    if (rank == 0) {
        CHECK(brigade_get_unique_id(&id));
        for (at = 1; at < RANKS; at++)
            REQUIRE(write(pipe[1], &id, sizeof id) == (ssize_t)sizeof id);
    } else {
        REQUIRE(read(pipe[0], &id, sizeof id) == (ssize_t)sizeof id);
    }
    CHECK(brigade_comm_init_rank(&comm, RANKS, id, rank));
    REQUIRE(sum_of(comm, rank) == 6);
    /* Who is killed may take what it has sent along, so the others are done with the first call. */
    if (rank == victims[0]) {
        for (at = 1; at < RANKS; at++)
            REQUIRE(read(pipe[0], &done, 1) == 1);
        end(pipe);
    }
    REQUIRE(write(pipe[1], &done, 1) == 1);
    REQUIRE(brigade_all_reduce(&one, &sum, 1, BRIGADE_INT64, BRIGADE_SUM, comm, NULL)
            == BRIGADE_PEER_LOST);
    go_on(comm, rank, victims, pipe);
    return 0;
}

static void trial(int first, int second) {
    const int victims[2] = {first, second};
    pid_t children[RANKS];
    int ends[2], rank, status;
    REQUIRE(pipe(ends) == 0);
    for (rank = 0; rank < RANKS; rank++) {
        children[rank] = fork();
        REQUIRE(children[rank] >= 0);
        if (children[rank] == 0)
            _exit(be(rank, victims, ends));
    }
    for (rank = 0; rank < RANKS; rank++) {
        REQUIRE(waitpid(children[rank], &status, 0) == children[rank]);
        if (is_victim(rank, victims))
            REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        else
            REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    close(ends[0]);
    close(ends[1]);
}

int main(void) {
    trial(1, 2);
    trial(3, 0);
    REQUIRE(setenv("BRIGADE_JOIN_TIMEOUT_MS", "10000", 1) == 0);
    trial(0, 1);
    printf("those who were left went on without both\n");
    return 0;
}
