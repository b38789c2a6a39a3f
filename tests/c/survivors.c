/*
 * Three processes, of which one is killed; the others hear of it, and go on without it, until a new
 * process comes in its place. Killed is once the rank that all the others joined through, and once
 * another one.
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

/* Those who are left, and a newcomer, which gets the id through its pipe from the first of them. */
static void grow(brigade_comm_t rest, int pipe) {
    brigade_comm_t whole;
    brigade_unique_id_t id;
    int rank, size;
    CHECK(brigade_comm_rank(rest, &rank));
    REQUIRE(brigade_comm_grow(rest, RANKS, NULL, &whole, NULL) == BRIGADE_INVALID_ARGUMENT);
    REQUIRE(strstr(brigade_last_error(), "no rank was given a unique id") != NULL);
    REQUIRE(brigade_comm_grow(rest, -1, NULL, &whole, NULL) == BRIGADE_INVALID_ARGUMENT);
    if (rank == 0) {
        CHECK(brigade_get_unique_id(&id));
        REQUIRE(write(pipe, &id, sizeof id) == (ssize_t)sizeof id);
    }
    CHECK(brigade_comm_grow(rest, RANKS, rank == 0 ? &id : NULL, &whole, NULL));
    CHECK(brigade_comm_destroy(rest));
    CHECK(brigade_comm_size(whole, &size));
    REQUIRE(size == RANKS && sum_of(whole, rank) == 3);
    CHECK(brigade_comm_finalize(whole));
    CHECK(brigade_comm_destroy(whole));
}

static int come(int pipe) {
    brigade_comm_t whole;
    brigade_unique_id_t id;
    REQUIRE(read(pipe, &id, sizeof id) == (ssize_t)sizeof id);
    CHECK(brigade_comm_init_rank(&whole, RANKS, id, RANKS - 1));
    REQUIRE(sum_of(whole, RANKS - 1) == 3);
    CHECK(brigade_comm_finalize(whole));
    CHECK(brigade_comm_destroy(whole));
    return 0;
}

/* One rank. The first one draws the id, and writes it to the pipes of the others. */
static int be(int rank, int victim, int pipes[RANKS][2]) {
    brigade_comm_t comm, rest;
    brigade_unique_id_t id;
    brigade_result_t result, gone;
    int64_t one = 1, sum;
    char done = 1;
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
    /* Who is killed may take what it has sent along, so the others are done with the first call. */
    if (rank == victim) {
        for (at = 1; at < RANKS; at++)
            REQUIRE(read(pipes[rank][0], &done, 1) == 1);
        raise(SIGKILL);
    }
    REQUIRE(write(pipes[victim][1], &done, 1) == 1);
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
    grow(rest, pipes[victim][1]);
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
    REQUIRE(waitpid(children[victim], &status, 0) == children[victim] && WIFSIGNALED(status));
    children[victim] = fork();
    REQUIRE(children[victim] >= 0);
    if (children[victim] == 0)
        _exit(come(pipes[victim][0]));
    for (rank = 0; rank < RANKS; rank++) {
        REQUIRE(waitpid(children[rank], &status, 0) == children[rank]);
        REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        close(pipes[rank][0]);
        close(pipes[rank][1]);
    }
}

int main(void) {
    trial(1);
    trial(0);
    printf("those who were left went on, and were as many again\n");
    return 0;
}
