/*
 * A program for NCCL on host memory: several ranks in this process, in groups of one thread, then
 * in threads; communicators that do not block; what is got wrong.
 */
#define _POSIX_C_SOURCE 200809L
#include "nccl_check.h"

#include <pthread.h>
#include <string.h>

#define RANKS 4
#define COUNT 1000

#define ALL(rank) for (rank = 0; rank < RANKS; rank++)

static ncclComm_t comms[RANKS];

static void begin(void) {
    const int devices[RANKS] = {7, 6, 5, 4};
    int rank, number;
    CHECK(ncclCommInitAll(comms, RANKS, devices));
    ALL(rank) {
        CHECK(ncclCommUserRank(comms[rank], &number));
        REQUIRE(number == rank);
        CHECK(ncclCommCount(comms[rank], &number));
        REQUIRE(number == RANKS);
        CHECK(ncclCommCuDevice(comms[rank], &number));
        REQUIRE(number == 7 - rank);
    }
}

/* Every collective, of all ranks in one group, the last rank's buffer being a root's. */
static void collectives(void) {
    static float in[RANKS][RANKS * COUNT], out[RANKS][RANKS * COUNT];
    const int root = RANKS - 1;
    int rank, at;
#define FILL                                                                                \
    ALL(rank) for (at = 0; at < RANKS * COUNT; at++) {                                      \
        in[rank][at] = (float)(rank + at);                                                  \
        out[rank][at] = -1;                                                                 \
    }
#define GROUP(call)                                                                         \
    FILL CHECK(ncclGroupStart());                                                           \
    ALL(rank) CHECK(call);                                                                  \
    CHECK(ncclGroupEnd());
    GROUP(ncclAllReduce(in[rank], out[rank], COUNT, ncclFloat32, ncclSum, comms[rank], NULL))
    ALL(rank) REQUIRE(out[rank][0] == 6 && out[rank][999] == 6 + 4 * 999);
    GROUP(ncclAllReduce(in[rank], in[rank], COUNT, ncclFloat32, ncclAvg, comms[rank], NULL))
    ALL(rank) REQUIRE(in[rank][0] == 1.5f && in[rank][COUNT] == rank + COUNT);
    GROUP(ncclReduceScatter(in[rank], out[rank], COUNT, ncclFloat32, ncclMax, comms[rank], NULL))
    ALL(rank) REQUIRE(out[rank][1] == 3 + 1 + rank * COUNT && out[rank][COUNT] == -1);
    GROUP(ncclAllGather(in[rank], out[rank], COUNT, ncclFloat32, comms[rank], NULL))
    ALL(rank) REQUIRE(out[rank][0] == 0 && out[rank][3 * COUNT + 5] == 3 + 5);
    GROUP(ncclAlltoAll(in[rank], out[rank], COUNT, ncclFloat32, comms[rank], NULL))
    ALL(rank) REQUIRE(out[rank][2 * COUNT] == 2 + rank * COUNT);
    GROUP(ncclBroadcast(in[rank], out[rank], COUNT, ncclFloat32, root, comms[rank], NULL))
    ALL(rank) REQUIRE(out[rank][0] == root && out[rank][COUNT] == -1);
    GROUP(ncclBcast(in[rank], COUNT, ncclFloat32, root, comms[rank], NULL))
    ALL(rank) REQUIRE(in[rank][10] == root + 10);
    GROUP(ncclReduce(in[rank], out[rank], COUNT, ncclFloat32, ncclSum, root, comms[rank], NULL))
    REQUIRE(out[root][2] == 6 + 4 * 2 && out[0][2] == -1);
    GROUP(ncclGather(in[rank], out[rank], COUNT, ncclFloat32, root, comms[rank], NULL))
    REQUIRE(out[root][2 * COUNT + 1] == 2 + 1 && out[0][0] == -1);
    GROUP(ncclScatter(in[rank], out[rank], COUNT, ncclFloat32, root, comms[rank], NULL))
    ALL(rank) REQUIRE(out[rank][4] == root + rank * COUNT + 4 && out[rank][COUNT] == -1);
    GROUP(ncclScatter(rank == root ? in[rank] : NULL,
                      rank == root ? in[rank] + root * COUNT : out[rank], COUNT, ncclFloat32, root,
                      comms[rank], NULL))
    REQUIRE(out[1][5] == root + COUNT + 5 && in[root][root * COUNT] == root + root * COUNT);
}

/* Messages of several types to the next rank and from the last, beside a collective. */
static void messages(void) {
    double sent[RANKS], got[RANKS];
    signed char small[RANKS], arrived[RANKS];
    int rank, sum[RANKS];
    CHECK(ncclGroupStart());
    ALL(rank) {
        const int next = (rank + 1) % RANKS, last = (rank + RANKS - 1) % RANKS;
        sent[rank] = rank + 0.5, small[rank] = (signed char)-rank, sum[rank] = 1;
        CHECK(ncclGroupStart());
        CHECK(ncclSend(&sent[rank], 1, ncclFloat64, next, comms[rank], NULL));
        CHECK(ncclSend(&small[rank], 1, ncclInt8, next, comms[rank], NULL));
        CHECK(ncclRecv(&got[rank], 1, ncclFloat64, last, comms[rank], NULL));
        CHECK(ncclRecv(&arrived[rank], 1, ncclInt8, last, comms[rank], NULL));
        CHECK(ncclAllReduce(&sum[rank], &sum[rank], 1, ncclInt32, ncclSum, comms[rank], NULL));
        CHECK(ncclGroupEnd());
    }
    CHECK(ncclGroupEnd());
    ALL(rank) {
        const int last = (rank + RANKS - 1) % RANKS;
        REQUIRE(got[rank] == last + 0.5 && arrived[rank] == -last && sum[rank] == RANKS);
    }
}

static void operators(void) {
    float factor = 0.5f, value[RANKS];
    const long long inexact = (1LL << 53) + 1;
    ncclRedOp_t now[RANKS], later[RANKS], again;
    int rank, sum = 1;
    ALL(rank) {
        CHECK(ncclRedOpCreatePreMulSum(&now[rank], &factor, ncclFloat32, ncclScalarHostImmediate,
                                       comms[rank]));
        CHECK(ncclRedOpCreatePreMulSum(&later[rank], &factor, ncclFloat32, ncclScalarDevice,
                                       comms[rank]));
        REQUIRE(now[rank] > ncclAvg && now[rank] != later[rank]);
    }
    factor = 2;
#define SCALED(op, wanted)                                                                   \
    CHECK(ncclGroupStart());                                                                \
    ALL(rank) {                                                                             \
        value[rank] = (float)rank;                                                          \
        CHECK(ncclAllReduce(&value[rank], &value[rank], 1, ncclFloat32, op[rank],           \
                            comms[rank], NULL));                                            \
    }                                                                                       \
    CHECK(ncclGroupEnd());                                                                  \
    ALL(rank) REQUIRE(value[rank] == wanted);
    SCALED(now, 3)
    SCALED(later, 12)
    MISUSED(ncclRedOpCreatePreMulSum(&again, (void *)&inexact, ncclInt64, ncclScalarHostImmediate,
                                     comms[0]));
    REFUSED(ncclAllReduce(&sum, &sum, 1, ncclInt32, now[0], comms[0], NULL));
    REQUIRE(strstr(ncclGetLastError(comms[0]), "type f32") != NULL);
    CHECK(ncclRedOpDestroy(now[0], comms[0]));
    REFUSED(ncclRedOpDestroy(now[0], comms[0]));
    REFUSED(ncclRedOpDestroy(ncclSum, comms[0]));
    REFUSED(ncclAllReduce(value, value, 1, ncclFloat32, now[0], comms[0], NULL));
    CHECK(ncclRedOpCreatePreMulSum(&again, &factor, ncclFloat32, ncclScalarDevice, comms[0]));
    REQUIRE(again == now[0]);
}

static void divisions(void) {
    ncclComm_t halves[RANKS], rest[RANKS];
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int excluded[1] = {1}, rank, number;
    ncclResult_t state;
    long long sum[RANKS];
    CHECK(ncclGroupStart());
    ALL(rank) CHECK(ncclCommSplit(comms[rank], rank == 0 ? -1 : rank % 2, -rank, &halves[rank],
                                  NULL));
    CHECK(ncclGroupEnd());
    REQUIRE(halves[0] == NULL);
    CHECK(ncclCommCount(halves[1], &number));
    REQUIRE(number == 2);
    CHECK(ncclCommUserRank(halves[1], &number));
    REQUIRE(number == 1);
    CHECK(ncclGroupStart());
    ALL(rank) if (rank != 1)
        CHECK(ncclCommShrink(comms[rank], excluded, 1, &rest[rank], NULL, 0));
    CHECK(ncclGroupEnd());
    CHECK(ncclGroupStart());
    ALL(rank) if (rank != 1) {
        sum[rank] = rank;
        CHECK(ncclAllReduce(&sum[rank], &sum[rank], 1, ncclInt64, ncclSum, rest[rank], NULL));
    }
    CHECK(ncclGroupEnd());
    REQUIRE(sum[0] == 5 && sum[2] == 5 && sum[3] == 5);
    ALL(rank) {
        if (rank != 1)
            CHECK(ncclCommDestroy(rest[rank]));
        if (rank != 0)
            CHECK(ncclCommDestroy(halves[rank]));
    }
    REFUSED(ncclCommShrink(comms[0], excluded, -1, &rest[0], NULL, 0));
    REFUSED(ncclCommSplit(comms[0], -2, 0, &rest[0], NULL));
    config.blocking = 7;
    REFUSED(ncclCommShrink(comms[0], excluded, 1, &rest[0], &config, 1));
    CHECK(ncclCommGetAsyncError(comms[0], &state));
    RESULT(ncclSuccess, state);
    MISUSED(ncclCommSuspend(comms[0], 1));
    REQUIRE(strstr(ncclGetLastError(comms[0]), "ncclCommSuspend") != NULL);
}

/* A communicator that does not block: init, calls and the end are asked for. */
struct rank {
    pthread_t thread;
    ncclUniqueId id;
    int rank;
};

static void settle(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress)
        CHECK(ncclCommGetAsyncError(comm, &state));
    RESULT(ncclSuccess, state);
}

static void *unhurried(void *argument) {
    struct rank *me = (struct rank *)argument;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm, half;
    float value = 1;
    int number;
    config.blocking = 0;
    RESULT(ncclInProgress, ncclCommInitRankConfig(&comm, RANKS, me->id, me->rank, &config));
    settle(comm);
    CHECK(ncclCommUserRank(comm, &number));
    REQUIRE(number == me->rank);
    RESULT(ncclInProgress, ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, NULL));
    settle(comm);
    REQUIRE(value == RANKS);
    CHECK(ncclGroupStart());
    CHECK(ncclBcast(&value, 1, ncclFloat32, 0, comm, NULL));
    RESULT(ncclInProgress, ncclGroupEnd());
    settle(comm);
    RESULT(ncclInProgress, ncclCommSplit(comm, me->rank % 2, 0, &half, NULL));
    settle(comm);
    settle(half);
    RESULT(ncclInProgress, ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, half, NULL));
    settle(half);
    REQUIRE(value == 2 * RANKS);
    RESULT(ncclInProgress, ncclCommFinalize(comm));
    settle(comm);
    CHECK(ncclCommDestroy(half));
    CHECK(ncclCommDestroy(comm));
    return NULL;
}

static void threads(void) {
    struct rank ranks[RANKS];
    int rank;
    CHECK(ncclGetUniqueId(&ranks[0].id));
    ALL(rank) {
        ranks[rank].id = ranks[0].id;
        ranks[rank].rank = rank;
        REQUIRE(pthread_create(&ranks[rank].thread, NULL, unhurried, &ranks[rank]) == 0);
    }
    ALL(rank) pthread_join(ranks[rank].thread, NULL);
}

/* While a division goes on, a parent that does not block says so, and refuses calls. */
static void divided_meanwhile(void) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t two[2], part[2];
    ncclResult_t state;
    ncclUniqueId id;
    int rank, value[2] = {1, 2};
    config.blocking = 0;
    CHECK(ncclGetUniqueId(&id));
    for (rank = 0; rank < 2; rank++)
        RESULT(ncclInProgress, ncclCommInitRankConfig(&two[rank], 2, id, rank, &config));
    for (rank = 0; rank < 2; rank++)
        settle(two[rank]);
    RESULT(ncclInProgress, ncclCommSplit(two[0], 0, 0, &part[0], NULL));
    CHECK(ncclCommGetAsyncError(two[0], &state));
    REQUIRE(state == ncclInProgress);
    MISUSED(ncclAllReduce(&value[0], &value[0], 1, ncclInt32, ncclSum, two[0], NULL));
    RESULT(ncclInProgress, ncclCommSplit(two[1], 0, 0, &part[1], NULL));
    for (rank = 0; rank < 2; rank++)
        settle(two[rank]);
    for (rank = 0; rank < 2; rank++) {
        CHECK(ncclCommGetAsyncError(part[rank], &state));
        REQUIRE(state == ncclSuccess);
        RESULT(ncclInProgress, ncclAllReduce(&value[rank], &value[rank], 1, ncclInt32, ncclSum,
                                             two[rank], NULL));
    }
    for (rank = 0; rank < 2; rank++)
        settle(two[rank]);
    REQUIRE(value[0] == 3 && value[1] == 3);
    for (rank = 0; rank < 2; rank++) {
        CHECK(ncclCommDestroy(part[rank]));
        CHECK(ncclCommDestroy(two[rank]));
    }
}

/* Two divisions of each rank in one group, and a call behind them. */
static void divided_twice(void) {
    ncclComm_t whole[RANKS], halves[RANKS];
    int turn, rank, number, sum[RANKS];
    for (turn = 0; turn < 10; turn++) {
        CHECK(ncclGroupStart());
        ALL(rank) {
            CHECK(ncclCommSplit(comms[rank], 0, rank, &whole[rank], NULL));
            CHECK(ncclCommSplit(comms[rank], rank % 2, rank, &halves[rank], NULL));
            sum[rank] = 1;
            CHECK(ncclAllReduce(&sum[rank], &sum[rank], 1, ncclInt32, ncclSum, comms[rank], NULL));
        }
        CHECK(ncclGroupEnd());
        ALL(rank) {
            REQUIRE(sum[rank] == RANKS);
            CHECK(ncclCommCount(whole[rank], &number));
            REQUIRE(number == RANKS);
            CHECK(ncclCommCount(halves[rank], &number));
            REQUIRE(number == RANKS / 2);
            CHECK(ncclCommDestroy(whole[rank]));
            CHECK(ncclCommDestroy(halves[rank]));
        }
    }
}

/* All ranks of a world join in one group of one thread. */
static void joined_in_a_group(void) {
    ncclComm_t two[2];
    ncclUniqueId id;
    int rank, value[2] = {1, 2};
    CHECK(ncclGetUniqueId(&id));
    CHECK(ncclGroupStart());
    for (rank = 0; rank < 2; rank++)
        CHECK(ncclCommInitRankScalable(&two[rank], 2, rank, 1, &id, NULL));
    CHECK(ncclGroupEnd());
    CHECK(ncclGroupStart());
    for (rank = 0; rank < 2; rank++)
        CHECK(ncclAllReduce(&value[rank], &value[rank], 1, ncclInt32, ncclSum, two[rank], NULL));
    CHECK(ncclGroupEnd());
    REQUIRE(value[0] == 3 && value[1] == 3);
    for (rank = 0; rank < 2; rank++)
        CHECK(ncclCommDestroy(two[rank]));
}

static void memory(void) {
    void *pages, *handle, *same;
    ncclWindow_t window;
    CHECK(ncclMemAlloc(&pages, 10000));
    memset(pages, 1, 10000);
    CHECK(ncclCommRegister(comms[0], pages, 10000, &handle));
    CHECK(ncclCommWindowRegister(comms[0], pages, 10000, &window, 0));
    CHECK(ncclWinGetUserPtr(comms[0], window, &same));
    REQUIRE(same == pages);
    REFUSED(ncclCommDeregister(comms[0], window));
    CHECK(ncclCommWindowDeregister(comms[0], window));
    REFUSED(ncclCommWindowDeregister(comms[0], window));
    CHECK(ncclCommDeregister(comms[0], handle));
    REFUSED(ncclCommDeregister(comms[0], handle));
    CHECK(ncclMemFree(pages));
    REFUSED(ncclMemFree(pages));
    REFUSED(ncclCommRegister(comms[0], NULL, 1, &handle));
}

static void nonsense(void) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t made;
    ncclUniqueId id;
    float value = 1;
    int version;
    memset(&id, 7, sizeof id);
    CHECK(ncclGetVersion(&version));
    REQUIRE(version >= 21800);
    REFUSED(ncclGetVersion(NULL));
    REFUSED(ncclCommInitRank(&made, 2, id, 0));
    CHECK(ncclGetUniqueId(&id));
    REFUSED(ncclCommInitRank(&made, 2, id, 2));
    REFUSED(ncclCommInitRank(&made, 0, id, 0));
    REFUSED(ncclCommInitRank(NULL, 1, id, 0));
    config.magic = 1;
    REFUSED(ncclCommInitRankConfig(&made, 1, id, 0, &config));
    config.magic = 0xcafebeef;
    config.size = 8;
    REFUSED(ncclCommInitRankConfig(&made, 1, id, 0, &config));
    config.size = sizeof config;
    config.blocking = 2;
    REFUSED(ncclCommInitRankConfig(&made, 1, id, 0, &config));
    config.blocking = 1;
    config.maxCTAs = 0;
    REFUSED(ncclCommInitRankConfig(&made, 1, id, 0, &config));
    config.minCTAs = 3;
    config.maxCTAs = 2;
    REFUSED(ncclCommInitRankConfig(&made, 1, id, 0, &config));
    REQUIRE(strstr(ncclGetLastError(NULL), "minCTAs is 3, maxCTAs 2") != NULL);
    REQUIRE(made == NULL);
    REFUSED(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, NULL, NULL));
    REFUSED(ncclAllReduce(&value, &value, 1, 99, ncclSum, comms[0], NULL));
    REFUSED(ncclAllReduce(&value, &value, 1, ncclFloat32, 99, comms[0], NULL));
    REFUSED(ncclAllReduce(&value, NULL, 1, ncclFloat32, ncclSum, comms[0], NULL));
    REFUSED(ncclBcast(&value, 1, ncclFloat32, RANKS, comms[0], NULL));
    REFUSED(ncclBcast(&value, 1, ncclFloat32, -2, comms[0], NULL));
    REQUIRE(strstr(ncclGetLastError(NULL), "broadcast: root -2 of 4 ranks") != NULL);
    REFUSED(ncclSend(&value, 1, ncclFloat32, -1, comms[0], NULL));
    REQUIRE(strstr(ncclGetLastError(NULL), "message: rank -1 of 4 ranks") != NULL);
    REFUSED(ncclScatter(&value, &value, 1, ncclFloat32, RANKS, comms[0], NULL));
    REQUIRE(strstr(ncclGetLastError(NULL), "scatter: root 4 of 4 ranks") != NULL);
    MISUSED(ncclGroupEnd());
    CHECK(ncclGroupStart());
    REFUSED(ncclAllReduce(&value, NULL, 1, ncclFloat32, ncclSum, comms[0], NULL));
    CHECK(ncclCommDestroy(comms[0]));
    REFUSED(ncclGroupEnd());
    /* Not that either. */
    CHECK(ncclCommCount(comms[0], &version));
    CHECK(ncclGroupStart());
    CHECK(ncclGroupEnd());
}

/* One thread waits in a call that the others never make; this one aborts under it. */
static void *waits(void *unused) {
    float value = 1;
    (void)unused;
    RESULT(ncclRemoteError,
           ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comms[0], NULL));
    REQUIRE(strstr(ncclGetLastError(NULL), "ncclCommAbort") != NULL);
    return NULL;
}

static void ends(void) {
    ncclResult_t state;
    pthread_t thread;
    int rank;
    CHECK(ncclCommGetAsyncError(comms[1], &state));
    REQUIRE(state == ncclSuccess);
    REQUIRE(pthread_create(&thread, NULL, waits, NULL) == 0);
    CHECK(ncclCommAbort(comms[1]));
    REFUSED(ncclCommAbort(comms[1]));
    REFUSED(ncclCommDestroy(comms[1]));
    pthread_join(thread, NULL);
    CHECK(ncclCommGetAsyncError(comms[0], &state));
    REQUIRE(state == ncclRemoteError);
    ALL(rank) if (rank != 1) CHECK(ncclCommDestroy(comms[rank]));
}

int main(void) {
    begin();
    collectives();
    messages();
    operators();
    divisions();
    divided_twice();
    divided_meanwhile();
    threads();
    joined_in_a_group();
    memory();
    nonsense();
    ends();
    printf("NCCL's calls did what they should\n");
    return 0;
}
