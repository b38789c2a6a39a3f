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

constexpr unsigned WARP = 32;
constexpr unsigned GLANCES = 64;
constexpr unsigned HOPES = 256;
constexpr long NAP_NS = 20000;

struct Fiber {
    void *stack_pointer;  // Null until it began, or waited for the first time.
    char *stack;          // Where it began one.
    uint3 thread;
    unsigned lane;
    struct Warp *warp;
    bool is_done, vote;
    Identity *identity;  // Null where nobody looks on.
};

struct Warp {
    uint64_t slots[WARP];
    unsigned generation[WARP];
    unsigned live;
    unsigned arrived;
    // Of each lane, by whether its barrier is an odd or an even one: where it arrived, and left.
    char here[WARP][2], there[WARP][2];
};

struct Block {
    dim3 grid, size;
    uint3 index;
    // Which runs, and where they begin and end: asked for at every step of a kernel.
    Fiber *current, *first, *last;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<char> shared;
    unsigned live, arrived, generation, glances, stalls;
    // Where its threads begin, end, and meet at odd and even barriers.
    char beginning, end, meeting[2];
    void *home;
    struct Stacks *stacks;  // Of the thread of the system that runs it.
    Identity identity;
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

    BRIGADE_UNSEEN char *take() {
        if (kept.empty()) refill();
        char *stack = kept.back();
        kept.pop_back();
        return stack;
    }

    BRIGADE_UNSEEN void refill() {
        Guard guard;
        const size_t some = spare.size() < 256 ? spare.size() : 256;
        kept.assign(spare.end() - some, spare.end());
        spare.resize(spare.size() - some);
        if (some > 0) return;
        kept.push_back(new_stack());
    }

    ~Stacks() {
        Guard guard;
        for (char *stack : kept) {
            if (spare.size() < SPARE_STACKS) spare.push_back(stack);
            else munmap(stack, STACK_BYTES);
        }
    }
};
inline thread_local Stacks own_stacks;

static inline Fiber &fiber() { return *block->current; }

BRIGADE_UNSEEN static void begin(Fiber &f);

// The next fiber that is not done becomes the one that runs; a round ends where the first one is met
// again.
BRIGADE_UNSEEN static inline Fiber &take_turn() {
    Block &b = *block;
    Fiber *next = b.current;
    do {
        next = next == b.last ? b.first : next + 1;
    } while (next->is_done && next != b.current);
    b.current = next;
    return *next;
}

BRIGADE_UNSEEN static inline void yield() {
    Fiber &me = fiber(), &other = take_turn();
    if (&me == &other) return;
    if (!other.stack_pointer) begin(other);
    become(other.identity);
    brigade_cpu_switch(&me.stack_pointer, other.stack_pointer);
}

// Somebody outside of the block is waited for. Linux may take a whole slice from who yields, which
// beside programs that compute is a tenth of a second for each of them: who has waited for long
// sleeps now and then instead, which costs nothing of that.
BRIGADE_UNSEEN static inline void stall() {
    Block &b = *block;
    if (b.on_stall) {
        // A thread that is started comes after who starts it, but not after who waits here.
        become(&b.identity);
        b.on_stall(b.on_stall_data);
        become(fiber().identity);
    }
    yield();
    if (++b.stalls < HOPES) {
        sched_yield();
    } else if (b.stalls % 8 == 0) {
        const timespec nap = {0, NAP_NS};
        nanosleep(&nap, nullptr);
    }
}

// A load in a loop that may be waiting; seldom enough to cost nothing where it is not.
BRIGADE_UNSEEN static inline void glance() {
    if (++block->glances % GLANCES == 0) stall();
}

BRIGADE_UNSEEN static inline uint64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + now.tv_nsec;
}

// Threads that have ended count as arrived, as on devices.
BRIGADE_UNSEEN static inline void barrier() {
    Block &b = *block;
    unsigned mine = b.generation;
    // Who is early at the next barrier tells nothing to who is late to leave this one.
    char *meeting = &b.meeting[mine % 2];
    go_before(meeting);
    b.arrived++;
    while (b.generation == mine) {
        if (b.arrived >= b.live) {
            b.arrived = 0;
            b.generation++;
            break;
        }
        yield();
    }
    come_behind(meeting);
}

// What all of these lanes did comes before what each of them goes on with.
BRIGADE_UNSEEN static inline void put_in_order(Warp &w, unsigned lanes) {
    for (unsigned lane = 0; lane < WARP; lane++)
        if (lanes >> lane & 1) come_behind(&w.here[lane][w.generation[lane] % 2]);
    for (unsigned lane = 0; lane < WARP; lane++)
        if (lanes >> lane & 1) go_before(&w.there[lane][w.generation[lane] % 2]);
}

// Lanes meet, and nothing of what they did in memory comes before or after: so are shuffles.
BRIGADE_UNSEEN static inline void warp_meeting(unsigned mask, bool orders) {
    Warp &w = *fiber().warp;
    unsigned lane = fiber().lane, mine = w.generation[lane];
    if (orders) go_before(&w.here[lane][mine % 2]);
    w.arrived |= 1u << lane;
    while (w.generation[lane] == mine) {
        unsigned wanted = mask & w.live;
        if ((w.arrived & wanted) == wanted) {
            w.arrived &= ~wanted;
            if (orders) put_in_order(w, wanted);
            for (unsigned other = 0; other < WARP; other++)
                if (wanted >> other & 1) w.generation[other]++;
            break;
        }
        yield();
    }
    if (orders) come_behind(&w.there[lane][mine % 2]);
}

BRIGADE_UNSEEN static inline void warp_barrier(unsigned mask) { warp_meeting(mask, true); }

template <typename T>
BRIGADE_UNSEEN static inline T exchange(unsigned mask, T value, unsigned source) {
    static_assert(sizeof(T) <= 8, "warps exchange up to eight bytes");
    Warp &w = *fiber().warp;
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    w.slots[fiber().lane] = bits;
    warp_meeting(mask, false);
    T result;
    memcpy(&result, &w.slots[source % WARP], sizeof(T));
    warp_meeting(mask, false);
    return result;
}

BRIGADE_UNSEEN static inline unsigned ballot(unsigned mask, bool vote) {
    Warp &w = *fiber().warp;
    w.slots[fiber().lane] = vote;
    warp_meeting(mask, false);
    unsigned votes = 0;
    for (unsigned lane = 0; lane < WARP; lane++)
        if ((mask & w.live) >> lane & 1) votes |= (unsigned)w.slots[lane] << lane;
    warp_meeting(mask, false);
    return votes;
}

BRIGADE_UNSEEN static inline int count(bool vote) {
    fiber().vote = vote;
    barrier();
    int votes = 0;
    for (const Fiber &f : block->fibers) votes += !f.is_done && f.vote;
    barrier();
    return votes;
}

}  // namespace brigade_cpu
