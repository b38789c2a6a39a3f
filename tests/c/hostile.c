/*
 * Everything that a program can get wrong and the library can see: it must be told so, and go on.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define REFUSED(call) RESULT(BRIGADE_INVALID_ARGUMENT, call)
#define MISUSED(call) RESULT(BRIGADE_INVALID_USAGE, call)

static brigade_comm_t comm;
static float one = 1, two;

static void nap(int ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

static brigade_result_t reduce_one(brigade_comm_t on) {
    return brigade_all_reduce(&one, &two, 1, BRIGADE_FLOAT32, BRIGADE_SUM, on, NULL);
}

static void nulls(void) {
    brigade_op_t op;
    REFUSED(brigade_get_unique_id(NULL));
    REFUSED(brigade_comm_init_from_env(NULL, NULL));
    REFUSED(brigade_comm_init_all(NULL, 2, NULL));
    REFUSED(brigade_comm_rank(NULL, NULL));
    REFUSED(brigade_comm_rank(comm, NULL));
    REFUSED(brigade_comm_size(comm, NULL));
    REFUSED(brigade_comm_split(comm, 0, 0, NULL));
    REFUSED(brigade_comm_stats(comm, NULL));
    REFUSED(brigade_comm_setting(comm, NULL, NULL, 0));
    REFUSED(brigade_comm_abort(NULL, NULL));
    REFUSED(brigade_comm_get_async_error(comm, NULL));
    REFUSED(brigade_comm_get_rank_error(comm, 0, NULL));
    REFUSED(brigade_comm_destroy(NULL));
    REFUSED(brigade_work_test(NULL));
    REFUSED(brigade_work_wait(NULL, 0));
    REFUSED(brigade_work_free(NULL));
    REFUSED(brigade_work_fd(NULL, NULL));
    REFUSED(brigade_work_on_done(NULL, NULL, NULL));
    REFUSED(brigade_op_create(NULL, "op", NULL, NULL));
    REFUSED(brigade_op_create(&op, NULL, NULL, NULL));
    REFUSED(brigade_op_create(&op, "op", NULL, NULL));
    REFUSED(brigade_barrier(NULL, NULL));
    REFUSED(reduce_one(NULL));
    REFUSED(brigade_all_reduce(NULL, &two, 1, BRIGADE_FLOAT32, BRIGADE_SUM, comm, NULL));
    REQUIRE(strstr(brigade_last_error(), "sendbuf is NULL") != NULL);
    REFUSED(brigade_all_reduce(&one, NULL, 1, BRIGADE_FLOAT32, BRIGADE_SUM, comm, NULL));
    REFUSED(brigade_all_gather_v(&one, &two, NULL, BRIGADE_FLOAT32, comm, NULL));
    REFUSED(brigade_all_to_all_v(&one, NULL, &two, NULL, BRIGADE_FLOAT32, comm, NULL));
    REFUSED(brigade_send(NULL, 1, BRIGADE_FLOAT32, 0, comm, NULL));
    CHECK(reduce_one(comm));
}

static void nonsense(void) {
    char room[8];
    brigade_comm_t made;
    double wide[2] = {0, 0};
    const size_t huge[1] = {(size_t)-1};
    void *askew = (char *)wide + 1;
    REFUSED(brigade_all_reduce(&one, &two, 1, (brigade_dtype_t)14, BRIGADE_SUM, comm, NULL));
    REFUSED(brigade_all_reduce(&one, &two, 1, BRIGADE_FLOAT32, 8, comm, NULL));
    REFUSED(brigade_all_reduce(&one, &two, 1, BRIGADE_FLOAT32, BRIGADE_BAND, comm, NULL));
    REFUSED(brigade_all_reduce(&one, &two, (size_t)-1, BRIGADE_FLOAT32, BRIGADE_SUM, comm, NULL));
    REFUSED(brigade_all_gather_v(&one, &two, huge, BRIGADE_FLOAT32, comm, NULL));
    REFUSED(brigade_all_reduce(wide, askew, 1, BRIGADE_FLOAT64, BRIGADE_SUM, comm, NULL));
    REQUIRE(strstr(brigade_last_error(), "overlap") != NULL);
    REFUSED(brigade_broadcast(&one, &two, 1, BRIGADE_FLOAT32, 1, comm, NULL));
    REFUSED(brigade_broadcast(&one, &two, 1, BRIGADE_FLOAT32, -1, comm, NULL));
    REFUSED(brigade_send(&one, 1, BRIGADE_FLOAT32, 5, comm, NULL));
    REFUSED(brigade_send(&one, 1, BRIGADE_FLOAT32, 0, comm, NULL));
    REFUSED(brigade_comm_split(comm, -2, 0, &made));
    REFUSED(brigade_comm_init_all(&made, 0, NULL));
    REFUSED(brigade_comm_init_all(&made, -1, NULL));
    REFUSED(brigade_comm_rank(comm, (int *)askew));
    REFUSED(brigade_comm_setting(comm, "BRIGADE_TIMEOUT_MS", room, 1));
    REFUSED(brigade_comm_setting(comm, "BRIGADE_NOTHING", room, sizeof room));
    REFUSED(brigade_op_destroy(BRIGADE_SUM));
    MISUSED(brigade_group_end(NULL));
    CHECK(reduce_one(comm));
}

/* A rank that is none is named by the number that was written. */
#define NAMED(words, call)                                                                  \
    do {                                                                                    \
        REFUSED(call);                                                                      \
        REQUIRE(strstr(brigade_last_error(), words) != NULL);                               \
    } while (0)

static void strangers(void) {
    const int none[1] = {-3};
    const size_t counts[1] = {1};
    brigade_result_t gone;
    brigade_comm_t made;
    NAMED("message: rank -1 of 1", brigade_send(&one, 1, BRIGADE_FLOAT32, -1, comm, NULL));
    NAMED("message: rank -7 of 1", brigade_recv(&two, 1, BRIGADE_FLOAT32, -7, comm, NULL));
    NAMED("message: rank 5 of 1", brigade_recv(&two, 1, BRIGADE_FLOAT32, 5, comm, NULL));
    NAMED("broadcast: root -1 of 1",
          brigade_broadcast(&one, &two, 1, BRIGADE_FLOAT32, -1, comm, NULL));
    NAMED("broadcast: root 2 of 1",
          brigade_broadcast(&one, &two, 1, BRIGADE_FLOAT32, 2, comm, NULL));
    NAMED("reduce: root -2 of 1",
          brigade_reduce(&one, &two, 1, BRIGADE_FLOAT32, BRIGADE_SUM, -2, comm, NULL));
    NAMED("gather: root -3 of 1", brigade_gather(&one, &two, 1, BRIGADE_FLOAT32, -3, comm, NULL));
    NAMED("gather: root -4 of 1",
          brigade_gather_v(&one, &two, counts, BRIGADE_FLOAT32, -4, comm, NULL));
    NAMED("scatter: root -5 of 1", brigade_scatter(&one, &two, 1, BRIGADE_FLOAT32, -5, comm, NULL));
    NAMED("scatter: root -6 of 1",
          brigade_scatter_v(&one, &two, counts, BRIGADE_FLOAT32, -6, comm, NULL));
    NAMED("rank -1 of 1", brigade_comm_get_rank_error(comm, -1, &gone));
    NAMED("shrink: rank -3 of 1", brigade_comm_shrink(comm, none, 1, &made, NULL));
    CHECK(reduce_one(comm));
}

static void ids(void) {
    brigade_unique_id_t id;
    brigade_comm_t none = comm;
    memset(&id, 0, sizeof id);
    REFUSED(brigade_comm_init_rank(&none, 1, id, 0));
    REQUIRE(none == NULL);
    CHECK(brigade_get_unique_id(&id));
    REFUSED(brigade_comm_init_rank(&none, 0, id, 0));
    REFUSED(brigade_comm_init_rank(&none, 2, id, 2));
    REFUSED(brigade_comm_init_rank(&none, -1, id, -1));
    CHECK(brigade_comm_init_rank(&none, 1, id, 0));
    CHECK(brigade_comm_destroy(none));
}

static void configs(void) {
    struct {
        brigade_config_t known;
        char later[4096];
    } theirs;
    brigade_setting_t settings[2] = {{"BRIGADE_TIMEOUT_MS", "1000"}, {NULL, NULL}};
    const size_t wrong[] = {0, 1, 7, 4097, 1 << 20, (size_t)-1};
    brigade_comm_t made;
    size_t at;
    memset(&theirs, 0, sizeof theirs);
    for (at = 0; at < sizeof wrong / sizeof *wrong; at++) {
        theirs.known.struct_size = wrong[at];
        REFUSED(brigade_comm_init_from_env(&made, &theirs.known));
    }
    /* A program that is newer than the library, and uses nothing new; then one that does. */
    theirs.known.struct_size = sizeof theirs.known + 100;
    CHECK(brigade_comm_init_from_env(&made, &theirs.known));
    CHECK(brigade_comm_destroy(made));
    theirs.later[99] = 1;
    REFUSED(brigade_comm_init_from_env(&made, &theirs.known));
    REQUIRE(strstr(brigade_last_error(), "older") != NULL);
    /* A program that is older than the library. */
    theirs.known.struct_size = sizeof(size_t);
    CHECK(brigade_comm_init_from_env(&made, &theirs.known));
    CHECK(brigade_comm_destroy(made));
    theirs.known.struct_size = sizeof theirs.known;
    theirs.known.setting_count = 1;
    REFUSED(brigade_comm_init_from_env(&made, &theirs.known));
    theirs.known.settings = settings;
    CHECK(brigade_comm_init_from_env(&made, &theirs.known));
    CHECK(brigade_comm_destroy(made));
    theirs.known.setting_count = 2;
    REFUSED(brigade_comm_init_from_env(&made, &theirs.known));
    theirs.known.setting_count = (size_t)-1;
    REFUSED(brigade_comm_init_from_env(&made, &theirs.known));
    theirs.known.setting_count = 1;
    settings[0].value = "soon";
    REFUSED(brigade_comm_init_from_env(&made, &theirs.known));
    REQUIRE(strstr(brigade_last_error(), "BRIGADE_TIMEOUT_MS=\"soon\"") != NULL);
    settings[0].name = "BRIGADE_NOTHING";
    REFUSED(brigade_comm_init_from_env(&made, &theirs.known));
    REQUIRE(made == NULL);
}

/* Handles that never were: every bit of a good one, and numbers of a seeded generator. */
static void handles(void) {
    uint64_t seed = 0x9E3779B97F4A7C15u;
    brigade_work_t work;
    brigade_op_t op;
    int rank, turn;
    CHECK(brigade_op_create_pre_mul_sum(&op, 2));
    CHECK(brigade_barrier(comm, &work));
    REFUSED(brigade_comm_rank((brigade_comm_t)(void *)work, &rank));
    REFUSED(brigade_work_test((brigade_work_t)(void *)comm));
    REFUSED(brigade_op_destroy((brigade_op_t)(uintptr_t)comm));
    for (turn = 0; turn < 100000; turn++) {
        uint64_t guess;
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        guess = turn < 64 ? (uintptr_t)comm ^ (uint64_t)1 << turn : seed;
        if (turn % 2 == 1)
            guess = (guess & 0xFFFFFFFFFFFFFFu) | (uintptr_t)comm >> 56 << 56;
        if (guess == (uintptr_t)comm || guess == (uintptr_t)work || guess == op)
            continue;
        REFUSED(brigade_comm_rank((brigade_comm_t)(uintptr_t)guess, &rank));
        REFUSED(brigade_comm_destroy((brigade_comm_t)(uintptr_t)guess));
        REFUSED(brigade_work_free((brigade_work_t)(uintptr_t)guess));
        REFUSED(guess <= BRIGADE_BXOR ? BRIGADE_INVALID_ARGUMENT : brigade_op_destroy(guess));
    }
    CHECK(brigade_work_wait(work, -1));
    CHECK(brigade_work_free(work));
    REFUSED(brigade_work_free(work));
    REFUSED(brigade_work_test(work));
    CHECK(brigade_op_destroy(op));
    REFUSED(brigade_op_destroy(op));
    REFUSED(brigade_all_reduce(&one, &two, 1, BRIGADE_FLOAT32, op, comm, NULL));
}

/* An operator that calls what it must not call. */
static void meddle(const void *arriving, void *accumulator, size_t count, brigade_dtype_t dtype,
                   void *user) {
    brigade_comm_t made;
    brigade_work_t work;
    (void)arriving, (void)accumulator, (void)count, (void)dtype;
    MISUSED(brigade_barrier((brigade_comm_t)user, &work));
    MISUSED(brigade_send(&one, 1, BRIGADE_FLOAT32, 0, (brigade_comm_t)user, NULL));
    MISUSED(brigade_group_start());
    MISUSED(brigade_comm_init_from_env(&made, NULL));
}

/* Two ranks in this process, from here on. */
struct call {
    brigade_comm_t comm;
    brigade_op_t op;
    brigade_result_t result;
    char sentence[256];
};

static void *reduce_there(void *argument) {
    struct call *call = (struct call *)argument;
    float sent = 1, got;
    call->result = brigade_all_reduce(&sent, &got, 1, BRIGADE_FLOAT32, call->op, call->comm, NULL);
    strncpy(call->sentence, brigade_last_error(), sizeof call->sentence - 1);
    return NULL;
}

static void operators(void) {
    struct call calls[2];
    brigade_comm_t comms[2];
    pthread_t threads[2];
    int rank;
    memset(calls, 0, sizeof calls);
    CHECK(brigade_comm_init_all(comms, 2, NULL));
    for (rank = 0; rank < 2; rank++) {
        calls[rank].comm = comms[rank];
        CHECK(brigade_op_create(&calls[rank].op, "meddle", meddle, comms[rank]));
        pthread_create(&threads[rank], NULL, reduce_there, &calls[rank]);
    }
    for (rank = 0; rank < 2; rank++) {
        pthread_join(threads[rank], NULL);
        REQUIRE(calls[rank].result == BRIGADE_SUCCESS);
        CHECK(brigade_op_destroy(calls[rank].op));
        CHECK(brigade_comm_destroy(comms[rank]));
    }
}

/* One thread waits in a call; this one ends the communicator under it, and then the world. */
static void endings(int destroy_first) {
    struct call call;
    brigade_comm_t comms[2];
    brigade_result_t ended;
    pthread_t thread;
    int rank, naps;
    memset(&call, 0, sizeof call);
    CHECK(brigade_comm_init_all(comms, 2, NULL));
    call.comm = comms[0];
    pthread_create(&thread, NULL, reduce_there, &call);
    nap(50);
    if (destroy_first) {
        CHECK(brigade_comm_destroy(comms[0]));
        REFUSED(brigade_comm_rank(comms[0], &rank));
    }
    CHECK(brigade_comm_get_async_error(comms[1], &ended));
    REQUIRE(ended == BRIGADE_SUCCESS);
    /* Its first letter is not UTF-8: that is no reason to go on. */
    CHECK(brigade_comm_abort(comms[destroy_first], "\xe9nough is enough"));
    pthread_join(thread, NULL);
    REQUIRE(call.result == BRIGADE_ABORTED && strstr(call.sentence, "enough") != NULL);
    /* What the other rank had sent before would be enough for a call here: until this one hears. */
    for (naps = 0; ended == BRIGADE_SUCCESS && naps < 1000; naps++) {
        nap(10);
        CHECK(brigade_comm_get_async_error(comms[1], &ended));
    }
    REQUIRE(ended == BRIGADE_ABORTED);
    RESULT(BRIGADE_ABORTED, reduce_one(comms[1]));
    if (!destroy_first)
        CHECK(brigade_comm_destroy(comms[0]));
    CHECK(brigade_comm_destroy(comms[1]));
}

/* What a child inherits is refused, and what it makes is its own. */
static void forks(void) {
    brigade_comm_t own;
    int rank, status;
    pid_t child;
    child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        REFUSED(brigade_comm_rank(comm, &rank));
        REQUIRE(strstr(brigade_last_error(), "forked") != NULL);
        REFUSED(reduce_one(comm));
        REFUSED(brigade_comm_destroy(comm));
        CHECK(brigade_comm_init_from_env(&own, NULL));
        REQUIRE(own != comm);
        CHECK(reduce_one(own));
        REFUSED(reduce_one(comm));
        CHECK(brigade_comm_destroy(own));
        _exit(0);
    }
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(reduce_one(comm));
}

/* With any argument nothing is forked: a child has lost what it cannot reach any more. */
int main(int argc, char **argv) {
    (void)argv;
    CHECK(brigade_comm_init_from_env(&comm, NULL));
    REQUIRE(brigade_last_error()[0] == 0);
    nulls();
    nonsense();
    strangers();
    ids();
    configs();
    handles();
    operators();
    endings(0);
    endings(1);
    if (argc == 1)
        forks();
    CHECK(brigade_comm_destroy(comm));
    REFUSED(brigade_comm_destroy(comm));
    REFUSED(reduce_one(comm));
    REQUIRE(strstr(brigade_last_error(), "destroyed") != NULL);
    printf("all refused as it should be\n");
    return 0;
}
