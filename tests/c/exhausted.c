/*
 * A system that has no more threads or files is a system error, which says what to raise, and all
 * is as it was: with the limits that were there before, the same calls go well.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { RANKS = 16, HANDLES = 65536, THREADS = 64, STACK_BYTES = 1 << 20, SLACK_BYTES = 12 << 20 };

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void *wait_at_the_gate(void *nothing) {
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    return nothing;
}

static void limit(int what, rlim_t bytes_or_files, struct rlimit *before) {
    struct rlimit now;
    REQUIRE(getrlimit(what, before) == 0);
    now = *before;
    now.rlim_cur = bytes_or_files;
    REQUIRE(setrlimit(what, &now) == 0);
}

/* Room for the stacks of some threads, and no more: root has no limit on the threads themselves. */
static void limit_stacks(rlim_t slack_bytes, struct rlimit *before) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    REQUIRE(file != NULL && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    limit(RLIMIT_AS, (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + slack_bytes, before);
}

static int says(const char *words) {
    return strstr(brigade_last_error(), words) != NULL;
}

static void make_and_end_a_world(void) {
    brigade_comm_t comms[RANKS];
    int rank;
    CHECK(brigade_comm_init_all(comms, RANKS, NULL));
    for (rank = 0; rank < RANKS; rank++) {
        CHECK(brigade_comm_destroy(comms[rank]));
    }
}

static void a_world_without_threads(void) {
    brigade_comm_t comms[RANKS];
    struct rlimit before;
    limit_stacks(SLACK_BYTES, &before);
    RESULT(BRIGADE_SYSTEM_ERROR, brigade_comm_init_all(comms, RANKS, NULL));
    REQUIRE(setrlimit(RLIMIT_AS, &before) == 0);
    REQUIRE(says("no thread for rank") && says("ulimit -u") && comms[0] == NULL);
    make_and_end_a_world();
}

static void a_world_without_files(void) {
    brigade_comm_t comms[RANKS];
    struct rlimit hard;
    /* The library raises a limit as far as it may, so this one cannot be raised again. */
    hard.rlim_cur = hard.rlim_max = 20;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &hard) == 0);
    RESULT(BRIGADE_SYSTEM_ERROR, brigade_comm_init_all(comms, RANKS, NULL));
    REQUIRE(says("Too many open files") && says("ulimit -n") && comms[0] == NULL);
}

static void work_without_a_thread(void) {
    brigade_comm_t comm;
    brigade_work_t work;
    pthread_t threads[THREADS];
    pthread_attr_t attributes;
    struct rlimit before;
    int count = 0, value = 7;
    CHECK(brigade_comm_init_all(&comm, 1, NULL));
    /* What the system keeps of threads that have ended is used up, too. */
    limit_stacks(SLACK_BYTES, &before);
    REQUIRE(pthread_attr_init(&attributes) == 0);
    REQUIRE(pthread_attr_setstacksize(&attributes, STACK_BYTES) == 0);
    pthread_mutex_lock(&gate);
    while (pthread_create(&threads[count], &attributes, wait_at_the_gate, NULL) == 0) {
        count++;
        REQUIRE(count < THREADS);
    }
    RESULT(BRIGADE_SYSTEM_ERROR,
           brigade_all_reduce(&value, &value, 1, BRIGADE_INT32, BRIGADE_SUM, comm, &work));
    REQUIRE(says("no thread for calls that go on") && says("ulimit -u"));
    REQUIRE(setrlimit(RLIMIT_AS, &before) == 0);
    pthread_mutex_unlock(&gate);
    while (count > 0) {
        REQUIRE(pthread_join(threads[--count], NULL) == 0);
    }
    pthread_attr_destroy(&attributes);
    CHECK(brigade_all_reduce(&value, &value, 1, BRIGADE_INT32, BRIGADE_SUM, comm, &work));
    CHECK(brigade_work_wait(work, -1));
    CHECK(brigade_work_free(work));
    REQUIRE(value == 7);
    CHECK(brigade_comm_destroy(comm));
}

/* Whoever is refused for want of a handle has done nothing. */
static void a_process_without_handles(void) {
    static brigade_op_t ops[HANDLES];
    brigade_comm_t comm, part = NULL;
    brigade_window_t window;
    brigade_work_t work;
    brigade_stats_t before = BRIGADE_STATS_INIT, after = BRIGADE_STATS_INIT;
    int count = 0, value = 7, sum = 0;
    CHECK(brigade_comm_init_all(&comm, 1, NULL));
    CHECK(brigade_comm_stats(comm, &before));
    while (brigade_op_create_pre_mul_sum(&ops[count], 2.0) == BRIGADE_SUCCESS) {
        count++;
        REQUIRE(count < HANDLES);
    }
    REQUIRE(says("65536 handles are alive"));
    RESULT(BRIGADE_INVALID_USAGE,
           brigade_all_reduce(&value, &sum, 1, BRIGADE_INT32, BRIGADE_SUM, comm, &work));
    RESULT(BRIGADE_INVALID_USAGE, brigade_comm_split(comm, 0, 0, &part));
    RESULT(BRIGADE_INVALID_USAGE, brigade_window_create(&window, 8, 1, comm));
    REQUIRE(sum == 0 && part == NULL && window == NULL);
    CHECK(brigade_comm_stats(comm, &after));
    REQUIRE(after.calls == before.calls);
    while (count > 0) {
        CHECK(brigade_op_destroy(ops[--count]));
    }
    CHECK(brigade_all_reduce(&value, &sum, 1, BRIGADE_INT32, BRIGADE_SUM, comm, &work));
    CHECK(brigade_work_wait(work, -1));
    CHECK(brigade_work_free(work));
    REQUIRE(sum == 7);
    CHECK(brigade_comm_destroy(comm));
}

int main(void) {
    a_process_without_handles();
    a_world_without_threads();
    work_without_a_thread();
    a_world_without_files();
    puts("exhausted as it should be");
    return 0;
}
