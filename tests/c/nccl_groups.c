/*
 * Groups of NCCL's: calls are carried out together or not at all; and a group that is open at a fork
 * is the parent's.
 */
#define _POSIX_C_SOURCE 200809L
#include "nccl_check.h"

#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static ncclComm_t comm;
static float one = 1, two;

static ncclResult_t reduce_one(void) {
    return ncclAllReduce(&one, &two, 1, ncclFloat32, ncclSum, comm, NULL);
}

static void begin(void) {
    CHECK(ncclCommInitAll(&comm, 1, NULL));
    CHECK(ncclGroupStart());
    CHECK(reduce_one());
    two = 7;
}

/* One thread ends all of its ranks: in a group, or one after the other. */
static void endings(void) {
    ncclComm_t two_of[2];
    ncclUniqueId id;
    int rank;
    CHECK(ncclGetUniqueId(&id));
    CHECK(ncclGroupStart());
    for (rank = 0; rank < 2; rank++)
        CHECK(ncclCommInitRank(&two_of[rank], 2, id, rank));
    CHECK(ncclGroupEnd());
    CHECK(ncclGroupStart());
    for (rank = 0; rank < 2; rank++)
        CHECK(ncclCommFinalize(two_of[rank]));
    CHECK(ncclGroupEnd());
    CHECK(ncclGroupStart());
    for (rank = 0; rank < 2; rank++)
        CHECK(ncclCommDestroy(two_of[rank]));
    CHECK(ncclGroupEnd());
    REFUSED(ncclCommDestroy(two_of[0]));
    CHECK(ncclCommInitAll(two_of, 2, NULL));
    for (rank = 0; rank < 2; rank++)
        CHECK(ncclCommFinalize(two_of[rank]));
    for (rank = 0; rank < 2; rank++)
        CHECK(ncclCommDestroy(two_of[rank]));
    CHECK(ncclCommFinalize(NULL));
    CHECK(ncclCommDestroy(NULL));
    CHECK(ncclCommAbort(NULL));
}

/* What is refused is told at once: nobody waits for ranks that will not come. */
static void refusals(void) {
    ncclComm_t two_of[2], part[2];
    const time_t begun = time(NULL);
    ncclUniqueId id;
    CHECK(ncclGetUniqueId(&id));
    CHECK(ncclGroupStart());
    CHECK(ncclCommInitRank(&two_of[0], 2, id, 0));
    REFUSED(ncclCommInitRank(&two_of[1], 2, id, 2));
    REFUSED(ncclGroupEnd());
    REQUIRE(strstr(ncclGetLastError(NULL), "rank 2 of 2") != NULL);
    CHECK(ncclCommDestroy(two_of[0]));
    CHECK(ncclCommInitAll(two_of, 2, NULL));
    CHECK(ncclGroupStart());
    CHECK(ncclCommSplit(two_of[0], 0, 0, &part[0], NULL));
    REFUSED(ncclCommSplit(two_of[1], -2, 0, &part[1], NULL));
    REFUSED(ncclGroupEnd());
    CHECK(ncclCommDestroy(part[0]));
    /* Nothing has happened to the parents. */
    CHECK(ncclGroupStart());
    CHECK(ncclCommSplit(two_of[0], 0, 0, &part[0], NULL));
    CHECK(ncclCommSplit(two_of[1], 0, 0, &part[1], NULL));
    CHECK(ncclGroupEnd());
    CHECK(ncclCommDestroy(part[0]));
    CHECK(ncclCommDestroy(part[1]));
    CHECK(ncclCommDestroy(two_of[0]));
    CHECK(ncclCommDestroy(two_of[1]));
    REQUIRE(time(NULL) - begun < 15);
}

int main(void) {
    int status;
    pid_t child;
    endings();
    refusals();
    begin();
    CHECK(ncclSend(&one, 1, ncclFloat32, 0, comm, NULL));
    REFUSED(ncclGroupEnd());
    REQUIRE(two == 7 && strstr(ncclGetLastError(NULL), "oneself") != NULL);
    CHECK(ncclCommDestroy(comm));
    begin();
    child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        MISUSED(ncclGroupEnd());
        REQUIRE(two == 7 && strstr(ncclGetLastError(NULL), "forked") != NULL);
        begin();
        CHECK(ncclGroupEnd());
        REQUIRE(two == 1);
        CHECK(ncclCommDestroy(comm));
        _exit(0);
    }
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(ncclGroupEnd());
    REQUIRE(two == 1);
    CHECK(ncclCommDestroy(comm));
    printf("groups went as they should\n");
    return 0;
}
