/*
 * Everything that a program can get wrong about memory of devices and the library can see: it must
 * be told so, and go on. Two ranks, threads that share the first device.
 */
#define _POSIX_C_SOURCE 200809L
#include "cuda.h"

#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define REFUSED(call) RESULT(BRIGADE_INVALID_ARGUMENT, call)
#define MISUSED(call) RESULT(BRIGADE_INVALID_USAGE, call)
#define SAYS(words) REQUIRE(strstr(brigade_last_error(), words) != NULL)
#define F32 BRIGADE_FLOAT32
#define SUM BRIGADE_SUM

/* The second is more than there is room for, also where a driver rounds an allocation up, to 2 MiB
 * at the most. */
enum { ELEMENTS = 1000, BEYOND = ELEMENTS + (2 << 20) / (int)sizeof(float) };

struct rank {
    int rank;
    brigade_comm_t comm;
    brigade_device_group_t group;
    void *stream, *at;
};

static void nap(int ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

static brigade_result_t reduce_one(struct rank *me, brigade_device_group_t group) {
    return brigade_device_all_reduce(me->at, me->at, 1, F32, SUM, group, me->stream);
}

/* A rank without a device is an error on all, and then all have one. */
static void no_such_device(struct rank *me) {
    brigade_device_group_t none = (brigade_device_group_t)me;
    REFUSED(brigade_device_group_create(NULL, 0, me->comm));
    if (me->rank == 1) {
        REFUSED(brigade_device_group_create(&none, 99, me->comm));
        SAYS("device 99");
    } else {
        MISUSED(brigade_device_group_create(&none, 0, me->comm));
        SAYS("rank 1 takes no part");
    }
    REQUIRE(none == NULL);
    REFUSED(brigade_device_group_create(&none, -2, me->comm));
    if (me->rank == 1) {
        REFUSED(brigade_device_group_create_among(&none, 0, 0, me->comm));
        SAYS("groups: 0, but this one is among them");
    } else {
        MISUSED(brigade_device_group_create_among(&none, 0, 2, me->comm));
        SAYS("rank 1 takes no part");
    }
    if (me->rank == 1)
        cuda_enter();
    if (me->rank == 0) {
        MISUSED(brigade_device_group_create(&none, BRIGADE_CURRENT_DEVICE, me->comm));
        SAYS("no context of CUDA");
    } else {
        MISUSED(brigade_device_group_create(&none, BRIGADE_CURRENT_DEVICE, me->comm));
        SAYS("rank 0 takes no part");
    }
    CHECK(brigade_device_group_create(&me->group, me->rank - 1 ? 0 : BRIGADE_CURRENT_DEVICE,
                                      me->comm));
    REFUSED(brigade_device_group_create(&none, 0, (brigade_comm_t)(void *)me->group));
}

static void nulls(struct rank *me) {
    const size_t counts[2] = {1, 1};
    void *at = me->at;
    brigade_device_group_t group = me->group;
    brigade_work_t work;
    REFUSED(brigade_device_group_info(NULL, NULL));
    REFUSED(brigade_device_group_info(group, NULL));
    REFUSED(brigade_device_group_check(NULL));
    REFUSED(brigade_device_group_destroy(NULL));
    REFUSED(brigade_device_mark(NULL, NULL, &work));
    REFUSED(brigade_device_mark(group, me->stream, NULL));
    REFUSED(brigade_device_all_reduce(at, at, 1, F32, SUM, NULL, NULL));
    REFUSED(brigade_device_reduce_scatter(at, at, 1, F32, SUM, NULL, NULL));
    REFUSED(brigade_device_reduce_scatter_v(at, at, counts, F32, SUM, NULL, NULL));
    REFUSED(brigade_device_all_gather(at, at, 1, F32, NULL, NULL));
    REFUSED(brigade_device_all_gather_v(at, at, counts, F32, NULL, NULL));
    REFUSED(brigade_device_all_to_all(at, at, 1, F32, NULL, NULL));
    REFUSED(brigade_device_all_to_all_v(at, counts, at, counts, F32, NULL, NULL));
    REFUSED(brigade_device_barrier(NULL, NULL));
    REFUSED(brigade_device_broadcast(at, at, 1, F32, 0, NULL, NULL));
    REFUSED(brigade_device_reduce(at, at, 1, F32, SUM, 0, NULL, NULL));
    REFUSED(brigade_device_gather(at, at, 1, F32, 0, NULL, NULL));
    REFUSED(brigade_device_gather_v(at, at, counts, F32, 0, NULL, NULL));
    REFUSED(brigade_device_scatter(at, at, 1, F32, 0, NULL, NULL));
    REFUSED(brigade_device_scatter_v(at, at, counts, F32, 0, NULL, NULL));
    REFUSED(brigade_device_send(at, 1, F32, 0, NULL, NULL));
    REFUSED(brigade_device_recv(at, 1, F32, 0, NULL, NULL));
    REFUSED(brigade_device_all_reduce(NULL, at, 1, F32, SUM, group, me->stream));
    SAYS("sendbuf is NULL");
    REFUSED(brigade_device_all_reduce(at, NULL, 1, F32, SUM, group, me->stream));
    REFUSED(brigade_device_all_gather_v(at, at, NULL, F32, group, me->stream));
    REFUSED(brigade_device_send(NULL, 1, F32, 0, group, me->stream));
}

static void nonsense(struct rank *me) {
    void *at = me->at, *stream = me->stream, *near = (char *)at + 4;
    brigade_device_group_t group = me->group;
    const size_t huge[2] = {(size_t)-1, (size_t)-1};
    REFUSED(brigade_device_all_reduce(at, at, 1, (brigade_dtype_t)14, SUM, group, stream));
    REFUSED(brigade_device_all_reduce(at, at, 1, F32, 8, group, stream));
    REFUSED(brigade_device_all_reduce(at, at, 1, F32, BRIGADE_BAND, group, stream));
    REFUSED(brigade_device_all_reduce(at, at, (size_t)-1, F32, SUM, group, stream));
    REFUSED(brigade_device_all_reduce(at, at, BEYOND, F32, SUM, group, stream));
    REFUSED(brigade_device_all_reduce(at, near, 2, F32, SUM, group, stream));
    SAYS("overlap");
    REFUSED(brigade_device_all_reduce((char *)at + 1, (char *)at + 1, 1, F32, SUM, group, stream));
    SAYS("a multiple of 4");
    REFUSED(brigade_device_all_gather_v(at, at, huge, F32, group, stream));
    REFUSED(brigade_device_broadcast(at, at, 1, F32, 2, group, stream));
    REFUSED(brigade_device_broadcast(at, at, 1, F32, -1, group, stream));
    REFUSED(brigade_device_send(at, 1, F32, 2, group, stream));
    REFUSED(brigade_device_recv(at, 1, F32, -1, group, stream));
    REFUSED(brigade_device_send(at, 1, F32, me->rank, group, stream));
    SAYS("in the same list");
}

/* Handles that never were: every bit of a good one, and those of other things. */
static void handles(struct rank *me) {
    brigade_work_t work;
    int bit, number;
    CHECK(brigade_device_mark(me->group, me->stream, &work));
    for (bit = 0; bit < 64; bit++) {
        void *guess = (void *)((uintptr_t)me->group ^ (uintptr_t)1 << bit);
        REFUSED(brigade_device_group_check((brigade_device_group_t)guess));
        REFUSED(brigade_device_group_destroy((brigade_device_group_t)guess));
        REFUSED(reduce_one(me, (brigade_device_group_t)guess));
    }
    REFUSED(reduce_one(me, (brigade_device_group_t)(void *)me->comm));
    REFUSED(reduce_one(me, (brigade_device_group_t)(void *)work));
    REFUSED(brigade_comm_rank((brigade_comm_t)(void *)me->group, &number));
    REFUSED(brigade_work_test((brigade_work_t)(void *)me->group));
    MISUSED(brigade_work_fd(work, &number));
    CHECK(brigade_work_wait(work, -1));
    CHECK(brigade_work_free(work));
    REFUSED(brigade_work_free(work));
    REFUSED(brigade_work_wait(work, -1));
}

static void infos(struct rank *me) {
    union {
        brigade_device_info_t known;
        size_t words[64];
    } theirs;
    memset(&theirs, 0, sizeof theirs);
    REFUSED(brigade_device_group_info(me->group, &theirs.known));
    theirs.known.struct_size = (size_t)-1;
    REFUSED(brigade_device_group_info(me->group, &theirs.known));
    /* A program that knows less, and one that knows more. */
    theirs.known.struct_size = 12;
    theirs.words[2] = 77;
    theirs.known.device = 55;
    CHECK(brigade_device_group_info(me->group, &theirs.known));
    REQUIRE(theirs.known.device == 0 && theirs.words[2] == 77);
    memset(&theirs, 0, sizeof theirs);
    theirs.known.struct_size = sizeof theirs;
    CHECK(brigade_device_group_info(me->group, &theirs.known));
    REQUIRE(theirs.known.shares_device == 1);
    theirs.words[63] = 1;
    REFUSED(brigade_device_group_info(me->group, &theirs.known));
}

static void groups(struct rank *me) {
    brigade_device_group_t made;
    brigade_work_t work;
    CHECK(brigade_group_start());
    MISUSED(brigade_device_group_create(&made, 0, me->comm));
    MISUSED(brigade_group_end(NULL));
    CHECK(brigade_group_start());
    MISUSED(brigade_device_mark(me->group, me->stream, &work));
    MISUSED(brigade_group_end(NULL));
    CHECK(brigade_group_start());
    MISUSED(brigade_device_group_destroy(me->group));
    MISUSED(brigade_group_end(NULL));
    CHECK(brigade_group_start());
    CHECK(reduce_one(me, me->group));
    MISUSED(brigade_group_end(&work));
    SAYS("nothing of it was carried out");
    CHECK(brigade_group_start());
    CHECK(reduce_one(me, me->group));
    REFUSED(reduce_one(me, NULL));
    MISUSED(brigade_group_end(NULL));
    SAYS("nothing of the group was carried out");
}

/* What a child inherits is refused. */
static void forks(struct rank *me) {
    int status;
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        REFUSED(brigade_device_group_check(me->group));
        SAYS("forked");
        REFUSED(reduce_one(me, me->group));
        REFUSED(brigade_device_group_destroy(me->group));
        _exit(0);
    }
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Rank 0 is in a call that rank 1 never makes; the end of the world is the end of the call. */
static void endings(struct rank *me) {
    brigade_work_t work;
    brigade_result_t result;
    CHECK(reduce_one(me, me->group));
    CHECK(brigade_device_mark(me->group, me->stream, &work));
    CHECK(brigade_work_wait(work, -1));
    CHECK(brigade_work_free(work));
    if (me->rank == 1) {
        nap(100);
        CHECK(brigade_comm_abort(me->comm, "enough"));
        while ((result = brigade_device_group_check(me->group)) == BRIGADE_SUCCESS)
            nap(1);
        REQUIRE(result == BRIGADE_ABORTED);
    } else {
        CHECK(reduce_one(me, me->group));
        CHECK(brigade_device_mark(me->group, me->stream, &work));
        /* The group goes with its last work. */
        CHECK(brigade_device_group_destroy(me->group));
        REFUSED(reduce_one(me, me->group));
        result = brigade_work_wait(work, 60000);
        REQUIRE(result == BRIGADE_ABORTED);
        SAYS("enough");
        CHECK(brigade_work_free(work));
    }
}

static void *take_part(void *argument) {
    struct rank *me = (struct rank *)argument;
    uint64_t memory;
    no_such_device(me);
    if (me->rank == 0)
        cuda_enter();
    CU(cuStreamCreateWithPriority(&me->stream, CU_STREAM_NON_BLOCKING, 0));
    CU(cuMemAlloc_v2(&memory, ELEMENTS * sizeof(float)));
    me->at = (void *)(uintptr_t)memory;
    nulls(me);
    nonsense(me);
    handles(me);
    infos(me);
    groups(me);
    if (me->rank == 0)
        forks(me);
    CHECK(reduce_one(me, me->group));
    endings(me);
    if (me->rank == 1)
        CHECK(brigade_device_group_destroy(me->group));
    REFUSED(brigade_device_group_destroy(me->group));
    CHECK(brigade_comm_destroy(me->comm));
    return NULL;
}

int main(void) {
    struct rank ranks[2];
    brigade_comm_t comms[2];
    pthread_t threads[2];
    int rank;
    cuda_open();
    CHECK(brigade_comm_init_all(comms, 2, NULL));
    for (rank = 0; rank < 2; rank++) {
        ranks[rank].rank = rank;
        ranks[rank].comm = comms[rank];
        REQUIRE(pthread_create(&threads[rank], NULL, take_part, &ranks[rank]) == 0);
    }
    for (rank = 0; rank < 2; rank++)
        REQUIRE(pthread_join(threads[rank], NULL) == 0);
    printf("all refused as it should be\n");
    return 0;
}
