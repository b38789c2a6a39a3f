/*
 * Calls on memory of devices: every one of them, in the order of streams, in graphs where ranks can;
 * several ranks on one device, as threads or as processes.
 *
 *   device threads N | processes N | without
 */
#define _POSIX_C_SOURCE 200809L
#include "device_rank.h"

#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void nap(int ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

static void collectives(struct rank *me, size_t n) {
    const int root = me->size - 1, own = me->rank;
    int rank;
    begin(me);
    CHECK(brigade_device_all_reduce(BUFFERS, n, F32, BRIGADE_SUM, LAST));
    wants_sums(me, 0, n);
    end(me, "all-reduce", n);
    begin(me);
    CHECK(brigade_device_reduce_scatter(BUFFERS, n, F32, BRIGADE_SUM, LAST));
    wants_sums(me, (size_t)own * n, n);
    end(me, "reduce-scatter", n);
    begin(me);
    CHECK(brigade_device_all_gather(BUFFERS, n, F32, LAST));
    for (rank = 0; rank < me->size; rank++)
        wants(me, rank, 0, n);
    end(me, "all-gather", n);
    begin(me);
    CHECK(brigade_device_all_to_all(BUFFERS, n, F32, LAST));
    for (rank = 0; rank < me->size; rank++)
        wants(me, rank, (size_t)own * n, n);
    end(me, "all-to-all", n);
    begin(me);
    CHECK(brigade_device_broadcast(BUFFERS, n, F32, root, LAST));
    wants(me, root, 0, n);
    end(me, "broadcast", n);
    begin(me);
    CHECK(brigade_device_reduce(BUFFERS, n, F32, BRIGADE_SUM, root, LAST));
    if (own == root)
        wants_sums(me, 0, n);
    end(me, "reduce", n);
    begin(me);
    CHECK(brigade_device_gather(BUFFERS, n, F32, root, LAST));
    for (rank = 0; own == root && rank < me->size; rank++)
        wants(me, rank, 0, n);
    end(me, "gather", n);
    begin(me);
    CHECK(brigade_device_scatter(BUFFERS, n, F32, root, LAST));
    wants(me, root, (size_t)own * n, n);
    end(me, "scatter", n);
    CHECK(brigade_device_barrier(LAST));
}

/* Elements from one rank to another. */
static size_t pair(size_t n, int from, int to) { return n + (size_t)from + 2 * (size_t)to; }

static void uneven_collectives(struct rank *me, size_t n) {
    const int root = 0, own = me->rank;
    size_t counts[RANKS_MAX], to[RANKS_MAX], from[RANKS_MAX], before = 0;
    int rank, other;
    for (rank = 0; rank < me->size; rank++) {
        counts[rank] = n + (size_t)rank;
        before += rank < own ? counts[rank] : 0;
        to[rank] = pair(n, own, rank);
        from[rank] = pair(n, rank, own);
    }
    begin(me);
    CHECK(brigade_device_reduce_scatter_v(BUFFERS, counts, F32, BRIGADE_SUM, LAST));
    wants_sums(me, before, counts[own]);
    end(me, "reduce-scatter-v", n);
    begin(me);
    CHECK(brigade_device_all_gather_v(BUFFERS, counts, F32, LAST));
    for (rank = 0; rank < me->size; rank++)
        wants(me, rank, 0, counts[rank]);
    end(me, "all-gather-v", n);
    begin(me);
    CHECK(brigade_device_all_to_all_v(on(me->in), to, on(me->out), from, F32, LAST));
    for (rank = 0; rank < me->size; rank++) {
        size_t start = 0;
        for (other = 0; other < own; other++)
            start += pair(n, rank, other);
        wants(me, rank, start, from[rank]);
    }
    end(me, "all-to-all-v", n);
    begin(me);
    CHECK(brigade_device_gather_v(BUFFERS, counts, F32, root, LAST));
    for (rank = 0; own == root && rank < me->size; rank++)
        wants(me, rank, 0, counts[rank]);
    end(me, "gather-v", n);
    begin(me);
    CHECK(brigade_device_scatter_v(BUFFERS, counts, F32, root, LAST));
    wants(me, root, before, counts[own]);
    end(me, "scatter-v", n);
}

/* A ring of messages, one to oneself, and buffers in place. */
static void messages(struct rank *me, size_t n) {
    const int next = (me->rank + 1) % me->size, last = (me->rank + me->size - 1) % me->size;
    const size_t far = n * sizeof(float);
    begin(me);
    CHECK(brigade_group_start());
    CHECK(brigade_device_send(on(me->in), n, F32, next, LAST));
    CHECK(brigade_device_recv(on(me->out), n, F32, last, LAST));
    CHECK(brigade_device_send(on(me->in + far), n, F32, me->rank, LAST));
    CHECK(brigade_device_recv(on(me->out + far), n, F32, me->rank, LAST));
    CHECK(brigade_group_end(NULL));
    wants(me, last, 0, n);
    wants(me, me->rank, n, n);
    end(me, "messages", n);
    begin(me);
    copy(me, me->out, me->in, n);
    CHECK(brigade_device_all_reduce(on(me->out), on(me->out), n, F32, BRIGADE_SUM, LAST));
    wants_sums(me, 0, n);
    end(me, "all-reduce in place", n);
}

/* Calls in several streams keep their order, and nobody waits between them. */
static void streams(struct rank *me) {
    void *streams[2] = {me->stream, NULL};
    const size_t n = 3000;
    size_t at;
    int call;
    CU(cuStreamCreateWithPriority(&streams[1], CU_STREAM_NON_BLOCKING, 0));
    /* Making one may wait for kernels that wait for this rank. */
    CHECK(brigade_barrier(me->comm, NULL));
    begin(me);
    CHECK(brigade_device_all_reduce(BUFFERS, n, F32, BRIGADE_SUM, LAST));
    wants_sums(me, 0, n);
    for (call = 1; call <= 5; call++) {
        CHECK(brigade_device_all_reduce(on(me->out), on(me->out), n, F32, BRIGADE_SUM, me->group,
                                        streams[call % 2]));
        for (at = 0; at < n; at++)
            me->want[at] *= (float)me->size;
    }
    CU(cuStreamSynchronize(streams[1]));
    end(me, "calls in two streams", n);
    CU(cuStreamDestroy_v2(streams[1]));
}

/* Calls in a graph, as often as it is launched; or the sentence why that cannot be. */
static void graphs(struct rank *me) {
    void *graph, *executable;
    const size_t n = 1000;
    brigade_work_t work;
    brigade_result_t result;
    size_t at;
    int launch;
    begin(me);
    copy(me, me->out, me->in, n);
    CHECK(brigade_device_all_reduce(on(me->out), on(me->out), n, F32, BRIGADE_SUM, LAST));
    wants_sums(me, 0, n);
    settle(me);
    CU(cuStreamBeginCapture_v2(me->stream, CU_CAPTURE_THREAD));
    result = brigade_device_all_reduce(on(me->out), on(me->out), n, F32, BRIGADE_SUM, LAST);
    if (!me->info.captures) {
        REQUIRE(result == BRIGADE_INVALID_ARGUMENT);
        REQUIRE(strstr(brigade_last_error(), "cannot be captured") != NULL);
        CHECK(brigade_group_start());
        CHECK(brigade_device_send(on(me->in), n, F32, me->rank, LAST));
        CHECK(brigade_device_recv(on(me->out), n, F32, me->rank, LAST));
        RESULT(BRIGADE_INVALID_ARGUMENT, brigade_group_end(NULL));
        CU(cuStreamEndCapture(me->stream, &graph));
        CU(cuGraphDestroy(graph));
        end(me, "a call outside of graphs", n);
        return;
    }
    REQUIRE(result == BRIGADE_SUCCESS);
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_device_mark(me->group, me->stream, &work));
    CU(cuStreamEndCapture(me->stream, &graph));
    CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CU(cuGraphUpload(executable, me->stream));
    CU(cuStreamSynchronize(me->stream));
    /* It may wait for the device, where nobody's launch may wait for us yet. */
    CHECK(brigade_barrier(me->comm, NULL));
    for (launch = 0; launch < 3; launch++) {
        CU(cuGraphLaunch(executable, me->stream));
        for (at = 0; at < n; at++)
            me->want[at] *= (float)me->size;
    }
    end(me, "a graph", n);
    CHECK(brigade_barrier(me->comm, NULL));
    CU(cuGraphExecDestroy(executable));
    CU(cuGraphDestroy(graph));
}

/* A work is the stream's: it ends when the last rank has come, and only tells that. */
static void works(struct rank *me) {
    brigade_work_t work;
    brigade_result_t result;
    int fd;
    begin(me);
    CHECK(brigade_barrier(me->comm, NULL));
    if (me->rank == 0 && me->size > 1)
        nap(150);
    CHECK(brigade_device_all_reduce(BUFFERS, 100, F32, BRIGADE_SUM, LAST));
    wants_sums(me, 0, 100);
    CHECK(brigade_device_mark(me->group, me->stream, &work));
    result = brigade_work_wait(work, 5);
    REQUIRE(result == BRIGADE_SUCCESS || result == BRIGADE_IN_PROGRESS);
    if (me->info.captures && me->rank > 0)
        REQUIRE(result == BRIGADE_IN_PROGRESS);
    RESULT(BRIGADE_INVALID_USAGE, brigade_work_fd(work, &fd));
    REQUIRE(strstr(brigade_last_error(), "cudaLaunchHostFunc") != NULL);
    while ((result = brigade_work_test(work)) == BRIGADE_IN_PROGRESS)
        nap(1);
    REQUIRE(result == BRIGADE_SUCCESS);
    CHECK(brigade_work_free(work));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_work_test(work));
    end(me, "a late call", 100);
    CHECK(brigade_device_group_check(me->group));
}

/* Memory of the wrong kind is refused with the function that takes it, and all goes on. */
static void kinds(struct rank *me) {
    const size_t counts[RANKS_MAX] = {1, 1, 1, 1, 1, 1, 1, 1};
    void *pinned;
    float host = 1;
    int source;
#define REFUSED(words, call)                                                                    \
    RESULT(BRIGADE_INVALID_ARGUMENT, call);                                                     \
    REQUIRE(strstr(brigade_last_error(), words) != NULL)
    REFUSED("brigade_device_all_reduce",
            brigade_all_reduce(BUFFERS, 1, F32, BRIGADE_SUM, me->comm, NULL));
    REFUSED("brigade_device_all_reduce",
            brigade_all_reduce(&host, on(me->out), 1, F32, BRIGADE_SUM, me->comm, NULL));
    REFUSED("brigade_device_all_gather_v",
            brigade_all_gather_v(BUFFERS, counts, F32, me->comm, NULL));
    REFUSED("brigade_device_send", brigade_send(on(me->in), 1, F32, 0, me->comm, NULL));
    REFUSED("brigade_device_recv", brigade_recv(on(me->out), 1, F32, 0, me->comm, NULL));
    REFUSED("brigade_device_recv",
            brigade_recv_any(on(me->out), 1, F32, me->comm, &source, NULL));
    REFUSED("ordinary memory of the host",
            brigade_device_all_reduce(&host, on(me->out), 1, F32, BRIGADE_SUM, LAST));
    REFUSED("its allocation ends",
            brigade_device_broadcast(on(me->out), on(me->out), BEYOND, F32, 0, LAST));
    CU(cuMemHostAlloc(&pinned, 64, 0));
    /* Pinning and allocating may wait for the device, on which no call may wait for this rank. */
    CHECK(brigade_barrier(me->comm, NULL));
    *(float *)pinned = 1;
    CHECK(brigade_device_all_reduce(pinned, pinned, 1, F32, BRIGADE_SUM, LAST));
    settle(me);
    REQUIRE(*(float *)pinned == (float)me->size);
    CHECK(brigade_all_reduce(pinned, &host, 1, F32, BRIGADE_SUM, me->comm, NULL));
    REQUIRE(host == (float)(me->size * me->size));
    CHECK(brigade_barrier(me->comm, NULL));
    CU(cuMemFreeHost(pinned));
    CHECK(brigade_barrier(me->comm, NULL));
}

static void *take_part(void *argument) {
    struct rank *me = (struct rank *)argument;
    const brigade_device_info_t none = BRIGADE_DEVICE_INFO_INIT;
    const size_t counts[] = {0, 1, 1000, COUNT_MAX};
    size_t at;
    cuda_enter();
    CHECK(brigade_comm_init_rank(&me->comm, me->size, me->id, me->rank));
    if (me->size > 2)
        CHECK(brigade_device_group_create_among(&me->group, BRIGADE_CURRENT_DEVICE, 2, me->comm));
    else
        CHECK(brigade_device_group_create(&me->group, BRIGADE_CURRENT_DEVICE, me->comm));
    me->info = none;
    CHECK(brigade_device_group_info(me->group, &me->info));
    REQUIRE(me->info.device == 0 && me->info.captures ==
            (me->info.way == BRIGADE_WAY_TOGETHER || me->info.way == BRIGADE_WAY_LINKED));
    CU(cuStreamCreateWithPriority(&me->stream, CU_STREAM_NON_BLOCKING, 0));
    CU(cuMemAlloc_v2(&me->in, ROOM * sizeof(float)));
    CU(cuMemAlloc_v2(&me->out, ROOM * sizeof(float)));
    CHECK(brigade_barrier(me->comm, NULL));
    me->brought = (float *)malloc(3 * ROOM * sizeof(float));
    REQUIRE(me->brought != NULL);
    me->got = me->brought + ROOM;
    me->want = me->got + ROOM;
    for (at = 0; at < ROOM; at++)
        me->brought[at] = value(me->rank, at);
    for (at = 0; at < sizeof counts / sizeof *counts; at++) {
        collectives(me, counts[at]);
        uneven_collectives(me, counts[at]);
        messages(me, counts[at]);
    }
    streams(me);
    graphs(me);
    works(me);
    kinds(me);
    CHECK(brigade_comm_finalize(me->comm));
    CHECK(brigade_comm_destroy(me->comm));
    /* The group needs no handle of its communicator. */
    collectives(me, 10);
    CHECK(brigade_device_group_close(me->group));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_device_barrier(me->group, me->stream));
    REQUIRE(strstr(brigade_last_error(), "was closed") != NULL);
    CHECK(brigade_device_group_check(me->group));
    CHECK(brigade_device_group_destroy(me->group));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_device_group_check(me->group));
    free(me->brought);
    printf("rank %d of %d: all as it should be\n", me->rank, me->size);
    return NULL;
}

static void as_threads(struct rank *ranks, int size) {
    pthread_t threads[RANKS_MAX];
    int rank;
    cuda_open();
    for (rank = 0; rank < size; rank++)
        REQUIRE(pthread_create(&threads[rank], NULL, take_part, &ranks[rank]) == 0);
    for (rank = 0; rank < size; rank++)
        REQUIRE(pthread_join(threads[rank], NULL) == 0);
}

/* The parent is no rank, and opens no driver. */
static void as_processes(struct rank *ranks, int size) {
    pid_t children[RANKS_MAX];
    int rank, status, failed = 0;
    for (rank = 0; rank < size; rank++) {
        children[rank] = fork();
        REQUIRE(children[rank] >= 0);
        if (children[rank] == 0) {
            cuda_open();
            take_part(&ranks[rank]);
            fflush(stdout);
            _exit(0);
        }
    }
    for (rank = 0; rank < size; rank++) {
        REQUIRE(waitpid(children[rank], &status, 0) == children[rank]);
        failed |= status;
    }
    REQUIRE(failed == 0);
}

/* A program that has nothing to do with devices opens no driver, wherever one may be; and where
 * none is, asking for one is an error and no more. */
static void without(void) {
    brigade_comm_t comm;
    brigade_device_group_t group = (brigade_device_group_t)&comm;
    char line[512];
    float one = 1;
    FILE *maps;
    CHECK(brigade_comm_init_all(&comm, 1, NULL));
    CHECK(brigade_all_reduce(&one, &one, 1, F32, BRIGADE_SUM, comm, NULL));
    RESULT(BRIGADE_INVALID_USAGE,
           brigade_device_group_create(&group, BRIGADE_CURRENT_DEVICE, comm));
    REQUIRE(group == NULL && strstr(brigade_last_error(), "no context of CUDA") != NULL);
    REQUIRE((maps = fopen("/proc/self/maps", "r")) != NULL);
    while (fgets(line, sizeof line, maps) != NULL) {
        /* A folder may have any name. */
        const char *name = strrchr(line, '/');
        REQUIRE(name == NULL || strstr(name, "cuda") == NULL);
    }
    fclose(maps);
    if (getenv("NO_DRIVER") != NULL) {
        RESULT(BRIGADE_INVALID_USAGE, brigade_device_group_create(&group, 0, comm));
        REQUIRE(group == NULL && strstr(brigade_last_error(), "cannot be loaded") != NULL);
    }
    CHECK(brigade_all_reduce(&one, &one, 1, F32, BRIGADE_SUM, comm, NULL));
    CHECK(brigade_comm_destroy(comm));
    printf("no driver was opened\n");
}

int main(int argc, char **argv) {
    static struct rank ranks[RANKS_MAX];
    const int size = argc > 2 ? atoi(argv[2]) : 0;
    brigade_unique_id_t id;
    int rank;
    if (argc == 2 && strcmp(argv[1], "without") == 0) {
        without();
        return 0;
    }
    REQUIRE(argc == 3 && size >= 1 && size <= RANKS_MAX);
    CHECK(brigade_get_unique_id(&id));
    for (rank = 0; rank < size; rank++) {
        ranks[rank].id = id;
        ranks[rank].rank = rank;
        ranks[rank].size = size;
    }
    if (strcmp(argv[1], "threads") == 0)
        as_threads(ranks, size);
    else
        as_processes(ranks, size);
    return 0;
}
