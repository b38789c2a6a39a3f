// The threads of a block: fibers that give way to each other wherever one waits for another, and
// what they exchange there, over the block and within a warp.
#pragma once

extern "C" void brigade_cpu_switch(void **from, void *to);
__asm__(R"(
.text
.type brigade_cpu_switch, @function
.globl brigade_cpu_switch
.hidden brigade_cpu_switch
brigade_cpu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size brigade_cpu_switch, .-brigade_cpu_switch
)");

namespace brigade_cpu {

constexpr size_t STACK_BYTES = 128 * 1024;
constexpr unsigned WARP = 32;
constexpr unsigned GLANCES = 64;

struct Fiber {
    void *stack_pointer;  // Null until it began, or waited for the first time.
    char *stack;          // Where it began one.
    uint3 thread;
    unsigned lane;
    struct Warp *warp;
    bool is_done, vote;
};

struct Warp {
    uint64_t slots[WARP];
    unsigned generation[WARP];
    unsigned live;
    unsigned arrived;
};

struct Block {
    dim3 grid, size;
    uint3 index;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<char> shared;
    unsigned live, arrived, generation, current, glances;
    void *home;
    void (*kernel)(void **);
    void **arguments;
    void (*on_stall)(void *);
    void *on_stall_data;
};

// The block that this thread of the system runs. Kernels ask for it wherever they ask who they are,
// so with GCC it has a register, which functions of other libraries leave as it is.
#if defined(__clang__)
inline thread_local Block *block = nullptr;
#else
register Block *block __asm__("r15");
#endif

// Stacks of fibers that have ended, for the next ones of this thread; and of threads that have
// ended, for the next of those, but for so many that a crowd would keep too much memory. Threads may
// end behind whatever a program does as it ends, so these are never taken down.
constexpr size_t SPARE_STACKS = 8192;
inline pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;
inline std::vector<char *> &spare = *new std::vector<char *>;

// Not the C++ library's, whose header is more than a third of all that is read for every kernel.
struct Guard {
    Guard() { pthread_mutex_lock(&spare_lock); }
    ~Guard() { pthread_mutex_unlock(&spare_lock); }
};

struct Stacks {
    std::vector<char *> kept;

    char *take() {
        if (kept.empty()) refill();
        char *stack = kept.back();
        kept.pop_back();
        return stack;
    }

    void refill() {
        Guard guard;
        const size_t some = spare.size() < 256 ? spare.size() : 256;
        kept.assign(spare.end() - some, spare.end());
        spare.resize(spare.size() - some);
        if (some > 0) return;
        void *fresh = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (fresh == MAP_FAILED) abort();
        kept.push_back((char *)fresh);
    }

    ~Stacks() {
        Guard guard;
        for (char *stack : kept) {
            if (spare.size() < SPARE_STACKS) spare.push_back(stack);
            else munmap(stack, STACK_BYTES);
        }
    }
};
inline thread_local Stacks stacks;

static inline Fiber &fiber() { return block->fibers[block->current]; }

static void begin(Fiber &f, unsigned number);

// The next fiber that is not done becomes the one that runs; a round ends where the first one is met
// again.
static inline Fiber &take_turn() {
    Block &b = *block;
    const unsigned from = b.current;
    unsigned next = from;
    do {
        if (++next == b.fibers.size()) next = 0;
    } while (b.fibers[next].is_done && next != from);
    b.current = next;
    return b.fibers[next];
}

static inline void yield() {
    Fiber &me = fiber(), &other = take_turn();
    if (&me == &other) return;
    if (!other.stack_pointer) begin(other, block->current);
    brigade_cpu_switch(&me.stack_pointer, other.stack_pointer);
}

// Somebody outside of the block is waited for.
static inline void stall() {
    Block &b = *block;
    if (b.on_stall) b.on_stall(b.on_stall_data);
    yield();
    sched_yield();
}

// A load in a loop that may be waiting; seldom enough to cost nothing where it is not.
static inline void glance() {
    if (++block->glances % GLANCES == 0) stall();
}

static inline uint64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + now.tv_nsec;
}

// Threads that have ended count as arrived, as on devices.
static inline void barrier() {
    Block &b = *block;
    unsigned mine = b.generation;
    b.arrived++;
    while (b.generation == mine) {
        if (b.arrived >= b.live) {
            b.arrived = 0;
            b.generation++;
            return;
        }
        yield();
    }
}

static inline void warp_barrier(unsigned mask) {
    Warp &w = *fiber().warp;
    unsigned lane = fiber().lane, mine = w.generation[lane];
    w.arrived |= 1u << lane;
    while (w.generation[lane] == mine) {
        unsigned wanted = mask & w.live;
        if ((w.arrived & wanted) == wanted) {
            w.arrived &= ~wanted;
            for (unsigned other = 0; other < WARP; other++)
                if (wanted >> other & 1) w.generation[other]++;
            return;
        }
        yield();
    }
}

template <typename T> static inline T exchange(unsigned mask, T value, unsigned source) {
    static_assert(sizeof(T) <= 8, "warps exchange up to eight bytes");
    Warp &w = *fiber().warp;
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    w.slots[fiber().lane] = bits;
    warp_barrier(mask);
    T result;
    memcpy(&result, &w.slots[source % WARP], sizeof(T));
    warp_barrier(mask);
    return result;
}

static inline unsigned ballot(unsigned mask, bool vote) {
    Warp &w = *fiber().warp;
    w.slots[fiber().lane] = vote;
    warp_barrier(mask);
    unsigned votes = 0;
    for (unsigned lane = 0; lane < WARP; lane++)
        if ((mask & w.live) >> lane & 1) votes |= (unsigned)w.slots[lane] << lane;
    warp_barrier(mask);
    return votes;
}

static inline int count(bool vote) {
    fiber().vote = vote;
    barrier();
    int votes = 0;
    for (const Fiber &f : block->fibers) votes += !f.is_done && f.vote;
    barrier();
    return votes;
}

}  // namespace brigade_cpu
