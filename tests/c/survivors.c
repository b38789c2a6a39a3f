/*
 * Three processes, of which one is killed; the others hear of it, and go on without it. Killed is
 * once the rank that all the others joined through, and once another one.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 3

static int64_t sum_of(brigade_comm_t comm, int64_t mine) {
    int64_t sum = 0;
    CHECK(brigade_all_reduce(&mine, &sum, 1, BRIGADE_INT64, BRIGADE_SUM, comm, NULL));
    return sum;
}

/* One rank. The first one draws the id, and writes it to the pipes of the others. */
static int be(int rank, int victim, int pipes[RANKS][2]) {
    brigade_comm_t comm, rest;
    brigade_unique_id_t id;
    brigade_result_t result, gone;
    int64_t one = 1, sum;
    int at, size;
    if (rank == 0) {
        CHECK(brigade_get_unique_id(&id));
        for (at = 1; at < RANKS; at++)
            REQUIRE(write(pipes[at][1], &id, sizeof id) == (ssize_t)sizeof id);
    } else {
        REQUIRE(read(pipes[rank][0], &id, sizeof id) == (ssize_t)sizeof id);
    }
    CHECK(brigade_comm_init_rank(&comm, RANKS, id, rank));
    REQUIRE(sum_of(comm, rank) == 3);
    if (rank == victim)
        raise(SIGKILL);
    result = brigade_all_reduce(&one, &sum, 1, BRIGADE_INT64, BRIGADE_SUM, comm, NULL);
    REQUIRE(result == BRIGADE_PEER_LOST);
    for (at = 0; at < RANKS; at++) {
        CHECK(brigade_comm_get_rank_error(comm, at, &gone));
        REQUIRE(gone == (at == victim ? BRIGADE_PEER_LOST : BRIGADE_SUCCESS));
    }
    REQUIRE(brigade_comm_get_rank_error(comm, RANKS, &gone) == BRIGADE_INVALID_ARGUMENT);
    REQUIRE(brigade_comm_get_rank_error(comm, -1, &gone) == BRIGADE_INVALID_ARGUMENT);
    CHECK(brigade_comm_shrink(comm, &victim, 1, &rest, NULL));
    CHECK(brigade_comm_size(rest, &size));
    REQUIRE(size == RANKS - 1 && sum_of(rest, rank) == 3 - victim);
    CHECK(brigade_comm_destroy(comm));
    REQUIRE(sum_of(rest, rank) == 3 - victim);
    CHECK(brigade_comm_finalize(rest));
    CHECK(brigade_comm_destroy(rest));
    return 0;
}

static void trial(int victim) {
    int pipes[RANKS][2], rank, status;
    pid_t children[RANKS];
    for (rank = 0; rank < RANKS; rank++)
        REQUIRE(pipe(pipes[rank]) == 0);
    for (rank = 0; rank < RANKS; rank++) {
        children[rank] = fork();
        REQUIRE(children[rank] >= 0);
        if (children[rank] == 0)
            _exit(be(rank, victim, pipes));
    }
    for (rank = 0; rank < RANKS; rank++) {
        REQUIRE(waitpid(children[rank], &status, 0) == children[rank]);
        if (rank == victim)
            REQUIRE(WIFSIGNALED(status));
        else
            REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        close(pipes[rank][0]);
        close(pipes[rank][1]);
    }
}

int main(void) {
    trial(1);
    trial(0);
    printf("those who were left went on\n");
    return 0;
}
