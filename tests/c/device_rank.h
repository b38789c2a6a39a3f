/* A rank that makes calls on memory of a device: what it brings, what should come out, and a look at
 * whether it did. */
#ifndef DEVICE_RANK_H
#define DEVICE_RANK_H

#include "cuda.h"

enum { RANKS_MAX = 8, COUNT_MAX = 20000, ROOM = RANKS_MAX * (COUNT_MAX + 3 * RANKS_MAX) + 1 };
/* More than there is room for, also where a driver rounds an allocation up, to 2 MiB at the most. */
enum { BEYOND = ROOM + (2 << 20) / (int)sizeof(float) };

struct rank {
    brigade_unique_id_t id;
    int rank, size;
    brigade_comm_t comm;
    brigade_device_group_t group;
    brigade_device_info_t info;
    void *stream;
    uint64_t in, out;
    /* What this rank brings, what came out, and what should have. */
    float *brought, *got, *want;
    size_t wanted;
};

static void *on(uint64_t address) { return (void *)(uintptr_t)address; }

/* Small numbers, every sum of which is exact. */
static float value(int rank, size_t at) { return (float)((at * 7 + (size_t)rank * 3) % 5 + 1); }

/* What is wanted next: elements of a rank. */
static void wants(struct rank *me, int from, size_t start, size_t count) {
    size_t at;
    for (at = 0; at < count; at++)
        me->want[me->wanted++] = value(from, start + at);
}

/* What is wanted next: sums over all ranks. */
static void wants_sums(struct rank *me, size_t start, size_t count) {
    size_t at;
    int rank;
    for (at = 0; at < count; at++) {
        float sum = 0;
        for (rank = 0; rank < me->size; rank++)
            sum += value(rank, start + at);
        me->want[me->wanted++] = sum;
    }
}

/* Wait for all that the stream has. */
static void settle(struct rank *me) {
    brigade_work_t work;
    CHECK(brigade_device_mark(me->group, me->stream, &work));
    CHECK(brigade_work_wait(work, -1));
    CHECK(brigade_work_test(work));
    CHECK(brigade_work_free(work));
}

static void copy(struct rank *me, uint64_t target, uint64_t source, size_t elements) {
    CU(cuMemcpyAsync(target, source, elements * sizeof(float), me->stream));
}

/* Before a call: the input is there, and the output holds nothing that is wanted. */
static void begin(struct rank *me) {
    size_t at;
    for (at = 0; at < ROOM; at++)
        me->got[at] = -1;
    /* Who copies memory that is not pinned behind a call may hold up the ranks that it waits for. */
    settle(me);
    copy(me, me->in, (uintptr_t)me->brought, ROOM);
    copy(me, me->out, (uintptr_t)me->got, ROOM);
    settle(me);
    me->wanted = 0;
}

/* After a call: what is wanted has come out, and nothing behind it. */
static void end(struct rank *me, const char *call, size_t count) {
    size_t at;
    settle(me);
    copy(me, (uintptr_t)me->got, me->out, ROOM);
    CU(cuStreamSynchronize(me->stream));
    me->want[me->wanted] = -1;
    for (at = 0; at <= me->wanted; at++) {
        if (me->got[at] != me->want[at]) {
            fprintf(stderr, "%s of %zu on rank %d of %d: element %zu is %g, not %g\n", call, count,
                    me->rank, me->size, at, me->got[at], me->want[at]);
            exit(1);
        }
    }
}

#define F32 BRIGADE_FLOAT32
#define BUFFERS on(me->in), on(me->out)
#define LAST me->group, me->stream

#endif
