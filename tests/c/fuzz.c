/*
 * Handles, configs and arguments at random, and threads that end what others use: whatever comes of
 * a call, it returns. The seed is printed; as an argument it makes the same calls again.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

static uint64_t state;

static uint64_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static size_t below(size_t end) { return (size_t)(draw() % end); }

/* A result that may be anything is still one that has words. */
static void returned(brigade_result_t result) {
    REQUIRE(strcmp(brigade_error_string(result), "not a result of Brigade") != 0);
}

/* A number that is no handle, or nearly one. */
static void *wild(void *handle) {
    uintptr_t number = (uintptr_t)handle;
    switch (below(4)) {
    case 0: return (void *)(uintptr_t)draw();
    case 1: return (void *)(uintptr_t)below(1 << 16);
    case 2: return (void *)(number ^ (uintptr_t)1 << below(64));
    default: return (void *)((number & 0xffffff) | (uintptr_t)draw() << 24);
    }
}

static void handles(brigade_comm_t comm) {
    float one = 1, two = 0;
    brigade_work_t work;
    int round, number;
    CHECK(brigade_barrier(comm, &work));
    CHECK(brigade_work_wait(work, -1));
    for (round = 0; round < 20000; round++) {
        brigade_comm_t wrong = (brigade_comm_t)wild(comm);
        brigade_work_t idle = (brigade_work_t)wild(work);
        brigade_op_t op = round % 2 ? (brigade_op_t)draw() : (brigade_op_t)(uintptr_t)wild(comm);
        if (wrong == comm || idle == work)
            continue;
        RESULT(BRIGADE_INVALID_ARGUMENT, brigade_comm_rank(wrong, &number));
        RESULT(BRIGADE_INVALID_ARGUMENT, brigade_comm_destroy(wrong));
        RESULT(BRIGADE_INVALID_ARGUMENT, brigade_comm_abort(wrong, NULL));
        RESULT(BRIGADE_INVALID_ARGUMENT, brigade_work_test(idle));
        RESULT(BRIGADE_INVALID_ARGUMENT, brigade_work_free(idle));
        RESULT(BRIGADE_INVALID_ARGUMENT, brigade_work_fd(idle, &number));
        RESULT(BRIGADE_INVALID_ARGUMENT, brigade_barrier(wrong, NULL));
        RESULT(BRIGADE_INVALID_ARGUMENT,
               brigade_window_put(&one, sizeof one, 0, 0, (brigade_window_t)wrong));
        RESULT(BRIGADE_INVALID_ARGUMENT, brigade_arena_destroy((brigade_arena_t)wrong));
        RESULT(BRIGADE_INVALID_ARGUMENT, brigade_store_commit((brigade_store_t)wrong, 1));
        RESULT(BRIGADE_INVALID_ARGUMENT, brigade_adamw_weights((brigade_adamw_t)wrong, &two, 1));
        RESULT(BRIGADE_INVALID_ARGUMENT,
               brigade_device_group_check((brigade_device_group_t)wrong));
        RESULT(BRIGADE_INVALID_ARGUMENT,
               brigade_device_all_reduce(&one, &two, 1, BRIGADE_FLOAT32, BRIGADE_SUM,
                                         (brigade_device_group_t)wrong, NULL));
        if (op > BRIGADE_BXOR)
            RESULT(BRIGADE_INVALID_ARGUMENT,
                   brigade_all_reduce(&one, &two, 1, BRIGADE_FLOAT32, op, comm, NULL));
        returned(brigade_mem_free(wild(NULL)));
    }
    CHECK(brigade_work_free(work));
    CHECK(brigade_barrier(comm, NULL));
}

/* Bytes where a config should be: as many as it says, all ours, its pointers to nowhere or text. */
static void configs(brigade_comm_t comm) {
    static const char *const texts[] = {"BRIGADE_TIMEOUT_MS", "5000", "", "BRIGADE_", "-1", "\xff",
                                        "99999999999999999999", "BRIGADE_WINDOW_BYTES", NULL};
    const size_t count = sizeof texts / sizeof *texts;
    brigade_setting_t settings[8];
    size_t words[512];
    int round;
    for (round = 0; round < 5000; round++) {
        brigade_config_t config = BRIGADE_CONFIG_INIT;
        brigade_comm_t made = NULL;
        size_t at;
        for (at = 0; at < 8; at++) {
            settings[at].name = texts[below(count)];
            settings[at].value = texts[below(count)];
        }
        memset(words, 0, sizeof words);
        config.settings = below(8) ? settings : NULL;
        config.setting_count = below(4) ? below(9) : (size_t)draw() | (size_t)1 << 40;
        memcpy(words, &config, sizeof config);
        if (below(2))
            words[0] = below(3) ? below(sizeof words + 1) : (size_t)draw();
        if (below(4) == 0)
            words[3 + below(509)] = (size_t)draw();
        returned(brigade_comm_split_config(comm, 0, 0, &made, (const brigade_config_t *)words));
        if (made != NULL)
            CHECK(brigade_comm_destroy(made));
    }
}

/* Two ranks in calls, while other threads abort, destroy and ask. */
struct victim {
    brigade_comm_t comm;
    uint64_t wait_ns;
};

static void *calls(void *argument) {
    struct victim *victim = (struct victim *)argument;
    float data[64] = {0};
    brigade_work_t work;
    while (brigade_all_reduce(data, data, 64, BRIGADE_FLOAT32, BRIGADE_SUM, victim->comm, NULL) ==
           BRIGADE_SUCCESS) {
        if (brigade_barrier(victim->comm, &work) != BRIGADE_SUCCESS)
            break;
        returned(brigade_work_wait(work, -1));
        CHECK(brigade_work_free(work));
    }
    return NULL;
}

static void *ends(void *argument) {
    struct victim *victim = (struct victim *)argument;
    const struct timespec time = {0, (long)victim->wait_ns};
    nanosleep(&time, NULL);
    returned(brigade_comm_abort(victim->comm, "a thread of the test"));
    returned(brigade_comm_destroy(victim->comm));
    returned(brigade_comm_destroy(victim->comm));
    return NULL;
}

static void races(void) {
    int round, at;
    for (round = 0; round < 20; round++) {
        brigade_comm_t comms[2];
        struct victim victims[2];
        pthread_t threads[4];
        CHECK(brigade_comm_init_all(comms, 2, NULL));
        for (at = 0; at < 2; at++) {
            victims[at].comm = comms[at];
            victims[at].wait_ns = below(5000000);
            REQUIRE(pthread_create(&threads[at], NULL, calls, &victims[at]) == 0);
            REQUIRE(pthread_create(&threads[2 + at], NULL, ends, &victims[at]) == 0);
        }
        for (at = 0; at < 4; at++)
            REQUIRE(pthread_join(threads[at], NULL) == 0);
    }
}

int main(int argc, char **argv) {
    brigade_comm_t comm;
    state = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL) * 2654435761u | 1;
    printf("seed %llu\n", (unsigned long long)state);
    fflush(stdout);
    CHECK(brigade_comm_init_all(&comm, 1, NULL));
    handles(comm);
    configs(comm);
    CHECK(brigade_comm_destroy(comm));
    races();
    printf("every call came back\n");
    return 0;
}
