/*
 * Every collective, in place and out of place, started by any launcher. Each rank checks what it
 * got and prints one line when all of it was right.
 */
#include "check.h"

#include <string.h>

enum { COUNT = 1000, RANKS_MAX = 16 };

static brigade_comm_t comm;
static int rank, size;

/* What rank `owner` brings at place `at`. */
static float input(int owner, size_t at) {
    return (float)(owner + 1) * (float)(at % 17);
}

/* What the sum over all ranks is there. */
static float total(size_t at) {
    float sum = 0;
    int owner;
    for (owner = 0; owner < size; owner++)
        sum += input(owner, at);
    return sum;
}

static float *block_of(int owner, size_t count) {
    float *block = (float *)malloc(count * sizeof(float));
    size_t at;
    REQUIRE(block != NULL);
    for (at = 0; at < count; at++)
        block[at] = input(owner, at);
    return block;
}

static void all_reduce(void) {
    float *mine = block_of(rank, COUNT), *sums = block_of(0, COUNT);
    size_t at;
    CHECK(brigade_all_reduce(mine, sums, COUNT, BRIGADE_FLOAT32, BRIGADE_SUM, comm, NULL));
    CHECK(brigade_all_reduce(mine, mine, COUNT, BRIGADE_FLOAT32, BRIGADE_SUM, comm, NULL));
    for (at = 0; at < COUNT; at++)
        REQUIRE(sums[at] == total(at) && mine[at] == total(at));
    CHECK(brigade_all_reduce(NULL, NULL, 0, BRIGADE_FLOAT32, BRIGADE_SUM, comm, NULL));
    free(mine);
    free(sums);
}

static void reduce_scatter(void) {
    size_t all = (size_t)size * COUNT, own = (size_t)rank * COUNT, at, before = 0;
    size_t counts[RANKS_MAX];
    float *mine = block_of(rank, all), *part = block_of(0, all);
    int owner;
    CHECK(brigade_reduce_scatter(mine, part, COUNT, BRIGADE_FLOAT32, BRIGADE_SUM, comm, NULL));
    for (at = 0; at < COUNT; at++)
        REQUIRE(part[at] == total(own + at));
    for (owner = 0; owner < size; owner++) {
        counts[owner] = (size_t)owner + 1;
        before += owner < rank ? counts[owner] : 0;
    }
    CHECK(brigade_reduce_scatter_v(mine, part, counts, BRIGADE_FLOAT32, BRIGADE_SUM, comm, NULL));
    for (at = 0; at < counts[rank]; at++)
        REQUIRE(part[at] == total(before + at));
    CHECK(brigade_reduce_scatter(mine, mine + own, COUNT, BRIGADE_FLOAT32, BRIGADE_SUM, comm,
                                 NULL));
    for (at = 0; at < COUNT; at++)
        REQUIRE(mine[own + at] == total(own + at));
    free(mine);
    free(part);
}

static void all_gather(void) {
    size_t all = (size_t)size * COUNT, own = (size_t)rank * COUNT, at, before = 0;
    size_t counts[RANKS_MAX];
    float *mine = block_of(rank, COUNT), *blocks = block_of(0, all);
    int owner;
    CHECK(brigade_all_gather(mine, blocks, COUNT, BRIGADE_FLOAT32, comm, NULL));
    for (at = 0; at < all; at++)
        REQUIRE(blocks[at] == input((int)(at / COUNT), at % COUNT));
    memset(blocks, 0, all * sizeof(float));
    memcpy(blocks + own, mine, COUNT * sizeof(float));
    CHECK(brigade_all_gather(blocks + own, blocks, COUNT, BRIGADE_FLOAT32, comm, NULL));
    for (at = 0; at < all; at++)
        REQUIRE(blocks[at] == input((int)(at / COUNT), at % COUNT));
    for (owner = 0; owner < size; owner++)
        counts[owner] = 2 * (size_t)owner + 1;
    CHECK(brigade_all_gather_v(mine, blocks, counts, BRIGADE_FLOAT32, comm, NULL));
    for (owner = 0; owner < size; owner++) {
        for (at = 0; at < counts[owner]; at++)
            REQUIRE(blocks[before + at] == input(owner, at));
        before += counts[owner];
    }
    free(mine);
    free(blocks);
}

static void rooted(int root) {
    size_t all = (size_t)size * COUNT, at, before = 0;
    size_t counts[RANKS_MAX];
    float *mine = block_of(rank, COUNT), *blocks = block_of(rank, all), *one = block_of(0, COUNT);
    float *there = rank == root ? blocks : NULL;
    int owner;
    CHECK(brigade_broadcast(rank == root ? mine : NULL, one, COUNT, BRIGADE_FLOAT32, root, comm,
                            NULL));
    for (at = 0; at < COUNT; at++)
        REQUIRE(one[at] == input(root, at));
    CHECK(brigade_reduce(mine, rank == root ? one : NULL, COUNT, BRIGADE_FLOAT32, BRIGADE_SUM,
                         root, comm, NULL));
    for (at = 0; rank == root && at < COUNT; at++)
        REQUIRE(one[at] == total(at));
    CHECK(brigade_gather(mine, there, COUNT, BRIGADE_FLOAT32, root, comm, NULL));
    for (at = 0; rank == root && at < all; at++)
        REQUIRE(blocks[at] == input((int)(at / COUNT), at % COUNT));
    CHECK(brigade_scatter(there, one, COUNT, BRIGADE_FLOAT32, root, comm, NULL));
    for (at = 0; at < COUNT; at++)
        REQUIRE(one[at] == mine[at]);
    /* Who is not the root need not know the counts of others. */
    for (owner = 0; owner < size; owner++)
        counts[owner] = rank == root || owner == rank ? (size_t)(size - owner) : SIZE_MAX;
    CHECK(brigade_gather_v(mine, there, counts, BRIGADE_FLOAT32, root, comm, NULL));
    for (owner = 0; rank == root && owner < size; owner++) {
        for (at = 0; at < counts[owner]; at++)
            REQUIRE(blocks[before + at] == input(owner, at));
        before += counts[owner];
    }
    CHECK(brigade_scatter_v(there, one, counts, BRIGADE_FLOAT32, root, comm, NULL));
    for (at = 0; at < counts[rank]; at++)
        REQUIRE(one[at] == mine[at]);
    free(mine);
    free(blocks);
    free(one);
}

static void all_to_all(void) {
    enum { EACH = 3 };
    int to[RANKS_MAX * EACH], from[RANKS_MAX * EACH], peer, at;
    size_t sends[RANKS_MAX], receives[RANKS_MAX];
    for (peer = 0; peer < size; peer++) {
        for (at = 0; at < EACH; at++)
            to[peer * EACH + at] = 100 * rank + 10 * peer + at;
        /* The lower rank sends one element, the higher one two, to itself nobody sends any. */
        sends[peer] = peer == rank ? 0 : (rank < peer ? 1 : 2);
        receives[peer] = peer == rank ? 0 : (peer < rank ? 1 : 2);
    }
    CHECK(brigade_all_to_all(to, from, EACH, BRIGADE_INT32, comm, NULL));
    for (peer = 0; peer < size; peer++)
        for (at = 0; at < EACH; at++)
            REQUIRE(from[peer * EACH + at] == 100 * peer + 10 * rank + at);
    CHECK(brigade_all_to_all(from, from, EACH, BRIGADE_INT32, comm, NULL));
    REQUIRE(memcmp(from, to, (size_t)size * EACH * sizeof(int)) == 0);
    CHECK(brigade_all_to_all_v(to, sends, from, receives, BRIGADE_INT32, comm, NULL));
}

static void messages(void) {
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    double sent = rank + 0.5, got = 0;
    CHECK(brigade_group_start());
    CHECK(brigade_send(&sent, 1, BRIGADE_FLOAT64, next, comm, NULL));
    CHECK(brigade_recv(&got, 1, BRIGADE_FLOAT64, previous, comm, NULL));
    CHECK(brigade_group_end(NULL));
    REQUIRE(got == previous + 0.5);
    if (size > 1 && rank < 2) {
        if (rank == 0)
            CHECK(brigade_send(&sent, 1, BRIGADE_FLOAT64, 1, comm, NULL));
        else
            CHECK(brigade_recv(&got, 1, BRIGADE_FLOAT64, 0, comm, NULL));
        REQUIRE(got == (rank == 0 ? previous : 0) + 0.5);
    }
}

/* The larger of two by their last digits. */
static void last_digit_max(const void *arriving, void *accumulator, size_t count,
                           brigade_dtype_t dtype, void *user) {
    const int *theirs = (const int *)arriving;
    int *ours = (int *)accumulator;
    size_t at;
    REQUIRE(dtype == BRIGADE_INT32 && user == &size);
    for (at = 0; at < count; at++)
        if (theirs[at] % 10 > ours[at] % 10)
            ours[at] = theirs[at];
}

static void operators(void) {
    brigade_op_t op, half;
    int value = 10 * (size - rank) + rank % 10;
    double number = rank + 1;
    CHECK(brigade_op_create(&op, "last-digit-max", last_digit_max, &size));
    CHECK(brigade_all_reduce(&value, &value, 1, BRIGADE_INT32, op, comm, NULL));
    REQUIRE(size > 10 || value % 10 == (size - 1) % 10);
    CHECK(brigade_op_destroy(op));
    CHECK(brigade_op_create_pre_mul_sum(&half, 0.5));
    CHECK(brigade_all_reduce(&number, &number, 1, BRIGADE_FLOAT64, half, comm, NULL));
    REQUIRE(number == 0.25 * size * (size + 1));
    CHECK(brigade_op_destroy(half));
}

static void works(void) {
    float *mine = block_of(rank, COUNT), *sums = block_of(0, COUNT), *again = block_of(0, COUNT);
    brigade_work_t first, group;
    brigade_result_t result;
    size_t at;
    CHECK(brigade_all_reduce(mine, sums, COUNT, BRIGADE_FLOAT32, BRIGADE_SUM, comm, &first));
    CHECK(brigade_group_start());
    CHECK(brigade_all_reduce(mine, again, COUNT, BRIGADE_FLOAT32, BRIGADE_AVG, comm, NULL));
    CHECK(brigade_barrier(comm, NULL));
    CHECK(brigade_group_end(&group));
    do
        result = brigade_work_test(first);
    while (result == BRIGADE_IN_PROGRESS);
    CHECK(result);
    do
        result = brigade_work_wait(group, 1);
    while (result == BRIGADE_IN_PROGRESS);
    CHECK(result);
    CHECK(brigade_work_wait(group, -1));
    for (at = 0; at < COUNT; at++)
        REQUIRE(sums[at] == total(at) && again[at] == total(at) / (float)size);
    CHECK(brigade_work_free(first));
    CHECK(brigade_work_free(group));
    free(mine);
    free(sums);
    free(again);
}

static void split(void) {
    brigade_comm_t half, none;
    int half_rank, half_size, sum = rank;
    CHECK(brigade_comm_split(comm, rank % 2, -rank, &half));
    CHECK(brigade_comm_rank(half, &half_rank));
    CHECK(brigade_comm_size(half, &half_size));
    REQUIRE(half_size == (size + 1 - rank % 2) / 2 && half_rank == half_size - 1 - rank / 2);
    CHECK(brigade_all_reduce(&sum, &sum, 1, BRIGADE_INT32, BRIGADE_SUM, half, NULL));
    REQUIRE(sum == half_size * (half_size - 1) + half_size * (rank % 2));
    CHECK(brigade_comm_destroy(half));
    CHECK(brigade_comm_split(comm, BRIGADE_SPLIT_NOCOLOR, 0, &none));
    REQUIRE(none == NULL);
}

static void description(void) {
    char text[2048], first[64], *to;
    size_t length;
    CHECK(brigade_comm_describe(comm, text, sizeof text));
    sprintf(first, "rank %d of %d, on node 0 of 1\n", rank, size);
    REQUIRE(strncmp(text, first, strlen(first)) == 0);
    REQUIRE((size > 1) == (strstr(text, "\nall-reduce: ") != NULL));
    to = strstr(text, ": to ");
    REQUIRE((size > 1) == (to != NULL));
    length = strlen(text);
    CHECK(brigade_comm_describe(comm, text, length + 1));
    REQUIRE(brigade_comm_describe(comm, text, length) == BRIGADE_INVALID_ARGUMENT);
    sprintf(first, "the description takes %d bytes, not %d", (int)length + 1, (int)length);
    REQUIRE(strstr(brigade_last_error(), first) != NULL);
    REQUIRE(brigade_comm_describe(comm, NULL, 99) == BRIGADE_INVALID_ARGUMENT);
}

int main(void) {
    brigade_setting_t timeout = {"BRIGADE_TIMEOUT_MS", "20000"};
    brigade_config_t config = BRIGADE_CONFIG_INIT;
    brigade_stats_t stats = BRIGADE_STATS_INIT;
    char value[16];
    int root;
    REQUIRE(brigade_version() == BRIGADE_VERSION);
    config.settings = &timeout;
    config.setting_count = 1;
    CHECK(brigade_comm_init_from_env(&comm, &config));
    CHECK(brigade_comm_rank(comm, &rank));
    CHECK(brigade_comm_size(comm, &size));
    REQUIRE(size <= RANKS_MAX);
    CHECK(brigade_comm_setting(comm, "BRIGADE_TIMEOUT_MS", value, sizeof value));
    REQUIRE(strcmp(value, "20000") == 0);
    all_reduce();
    reduce_scatter();
    all_gather();
    for (root = 0; root < size; root++)
        rooted(root);
    all_to_all();
    messages();
    operators();
    works();
    split();
    description();
    CHECK(brigade_barrier(comm, NULL));
    CHECK(brigade_comm_stats(comm, &stats));
    REQUIRE(stats.calls > 20 && (size == 1 || stats.sent_bytes > COUNT * sizeof(float)));
    CHECK(brigade_comm_destroy(comm));
    printf("rank %d of %d: all as it should be\n", rank, size);
    return 0;
}
