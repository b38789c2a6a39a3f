// Times MPI_Allreduce of float32, sum, out of place, as bench/src/measure.rs times Brigade's: a
// sample is one call, waited for, begun together after a barrier; its time is the largest over the
// ranks.
//
//   mpicc -O3 mpi_all_reduce.c -o mpi_all_reduce
//   mpirun -np 2 ./mpi_all_reduce BYTES BUDGET_US CALLS_MIN CALLS_MAX WARMUP
//
// Rank 0 prints one line of JSON.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static float *input, *output;
static int count, rank, ranks;

static double now_us(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void call(void) {
    MPI_Allreduce(input, output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static double sample_us(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    // Brigade's bench reads this clock here, which takes longer than a call of 8 bytes; so do we.
    now_us(CLOCK_PROCESS_CPUTIME_ID);
    double start = now_us(CLOCK_MONOTONIC);
    call();
    return now_us(CLOCK_MONOTONIC) - start;
}

// Memory that begins on a page and has been written to.
static float *buffer(void) {
    size_t bytes = ((size_t)count * sizeof(float) + 4096) / 4096 * 4096;
    float *memory = aligned_alloc(4096, bytes);
    if (memory == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
    memset(memory, 1, bytes);
    return memory;
}

static long wrong_elements(void) {
    for (int i = 0; i < count; i++) input[i] = rank + 1;
    call();
    long wrong = 0, all;
    for (int i = 0; i < count; i++) wrong += output[i] != ranks * (ranks + 1) / 2;
    MPI_Allreduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    memset(input, 0, count * sizeof(float));
    return all;
}

static int by_time(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 6) MPI_Abort(MPI_COMM_WORLD, 2);
    count = atoi(argv[1]) / (int)sizeof(float);
    double budget_us = atof(argv[2]), last_us = 0;
    int calls_min = atoi(argv[3]), calls_max = atoi(argv[4]), warmup = atoi(argv[5]);
    input = buffer(), output = buffer();

    long wrong = wrong_elements();
    for (int k = 0; k < warmup; k++) last_us = sample_us();
    MPI_Allreduce(MPI_IN_PLACE, &last_us, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    double fitting = budget_us / (last_us + 1e-3);
    int calls = fitting < calls_min ? calls_min : fitting > calls_max ? calls_max : (int)fitting;
    double *mine = malloc(calls * sizeof(double)), *all = malloc(calls * sizeof(double));
    for (int k = 0; k < calls; k++) mine[k] = sample_us();
    MPI_Reduce(mine, all, calls, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        qsort(all, calls, sizeof all[0], by_time);
        printf("{\"us_p50\":%.3f,\"us_p99\":%.3f,\"us_min\":%.3f,\"calls\":%d,\"wrong\":%ld}\n",
               all[(calls + 1) / 2 - 1], all[(calls * 99 + 99) / 100 - 1], all[0], calls, wrong);
    }
    free(mine), free(all), free(input), free(output);
    MPI_Finalize();
}
