// How far apart two cores are: prints the ns that a cache line takes from one to the other.
//
//   cc -O2 -pthread probe.c -o probe && ./probe CPU CPU
//
// Two threads, each bound to its core, return a ball to each other. The fastest of many short
// rallies counts: one that other work breaks into says nothing about the distance.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { RALLIES = 200, RETURNS = 100 };

// The first number says whose turn it is; the others keep it alone in its cache line.
static _Alignas(256) atomic_int ball[64];

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static void bind_to(int cpu) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(cpu, &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus)) perror("cannot run on that CPU"), exit(1);
}

static void play(int player) {
    for (int k = 0; k < RETURNS; k++) {
        while (atomic_load_explicit(ball, memory_order_acquire) != player) {}
        atomic_store_explicit(ball, !player, memory_order_release);
    }
}

static void *other(void *cpu) {
    bind_to(*(int *)cpu);
    for (int rally = 0; rally < RALLIES; rally++) play(1);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3) return fputs("usage: probe CPU CPU\n", stderr), 2;
    int other_cpu = atoi(argv[2]);
    pthread_t thread;
    if (pthread_create(&thread, NULL, other, &other_cpu)) return perror("pthread_create"), 1;
    bind_to(atoi(argv[1]));
    double least_ns = 1e18;
    for (int rally = 0; rally < RALLIES; rally++) {
        double start = now_ns();
        play(0);
        double time = now_ns() - start;
        if (time < least_ns) least_ns = time;
    }
    pthread_join(thread, NULL);
    printf("%.1f\n", least_ns / RETURNS / 2);
}
