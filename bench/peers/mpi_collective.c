// Times one collective of MPI on float32, out of place (broadcast has one buffer), as
// bench/src/measure.rs times Brigade's: a sample is one call, waited for, begun together after a
// barrier; its time is the largest over the ranks. Where buffers are touched, it is also that of
// writing the input in front of the call and of reading the output behind it, as Brigade's --touch.
// Sizes are nccl-tests': of the longest buffer.
//
//   mpicc -O3 mpi_collective.c -o mpi_collective
//   mpirun -np 2 ./mpi_collective COLLECTIVE BYTES BUDGET_US CALLS_MIN CALLS_MAX WARMUP TOUCHED
//
// Rank 0 prints one line of JSON.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static float *input, *output;
// Elements of the longest buffer, and of a rank's block of it.
static int count, block, rank, ranks;
static int is_touched;
static MPI_Comm world;

static void all_reduce(void) {
    MPI_Allreduce(input, output, count, MPI_FLOAT, MPI_SUM, world);
}
static void reduce(void) { MPI_Reduce(input, output, count, MPI_FLOAT, MPI_SUM, 0, world); }
static void reduce_scatter(void) {
    MPI_Reduce_scatter_block(input, output, block, MPI_FLOAT, MPI_SUM, world);
}
static void all_gather(void) {
    MPI_Allgather(input, block, MPI_FLOAT, output, block, MPI_FLOAT, world);
}
static void all_to_all(void) {
    MPI_Alltoall(input, block, MPI_FLOAT, output, block, MPI_FLOAT, world);
}
static void gather(void) {
    MPI_Gather(input, block, MPI_FLOAT, output, block, MPI_FLOAT, 0, world);
}
static void scatter(void) {
    MPI_Scatter(input, block, MPI_FLOAT, output, block, MPI_FLOAT, 0, world);
}
static void broadcast(void) {
    // Everyone's result lies in one place, so that it is checked as the others' are.
    MPI_Bcast(output, count, MPI_FLOAT, 0, world);
}

// Element i of a rank's input says whose it is and in which block: small, so sums are exact.
static float sent(int from, int i) { return from + 1 + ranks * (i / block % 8); }

static float sum(int i) {
    float all = 0;
    for (int from = 0; from < ranks; from++) all += sent(from, i);
    return all;
}
static float of_gathered(int i) { return sent(i / block, i % block); }
static float of_scattered(int i) { return sent(0, rank * block + i); }
static float of_exchanged(int i) { return sent(i / block, rank * block + i % block); }
static float of_folded(int i) { return sum(rank * block + i); }
static float of_root(int i) { return sent(0, i); }

// What a collective leaves in so many blocks of the outputs: of the root's only, or of everyone's.
static const struct kind {
    const char *name;
    void (*call)(void);
    float (*expected)(int);
    int is_whole, is_root_only;
    // The same of the inputs.
    int is_input_whole, is_input_root_only;
} kinds[] = {
    {"all-reduce", all_reduce, sum, 1, 0, 1, 0},
    {"reduce-scatter", reduce_scatter, of_folded, 0, 0, 1, 0},
    {"all-gather", all_gather, of_gathered, 1, 0, 0, 0},
    {"broadcast", broadcast, of_root, 1, 0, 1, 1},
    {"reduce", reduce, sum, 1, 1, 1, 0},
    {"all-to-all", all_to_all, of_exchanged, 1, 0, 1, 0},
    {"gather", gather, of_gathered, 1, 1, 0, 0},
    {"scatter", scatter, of_scattered, 0, 0, 1, 1},
};

static double now_us(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static int of_output(const struct kind *kind) {
    return kind->is_root_only && rank ? 0 : kind->is_whole ? count : block;
}

static void write_input(const struct kind *kind) {
    int written = kind->is_input_root_only && rank ? 0 : kind->is_input_whole ? count : block;
    memset(kind->call == broadcast ? output : input, 0, written * sizeof(float));
}

static void read_output(const struct kind *kind) {
    uint64_t all = 0, word;
    const float *from = output;
    for (int i = 0, words = of_output(kind) / 2; i < words; i++, from += 2)
        memcpy(&word, from, sizeof word), all += word;
    // So that the compiler cannot leave it out.
    __asm__ volatile("" : : "r"(all));
}

static double sample_us(const struct kind *kind) {
    MPI_Barrier(world);
    // Brigade's bench reads this clock here, which takes longer than a call of 8 bytes; so do we.
    now_us(CLOCK_PROCESS_CPUTIME_ID);
    double start = now_us(CLOCK_MONOTONIC);
    if (is_touched) write_input(kind);
    kind->call();
    if (is_touched) read_output(kind);
    return now_us(CLOCK_MONOTONIC) - start;
}

// Memory that begins on a page and has been written to.
static float *buffer(void) {
    size_t bytes = ((size_t)count * sizeof(float) + 4096) / 4096 * 4096;
    float *memory = aligned_alloc(4096, bytes);
    if (memory == NULL) MPI_Abort(world, 1);
    memset(memory, 1, bytes);
    return memory;
}

static long wrong_elements(const struct kind *kind) {
    for (int i = 0; i < count; i++) input[i] = sent(rank, i), output[i] = rank ? -1 : input[i];
    kind->call();
    long wrong = 0, all;
    for (int i = 0; i < of_output(kind); i++) wrong += output[i] != kind->expected(i);
    MPI_Allreduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, world);
    memset(input, 0, count * sizeof(float));
    return all;
}

static int by_time(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static const struct kind *kind_of(const char *name) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].name, name) == 0) return &kinds[i];
    fprintf(stderr, "%s: no collective of that name\n", name);
    MPI_Abort(world, 2);
    return NULL;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    world = MPI_COMM_WORLD;
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &ranks);
    if (argc != 8) MPI_Abort(world, 2);
    const struct kind *kind = kind_of(argv[1]);
    count = atoi(argv[2]) / (int)sizeof(float), block = count / ranks;
    double budget_us = atof(argv[3]), last_us = 0;
    int calls_min = atoi(argv[4]), calls_max = atoi(argv[5]), warmup = atoi(argv[6]);
    is_touched = atoi(argv[7]);
    input = buffer(), output = buffer();

    long wrong = wrong_elements(kind);
    for (int k = 0; k < warmup; k++) last_us = sample_us(kind);
    MPI_Allreduce(MPI_IN_PLACE, &last_us, 1, MPI_DOUBLE, MPI_MAX, world);
    double fitting = budget_us / (last_us + 1e-3);
    int calls = fitting < calls_min ? calls_min : fitting > calls_max ? calls_max : (int)fitting;
    double *mine = malloc(calls * sizeof(double)), *all = malloc(calls * sizeof(double));
    for (int k = 0; k < calls; k++) mine[k] = sample_us(kind);
    MPI_Reduce(mine, all, calls, MPI_DOUBLE, MPI_MAX, 0, world);
    if (rank == 0) {
        qsort(all, calls, sizeof all[0], by_time);
        printf("{\"us_p50\":%.3f,\"us_p99\":%.3f,\"us_min\":%.3f,\"calls\":%d,\"wrong\":%ld}\n",
               all[(calls + 1) / 2 - 1], all[(calls * 99 + 99) / 100 - 1], all[0], calls, wrong);
    }
    free(mine), free(all), free(input), free(output);
    MPI_Finalize();
}
