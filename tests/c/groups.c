/*
 * Groups: calls are carried out together or not at all; and a group that is open at a fork is the
 * parent's.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define REFUSED(call) RESULT(BRIGADE_INVALID_ARGUMENT, call)
#define MISUSED(call) RESULT(BRIGADE_INVALID_USAGE, call)

static brigade_comm_t comm;
static float one = 1, two;

static brigade_result_t reduce_one(void) {
    return brigade_all_reduce(&one, &two, 1, BRIGADE_FLOAT32, BRIGADE_SUM, comm, NULL);
}

static void groups(void) {
    brigade_work_t work;
    brigade_comm_t made;
    CHECK(brigade_group_start());
    MISUSED(brigade_comm_init_from_env(&made, NULL));
    MISUSED(brigade_group_end(NULL));
    CHECK(brigade_group_start());
    CHECK(reduce_one());
    REFUSED(brigade_broadcast(&one, NULL, 1, BRIGADE_FLOAT32, 0, comm, NULL));
    two = 7;
    MISUSED(brigade_group_end(NULL));
    REQUIRE(two == 7 && strstr(brigade_last_error(), "recvbuf is NULL") != NULL);
    CHECK(brigade_group_start());
    MISUSED(brigade_all_reduce(&one, &two, 1, BRIGADE_FLOAT32, BRIGADE_SUM, comm, &work));
    MISUSED(brigade_group_end(&work));
    CHECK(brigade_group_start());
    CHECK(brigade_group_start());
    CHECK(reduce_one());
    CHECK(brigade_group_end(NULL));
    REQUIRE(two == 7);
    CHECK(brigade_group_end(&work));
    CHECK(brigade_work_wait(work, -1));
    CHECK(brigade_work_free(work));
    REQUIRE(two == 1);
    CHECK(brigade_group_start());
    CHECK(brigade_group_end(NULL));
    /* An inner group has no work, but it has ended. */
    two = 7;
    CHECK(brigade_group_start());
    CHECK(brigade_group_start());
    CHECK(reduce_one());
    MISUSED(brigade_group_end(&work));
    MISUSED(brigade_group_end(NULL));
    REQUIRE(two == 7 && strstr(brigade_last_error(), "outermost") != NULL);
    MISUSED(brigade_group_end(NULL));
    CHECK(reduce_one());
    REQUIRE(two == 1);
    /* What is wrong with the last call, or with all messages together, is seen before the first. */
    two = 7;
    CHECK(brigade_group_start());
    CHECK(reduce_one());
    CHECK(brigade_all_reduce(&one, &one, 1, BRIGADE_FLOAT32, BRIGADE_BAND, comm, NULL));
    REFUSED(brigade_group_end(NULL));
    REQUIRE(two == 7);
    CHECK(brigade_group_start());
    CHECK(reduce_one());
    CHECK(brigade_send(&one, 1, BRIGADE_FLOAT32, 0, comm, NULL));
    REFUSED(brigade_group_end(&work));
    REQUIRE(two == 7);
    /* What is listed and cancelled is never carried out. */
    CHECK(brigade_group_start());
    CHECK(brigade_group_start());
    CHECK(reduce_one());
    CHECK(brigade_group_cancel());
    CHECK(reduce_one());
    MISUSED(brigade_group_end(NULL));
    REQUIRE(two == 7 && strstr(brigade_last_error(), "was cancelled") != NULL);
    CHECK(brigade_group_start());
    CHECK(reduce_one());
    CHECK(brigade_group_cancel());
    MISUSED(brigade_group_end(NULL));
    REQUIRE(two == 7);
    CHECK(brigade_group_cancel());
}

/* Messages from and to so many elements behind the first of a buffer, in one group. */
static brigade_result_t exchange(float *buffer, int from, int to, int again) {
    CHECK(brigade_group_start());
    CHECK(brigade_send(buffer + from, 10, BRIGADE_FLOAT32, 0, comm, NULL));
    CHECK(brigade_recv(buffer + to, 10, BRIGADE_FLOAT32, 0, comm, NULL));
    CHECK(brigade_send(buffer + from, 10, BRIGADE_FLOAT32, 0, comm, NULL));
    CHECK(brigade_recv(buffer + again, 10, BRIGADE_FLOAT32, 0, comm, NULL));
    return brigade_group_end(NULL);
}

static void messages_that_overlap(void) {
    float buffer[40];
    int at;
    for (at = 0; at < 40; at++)
        buffer[at] = (float)at;
    REFUSED(exchange(buffer, 0, 0, 20));
    REFUSED(exchange(buffer, 0, 9, 20));
    REFUSED(exchange(buffer, 10, 1, 20));
    REFUSED(exchange(buffer, 0, 10, 19));
    REQUIRE(strstr(brigade_last_error(), "messages 1 and 3 of the group overlap") != NULL);
    for (at = 0; at < 40; at++)
        REQUIRE(buffer[at] == (float)at);
    /* What is only sent may be sent twice. */
    CHECK(exchange(buffer, 0, 10, 20));
    for (at = 0; at < 30; at++)
        REQUIRE(buffer[at] == (float)(at % 10));
}

/* By then what a thread has of its own has gone. */
static void at_the_end(void) {
    if (brigade_group_start() != BRIGADE_INVALID_USAGE)
        _exit(3);
}

/* Calls of all ranks of this process in one group need no threads. */
static void whole_world_in_a_group(void) {
    brigade_comm_t comms[3];
    float sums[3] = {1, 2, 3}, sent = 5, got = 0;
    int rank;
    CHECK(brigade_comm_init_all(comms, 3, NULL));
    CHECK(brigade_group_start());
    CHECK(brigade_send(&sent, 1, BRIGADE_FLOAT32, 2, comms[0], NULL));
    CHECK(brigade_recv(&got, 1, BRIGADE_FLOAT32, 0, comms[2], NULL));
    for (rank = 0; rank < 3; rank++)
        CHECK(brigade_all_reduce(&sums[rank], &sums[rank], 1, BRIGADE_FLOAT32, BRIGADE_SUM,
                                 comms[rank], NULL));
    CHECK(brigade_group_end(NULL));
    REQUIRE(sums[0] == 6 && sums[1] == 6 && sums[2] == 6 && got == 5);
    for (rank = 0; rank < 3; rank++)
        CHECK(brigade_comm_destroy(comms[rank]));
}

/* The group is open in a child, too, but what was listed is the parent's. */
static void forks(void) {
    int status;
    pid_t child;
    CHECK(brigade_group_start());
    CHECK(reduce_one());
    two = 7;
    child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        MISUSED(brigade_group_end(NULL));
        REQUIRE(two == 7 && strstr(brigade_last_error(), "forked") != NULL);
        CHECK(brigade_comm_init_from_env(&comm, NULL));
        CHECK(brigade_group_start());
        CHECK(reduce_one());
        CHECK(brigade_group_end(NULL));
        REQUIRE(two == 1);
        CHECK(brigade_comm_destroy(comm));
        _exit(0);
    }
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(brigade_group_end(NULL));
    REQUIRE(two == 1);
}

/* With any argument nothing is forked: a child has lost what it cannot reach any more. */
int main(int argc, char **argv) {
    (void)argv;
    CHECK(brigade_comm_init_from_env(&comm, NULL));
    REQUIRE(atexit(at_the_end) == 0);
    groups();
    messages_that_overlap();
    whole_world_in_a_group();
    if (argc == 1)
        forks();
    CHECK(brigade_comm_destroy(comm));
    printf("groups went as they should\n");
    return 0;
}
