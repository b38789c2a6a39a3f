/*
 * Groups of NCCL's: calls are carried out together or not at all; and a group that is open at a fork
 * is the parent's.
 */
#define _POSIX_C_SOURCE 200809L
#include "nccl_check.h"

#include <string.h>
#include <sys/wait.h>
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

int main(void) {
    int status;
    pid_t child;
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
