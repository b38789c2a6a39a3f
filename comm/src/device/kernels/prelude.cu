// What every kernel here stands on: words, flags between ranks, and waits that end.
//
// A flag is a number that its one writer makes larger. Waits look at the abort word of the host,
// which the host sets when the deadline is over or a rank is lost; what is waited for is written
// to the host's memory first, so that an error can name the place.
//
// Compiled by NVRTC for a device. For tests it is compiled as C++ for the processor, where a block
// is a thread.

#ifndef BRIGADE_CPU
#define DEVICE static __device__ __forceinline__
#define KERNEL extern "C" __global__ void __launch_bounds__(512, 1)
#define UNROLL _Pragma("unroll")
#define ONE_BY_ONE _Pragma("unroll 1")
#else
#define DEVICE static inline
#define KERNEL extern "C" __global__ void
#define UNROLL
#define ONE_BY_ONE
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// At most so many ranks, and blocks of one rank. The host has the same numbers.
#define RANKS 32
#define BLOCKS 64
// Looks between two looks at the abort word. On a processor each may be a turn of everybody else.
#ifndef BRIGADE_CPU
#define PATIENCE 4096u
#else
#define PATIENCE 64u
#endif

struct alignas(16) Vector {
    u64 half[2];
};

// What one rank tells another at the start of a call; the flag is written last.
struct Greeting {
    u64 in;
    u64 out;
    u32 signature;
    u32 flag;
    u64 bytes;
};

// The part of a rank's board that has a fixed shape. Whoever writes to a rank writes to its board,
// so that ranks only ever wait for their own memory.
struct Board {
    u32 sequence[BLOCKS];
    u32 sent[RANKS];
    u32 received[RANKS];
    u32 tickets[RANKS];
    u32 taken[RANKS];
    u32 left[BLOCKS][RANKS];
    Greeting letters[RANKS];
    Greeting greetings[BLOCKS][RANKS];
};

// Where a block waits, for the host: phase 0 is nowhere.
struct Place {
    u32 phase;
    u32 peer;
    u32 sequence;
    u32 step;
    u32 signature;
    // Another wait has another number, where nothing else tells two of them apart.
    u32 turn;
    u32 spare[2];
};

// The words that host and device share, in the host's memory.
struct Desk {
    u32 abort;
    u32 fault;
    u32 peer;
    u32 ours;
    u32 theirs;
    u32 sequence;
    u32 spare[2];
    Place places[BLOCKS];
};

enum { GREET = 1, LEAVE = 2, PACKET = 3, LETTER = 4, ANSWER = 5, PART = 6, DRAIN = 7 };
enum { FAULT_ABORTED = 1, FAULT_MISMATCH = 2 };

struct Group {
    u32 rank;
    u32 ranks;
    Desk* desk;
    Board* board[RANKS];
};

DEVICE u32 load_flag(const u32* at) {
#ifndef BRIGADE_CPU
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
#else
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}

DEVICE void store_flag(u32* at, u32 value) {
#ifndef BRIGADE_CPU
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
#else
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
#endif
}

// The same, for who waits on this device; others may see it later.
DEVICE void store_flag_here(u32* at, u32 value) {
#ifndef BRIGADE_CPU
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
#else
    store_flag(at, value);
#endif
}

// A word that threads may write at the same time. What is written next to it says when to look.
DEVICE void store_word(u32* at, u32 value) {
#ifndef BRIGADE_CPU
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
#else
    __atomic_store_n(at, value, __ATOMIC_RELAXED);
#endif
}

// What this thread knows to be done comes before what it stores from here on, on all devices. On a
// processor flags do that by themselves.
DEVICE void fence_sys() {
#ifndef BRIGADE_CPU
    __threadfence_system();
#endif
}

// One more of a counter of this rank's own; what it was.
DEVICE u32 take_ticket(u32* at) {
#ifndef BRIGADE_CPU
    __threadfence();
    u32 was = atomicAdd(at, 1u);
    __threadfence();
    return was;
#else
    return __atomic_fetch_add(at, 1u, __ATOMIC_ACQ_REL);
#endif
}

// On a processor the block's other threads, and other blocks, run on this thread too.
DEVICE void breathe() {
#ifdef BRIGADE_CPU
    brigade_cpu::stall();
#endif
}

DEVICE bool is_due(u32 value, u32 want) {
    return (int)(value - want) >= 0;
}

// Tell the host what went wrong here. The first fault stays; the abort word stops every block.
DEVICE void fault(const Group& g, u32 what, u32 peer, u32 ours, u32 theirs, u32 sequence) {
    Desk* desk = g.desk;
    if (load_flag(&desk->fault) == 0) {
        store_word(&desk->peer, peer);
        store_word(&desk->ours, ours);
        store_word(&desk->theirs, theirs);
        store_word(&desk->sequence, sequence);
        store_flag(&desk->fault, what);
    }
    store_flag(&desk->abort, 1);
}

// A wait: looks that are counted, so that a long one is told to the host.
struct Wait {
    u32 looks;
    bool told;
};

DEVICE Wait begin_wait() {
    Wait wait = {0, false};
    return wait;
}

// Between two looks; false when the host wants the kernel to end.
DEVICE bool go_on(const Group& g, Wait& wait, Place place) {
    breathe();
    if (++wait.looks % PATIENCE != 0) return true;
    if (load_flag(&g.desk->abort) != 0) {
        fault(g, FAULT_ABORTED, place.peer, place.signature, 0, place.sequence);
        return false;
    }
    // Again each time: another thread of the block, whose wait has ended, may have cleared it.
    wait.told = true;
    Place* at = &g.desk->places[blockIdx.x % BLOCKS];
    store_word(&at->peer, place.peer);
    store_word(&at->sequence, place.sequence);
    store_word(&at->step, place.step);
    store_word(&at->signature, place.signature);
    store_word(&at->turn, place.turn);
    store_flag(&at->phase, place.phase);
    return true;
}

DEVICE void end_wait(const Group& g, Wait& wait) {
    if (wait.told) store_flag(&g.desk->places[blockIdx.x % BLOCKS].phase, 0);
}

DEVICE bool await_flag(const Group& g, const u32* at, u32 want, Place place) {
    Wait wait = begin_wait();
    bool good = true;
    while (good && !is_due(load_flag(at), want)) good = go_on(g, wait, place);
    if (good) end_wait(g, wait);
    return good;
}

// What lies in buffers, by addresses that are known to be global: an instruction that has to find
// that out first might mean shared memory, so what lies there would be read again after it.
#ifndef BRIGADE_CPU
DEVICE Vector load_vector(u64 at) {
    Vector vector;
    asm volatile("ld.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(vector.half[0]), "=l"(vector.half[1])
                 : "l"(at)
                 : "memory");
    return vector;
}

DEVICE void store_vector(u64 at, Vector vector) {
    asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(vector.half[0]),
                 "l"(vector.half[1])
                 : "memory");
}
#else
DEVICE Vector load_vector(u64 at) {
    return *(const Vector*)at;
}

DEVICE void store_vector(u64 at, Vector vector) {
    *(Vector*)at = vector;
}
#endif

DEVICE void load_to(Vector& value, u64 at) {
    value = load_vector(at);
}

DEVICE void store_at(u64 at, const Vector& value) {
    store_vector(at, value);
}

template <class T>
DEVICE void load_to(T& value, u64 at) {
    value = *(const T*)at;
}

template <class T>
DEVICE void store_at(u64 at, const T& value) {
    *(T*)at = value;
}

// Copy as many whole T as there are bytes for, with all threads of the block, each of which has
// eight loads on their way; how many bytes those are.
template <class T>
DEVICE u64 copy_each(u64 to, u64 from, u64 bytes) {
    u64 count = bytes / sizeof(T), lanes = blockDim.x, first = threadIdx.x;
    for (; first + 7 * lanes < count; first += 8 * lanes) {
        T flying[8];
        UNROLL for (int k = 0; k < 8; k++) {
            load_to(flying[k], from + sizeof(T) * (first + k * lanes));
        }
        UNROLL for (int k = 0; k < 8; k++) {
            store_at(to + sizeof(T) * (first + k * lanes), flying[k]);
        }
    }
    // What is left of it likewise: all of a thread's loads are on their way before the first store,
    // those behind the end of the last one.
    if (first < count) {
        T flying[8];
        UNROLL for (int k = 0; k < 8; k++) {
            u64 at = first + k * lanes;
            load_to(flying[k], from + sizeof(T) * (at < count ? at : count - 1));
        }
        UNROLL for (int k = 0; k < 8; k++) {
            u64 at = first + k * lanes;
            if (at < count) store_at(to + sizeof(T) * at, flying[k]);
        }
    }
    return count * sizeof(T);
}

// Copy bytes with all threads of the block.
DEVICE void copy(u64 to, u64 from, u64 bytes) {
    u64 done = 0;
    if (to == from) return;
    if (((to | from) & 15) == 0) {
        done = copy_each<Vector>(to, from, bytes);
    } else if (((to | from) & 3) == 0) {
        done = copy_each<u32>(to, from, bytes);
    } else if (((to | from) & 1) == 0) {
        // Elements of two bytes, an odd number of them in front.
        done = copy_each<u16>(to, from, bytes);
    }
    copy_each<u8>(to + done, from + done, bytes - done);
}

// The part of `bytes` that belongs to this block: whole lines of caches but for the last one, so that
// no warp reads or writes a part of one more.
DEVICE void share_of_block(u64 bytes, u64& first, u64& last) {
    u64 lines = (bytes + 127) / 128;
    first = lines * blockIdx.x / gridDim.x * 128;
    last = lines * (blockIdx.x + 1) / gridDim.x * 128;
    if (first > bytes) first = bytes;
    if (last > bytes) last = bytes;
}

static_assert(sizeof(Board) == 75520 && sizeof(Desk) == 2080 && sizeof(Group) == 272,
              "the host has the same layout");
