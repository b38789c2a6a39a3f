/*
 * Calls in flight: told of by functions, descriptors and waiting, in success and in error; messages
 * of several types in one group; a part of a split with settings of its own.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <poll.h>
#include <pthread.h>
#include <string.h>

#define COUNT 1000

/* What a function was told, for the thread that waits for it. */
struct told {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int calls;
    brigade_result_t result;
    char sentence[256];
    brigade_comm_t comm;
    long sum;
};

static void begin(struct told *told, brigade_comm_t comm) {
    memset(told, 0, sizeof *told);
    pthread_mutex_init(&told->lock, NULL);
    pthread_cond_init(&told->changed, NULL);
    told->comm = comm;
}

static void await(struct told *told, int calls) {
    pthread_mutex_lock(&told->lock);
    while (told->calls < calls)
        pthread_cond_wait(&told->changed, &told->lock);
    pthread_mutex_unlock(&told->lock);
}

/* A function that makes a collective of the same communicator when all is well. */
static void done(brigade_result_t result, const char *sentence, void *user) {
    struct told *told = (struct told *)user;
    int64_t one = 1, sum = 0;
    if (result == BRIGADE_SUCCESS)
        CHECK(brigade_all_reduce(&one, &sum, 1, BRIGADE_INT64, BRIGADE_SUM, told->comm, NULL));
    pthread_mutex_lock(&told->lock);
    told->calls++;
    told->result = result;
    told->sum = (long)sum;
    strncpy(told->sentence, sentence, sizeof told->sentence - 1);
    pthread_cond_signal(&told->changed);
    pthread_mutex_unlock(&told->lock);
}

static int readable(brigade_work_t work, int timeout_ms) {
    struct pollfd watch = {0, POLLIN, 0};
    int again;
    CHECK(brigade_work_fd(work, &watch.fd));
    CHECK(brigade_work_fd(work, &again));
    REQUIRE(again == watch.fd);
    REQUIRE(poll(&watch, 1, timeout_ms) >= 0);
    return watch.revents == POLLIN;
}

/* All ranks start a long call; its end is told in every way. */
static void well(brigade_comm_t comm, int size) {
    static float sent[COUNT], got[COUNT];
    struct told told;
    brigade_work_t work;
    int at;
    begin(&told, comm);
    for (at = 0; at < COUNT; at++)
        sent[at] = (float)at;
    CHECK(brigade_all_reduce(sent, got, COUNT, BRIGADE_FLOAT32, BRIGADE_SUM, comm, &work));
    CHECK(brigade_work_on_done(work, done, &told));
    REQUIRE(readable(work, 60000));
    CHECK(brigade_work_test(work));
    CHECK(brigade_work_wait(work, 0));
    await(&told, 1);
    REQUIRE(told.result == BRIGADE_SUCCESS && told.sentence[0] == 0 && told.sum == size);
    /* After the end it is told at once, also when the handle is gone. */
    CHECK(brigade_work_on_done(work, done, &told));
    CHECK(brigade_work_free(work));
    await(&told, 2);
    REQUIRE(told.sum == size);
    for (at = 0; at < COUNT; at++)
        REQUIRE(got[at] == (float)(at * size));
}

/* Around the ring go, in one group, messages of four types and a collective. */
static void mixed(brigade_comm_t comm, int rank, int size) {
    const int next = (rank + 1) % size, last = (rank + size - 1) % size;
    const double doubles[2] = {rank + 0.5, rank + 0.25};
    const unsigned char bytes[5] = {1, 2, 3, 4, (unsigned char)rank}, flag = 1;
    const int64_t word = -rank;
    double got_doubles[2];
    unsigned char got_bytes[5], got_flag = 0;
    int64_t got_word, sum = 0;
    brigade_work_t work;
    CHECK(brigade_group_start());
    CHECK(brigade_send(doubles, 2, BRIGADE_FLOAT64, next, comm, NULL));
    CHECK(brigade_send(bytes, 5, BRIGADE_UINT8, next, comm, NULL));
    CHECK(brigade_send(&word, 1, BRIGADE_INT64, next, comm, NULL));
    CHECK(brigade_send(&flag, 1, BRIGADE_BOOL, next, comm, NULL));
    CHECK(brigade_recv(got_doubles, 2, BRIGADE_FLOAT64, last, comm, NULL));
    CHECK(brigade_recv(got_bytes, 5, BRIGADE_UINT8, last, comm, NULL));
    CHECK(brigade_recv(&got_word, 1, BRIGADE_INT64, last, comm, NULL));
    CHECK(brigade_recv(&got_flag, 1, BRIGADE_BOOL, last, comm, NULL));
    CHECK(brigade_all_reduce(&word, &sum, 1, BRIGADE_INT64, BRIGADE_SUM, comm, NULL));
    CHECK(brigade_group_end(&work));
    CHECK(brigade_work_wait(work, -1));
    CHECK(brigade_work_free(work));
    REQUIRE(got_doubles[0] == last + 0.5 && got_doubles[1] == last + 0.25);
    REQUIRE(got_bytes[0] == 1 && got_bytes[4] == last && got_flag == 1 && got_word == -last);
    REQUIRE(sum == -size * (size - 1) / 2);
}

/* The last rank does not come: the others hear of it when their own deadline is over. */
static void late(brigade_comm_t comm, int rank, int size) {
    const brigade_setting_t impatient = {"BRIGADE_TIMEOUT_MS", "2000"};
    const brigade_setting_t wrong = {"BRIGADE_TIMEOUT_MS", "soon"};
    brigade_config_t config = BRIGADE_CONFIG_INIT;
    struct told told;
    brigade_comm_t part;
    brigade_work_t work;
    char value[8];
    config.settings = &wrong;
    config.setting_count = 1;
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_comm_split_config(comm, 0, 0, &part, &config));
    config.settings = &impatient;
    CHECK(brigade_comm_split_config(comm, 0, 0, &part, &config));
    CHECK(brigade_comm_setting(part, "BRIGADE_TIMEOUT_MS", value, sizeof value));
    REQUIRE(strcmp(value, "2000") == 0);
    begin(&told, part);
    if (rank < size - 1) {
        CHECK(brigade_barrier(part, &work));
        CHECK(brigade_work_on_done(work, done, &told));
        REQUIRE(readable(work, 60000));
        REQUIRE(brigade_work_test(work) != BRIGADE_IN_PROGRESS);
        await(&told, 1);
        /* One rank's time is over first, which aborts the others. */
        REQUIRE(told.result == BRIGADE_TIMEOUT || told.result == BRIGADE_ABORTED);
        REQUIRE(told.sentence[0] != 0);
        REQUIRE(brigade_work_wait(work, -1) == told.result);
        CHECK(brigade_work_free(work));
    } else {
        brigade_result_t ended = BRIGADE_SUCCESS;
        while (size > 1 && ended == BRIGADE_SUCCESS)
            CHECK(brigade_comm_get_async_error(comm, &ended));
    }
    CHECK(brigade_comm_destroy(part));
}

/* Whoever destroys a communicator waits for what follows its calls. */
static void destroyed(void) {
    brigade_comm_t comm;
    brigade_work_t work;
    struct told told;
    CHECK(brigade_comm_init_all(&comm, 1, NULL));
    begin(&told, comm);
    CHECK(brigade_barrier(comm, &work));
    CHECK(brigade_work_on_done(work, done, &told));
    CHECK(brigade_work_wait(work, -1));
    await(&told, 1);
    CHECK(brigade_work_free(work));
    CHECK(brigade_comm_destroy(comm));
}

int main(void) {
    brigade_comm_t comm;
    int rank, size;
    CHECK(brigade_comm_init_from_env(&comm, NULL));
    CHECK(brigade_comm_rank(comm, &rank));
    CHECK(brigade_comm_size(comm, &size));
    well(comm, size);
    mixed(comm, rank, size);
    destroyed();
    late(comm, rank, size);
    CHECK(brigade_comm_destroy(comm));
    printf("rank %d of %d: all as it should be\n", rank, size);
    return 0;
}
