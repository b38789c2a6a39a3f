// What passing bytes to another process takes: through memory that both have, or by the kernel out
// of the sender's own (process_vm_readv), which copies once rather than twice.
//
//   cc -O2 copies.c -o copies && ./copies CPU CPU
//
// Each way is timed twice: as benchmarks of collectives do it, where nobody touches the bytes between
// two calls, so that the kernel finds them in the reader's cache; and as programs do it, where the
// sender writes them before and the receiver reads them after, within the time. Medians of 400.
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// A turn waits for the other process; should that be gone, this ends too.
enum { SECONDS = 60 };
enum { TURNS = 400, PIECE = 16 << 10, LONGEST = 1 << 20, RING = 2 << 20 };

// What both processes have. A turn is over when both numbers are that of the turn.
struct shared {
    _Alignas(64) atomic_uint begun;
    _Alignas(64) atomic_uint done;
    _Alignas(64) atomic_uint pieces;
    _Alignas(64) char ring[RING];
};

static struct shared *both;
static char *bytes;
static pid_t sender;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void bind_to(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        die("binding to a core");
}

// Turns go round the ring, whose lines come from where they lay since the last time.
static char *place(unsigned turn, size_t length) {
    return both->ring + (size_t)turn * length % RING;
}

static void send_turn(unsigned turn, size_t length, int by_kernel, int touched) {
    size_t at;
    if (touched)
        for (at = 0; at < length; at += sizeof(uint64_t))
            *(uint64_t *)(bytes + at) = turn + at;
    atomic_store(&both->pieces, 0);
    atomic_store(&both->begun, turn);
    for (at = 0; !by_kernel && at < length; at += PIECE) {
        memcpy(place(turn, length) + at, bytes + at, PIECE);
        atomic_store(&both->pieces, (unsigned)(at / PIECE + 1));
    }
    while (atomic_load(&both->done) != turn)
        ;
}

static uint64_t receive_turn(unsigned turn, size_t length, int by_kernel, int touched) {
    static char target[LONGEST];
    uint64_t sum = 0;
    size_t at;
    while (atomic_load(&both->begun) != turn)
        ;
    for (at = 0; !by_kernel && at < length; at += PIECE) {
        while (atomic_load(&both->pieces) <= at / PIECE)
            ;
        memcpy(target + at, place(turn, length) + at, PIECE);
    }
    if (by_kernel) {
        struct iovec to = {target, length}, from = {bytes, length};
        if (process_vm_readv(sender, &to, 1, &from, 1, 0) != (ssize_t)length)
            die("process_vm_readv");
    }
    if (touched)
        for (at = 0; at < length; at += sizeof(uint64_t))
            sum += *(uint64_t *)(target + at);
    atomic_store(&both->done, turn);
    return sum;
}

static int compare(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

int main(int count, char **arguments) {
    static double took[TURNS];
    static volatile uint64_t kept;
    unsigned turn = 0;
    size_t length;
    int touched, by_kernel, at, status = 0;
    pid_t receiver;
    if (count != 3)
        return fprintf(stderr, "copies CPU CPU\n"), 2;
    both = mmap(NULL, sizeof *both, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    // The receiver's copy of this address names the sender's bytes, since it is forked.
    bytes = mmap(NULL, LONGEST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (both == MAP_FAILED || bytes == MAP_FAILED)
        die("memory");
    sender = getpid();
    // Where Yama restricts who reads whom; elsewhere it is unknown.
    (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    if ((receiver = fork()) < 0)
        die("fork");
    alarm(SECONDS);
    bind_to(atoi(arguments[receiver ? 1 : 2]));
    memset(bytes, 1, LONGEST);
    for (touched = 0; touched < 2; touched++)
        for (by_kernel = 0; by_kernel < 2; by_kernel++)
            for (length = 64 << 10; length <= LONGEST; length *= 4) {
                for (at = 0; at < TURNS; at++) {
                    double begun = now_us();
                    if (receiver)
                        send_turn(++turn, length, by_kernel, touched);
                    else
                        kept += receive_turn(++turn, length, by_kernel, touched);
                    took[at] = now_us() - begun;
                }
                qsort(took, TURNS, sizeof *took, compare);
                if (receiver)
                    printf("%-24s %-14s %5zu KiB %8.2f us\n",
                           touched ? "written before and read" : "untouched between calls",
                           by_kernel ? "by the kernel" : "shared memory", length >> 10,
                           took[TURNS / 2]);
            }
    fflush(stdout);
    if (receiver && (waitpid(receiver, &status, 0) != receiver || status))
        return 1;
    return 0;
}
