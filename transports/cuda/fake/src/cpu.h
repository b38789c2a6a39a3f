// CUDA C++ on a processor: what the fake compiler puts in front of a kernel's source. The threads
// of a block are fibers on one thread of the system, so __syncthreads and warp intrinsics are
// switches; blocks run one after the other until one waits for somebody else, and from then on
// further blocks get threads of their own. Only x86-64.
#pragma once
#define BRIGADE_CPU 1

#include <cmath>
#include <cstdio>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <sched.h>
#include <sys/mman.h>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __constant__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict
#define __CUDA_ARCH__ 900

struct uint2 { unsigned x, y; };
struct int2 { int x, y; };
struct float2 { float x, y; } __attribute__((aligned(8)));
struct uint3 { unsigned x, y, z; };
struct uint4 { unsigned x, y, z, w; } __attribute__((aligned(16)));
struct int4 { int x, y, z, w; } __attribute__((aligned(16)));
struct float4 { float x, y, z, w; } __attribute__((aligned(16)));
struct ulonglong2 { unsigned long long x, y; } __attribute__((aligned(16)));
struct dim3 { unsigned x = 1, y = 1, z = 1; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

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
    void *stack_pointer;
    char *stack;
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

inline thread_local Block *block = nullptr;

// Stacks of fibers that have ended, for the next ones of this thread.
struct Stacks {
    std::vector<char *> kept;
    ~Stacks() {
        for (char *stack : kept) munmap(stack, STACK_BYTES);
    }
};
inline thread_local Stacks stacks;

static inline Fiber &fiber() { return block->fibers[block->current]; }

// The next fiber that is not done runs; a round ends where the first one is met again.
static inline void yield() {
    Block &b = *block;
    unsigned from = b.current, next = from;
    do {
        if (++next == b.fibers.size()) next = 0;
    } while (b.fibers[next].is_done && next != from);
    if (next == from) return;
    b.current = next;
    brigade_cpu_switch(&b.fibers[from].stack_pointer, b.fibers[next].stack_pointer);
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

// A fiber's first and last function.
[[noreturn]] static void main_of_fiber() {
    Block &b = *block;
    b.kernel(b.arguments);
    Fiber &me = fiber();
    me.is_done = true;
    me.warp->live &= ~(1u << me.lane);
    b.live--;
    if (b.live == 0) {
        void *gone;
        brigade_cpu_switch(&gone, b.home);
    }
    yield();
    __builtin_unreachable();
}

static inline void prepare(Fiber &f) {
    if (stacks.kept.empty()) {
        void *fresh = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (fresh == MAP_FAILED) abort();
        stacks.kept.push_back((char *)fresh);
    }
    f.stack = stacks.kept.back();
    stacks.kept.pop_back();
    void **top = (void **)(f.stack + STACK_BYTES - 64);
    *--top = nullptr;  // Where main_of_fiber would return to; it aligns the stack, too.
    *--top = (void *)main_of_fiber;
    for (int saved = 0; saved < 6; saved++) *--top = nullptr;
    f.stack_pointer = top;
}

// Run one block on this thread, to its end.
static void run(const unsigned *grid, const unsigned *size, const unsigned *index,
                unsigned shared_bytes, void (*kernel)(void **), void **arguments,
                void (*on_stall)(void *), void *on_stall_data) {
    Block b{};
    b.grid = {grid[0], grid[1], grid[2]};
    b.size = {size[0], size[1], size[2]};
    b.index = {index[0], index[1], index[2]};
    unsigned threads = size[0] * size[1] * size[2];
    b.fibers.resize(threads);
    b.warps.resize((threads + WARP - 1) / WARP);
    b.shared.resize(shared_bytes + 128);
    b.live = threads;
    b.kernel = kernel, b.arguments = arguments;
    b.on_stall = on_stall, b.on_stall_data = on_stall_data;
    for (unsigned at = 0; at < threads; at++) {
        Fiber &f = b.fibers[at];
        f.thread = {at % size[0], at / size[0] % size[1], at / size[0] / size[1]};
        f.lane = at % WARP;
        f.warp = &b.warps[at / WARP];
        f.warp->live |= 1u << f.lane;
        prepare(f);
    }
    Block *before = block;
    block = &b;
    brigade_cpu_switch(&b.home, b.fibers[0].stack_pointer);
    block = before;
    for (Fiber &f : b.fibers) stacks.kept.push_back(f.stack);
}

static inline void *dynamic_shared() {
    uintptr_t start = (uintptr_t)block->shared.data();
    return (void *)((start + 127) & ~(uintptr_t)127);
}

// A kernel's parameters: their sizes, for who copies arguments, and how it is called with them.
template <typename... A, size_t... I>
static void call(void (*kernel)(A...), void **arguments, std::index_sequence<I...>) {
    kernel(*(std::remove_reference_t<A> *)arguments[I]...);
}
template <typename... A> static void call(void (*kernel)(A...), void **arguments) {
    call(kernel, arguments, std::index_sequence_for<A...>{});
}
template <typename... A>
static unsigned sizes(void (*)(A...), unsigned *into, unsigned room) {
    const size_t all[] = {sizeof(A)..., 0};
    for (unsigned at = 0; at < sizeof...(A) && at < room; at++) into[at] = (unsigned)all[at];
    return sizeof...(A);
}

}  // namespace brigade_cpu

extern "C" void brigade_cpu_run(const unsigned *grid, const unsigned *size, const unsigned *index,
                                unsigned shared_bytes, void (*kernel)(void **), void **arguments,
                                void (*on_stall)(void *), void *data) {
    brigade_cpu::run(grid, size, index, shared_bytes, kernel, arguments, on_stall, data);
}

#define threadIdx (brigade_cpu::fiber().thread)
#define blockIdx (brigade_cpu::block->index)
#define blockDim (brigade_cpu::block->size)
#define gridDim (brigade_cpu::block->grid)
static const int warpSize = 32;

static inline void __syncthreads() { brigade_cpu::barrier(); }
static inline int __syncthreads_count(int vote) { return brigade_cpu::count(vote != 0); }
static inline int __syncthreads_or(int vote) { return brigade_cpu::count(vote != 0) != 0; }
static inline int __syncthreads_and(int vote) { return brigade_cpu::count(vote == 0) == 0; }
static inline void __syncwarp(unsigned mask = ~0u) { brigade_cpu::warp_barrier(mask); }
static inline unsigned __activemask() { return brigade_cpu::fiber().warp->live; }
static inline unsigned __ballot_sync(unsigned mask, int vote) { return brigade_cpu::ballot(mask, vote != 0); }
static inline int __any_sync(unsigned mask, int vote) { return brigade_cpu::ballot(mask, vote != 0) != 0; }
static inline int __all_sync(unsigned mask, int vote) { return brigade_cpu::ballot(mask, vote == 0) == 0; }
template <typename T> static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
    unsigned me = brigade_cpu::fiber().lane;
    return brigade_cpu::exchange(mask, value, (me & ~(width - 1)) + (lane & (width - 1)));
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    unsigned me = brigade_cpu::fiber().lane, other = me ^ bits;
    bool within = (other & ~(width - 1)) <= (me & ~(width - 1));
    return brigade_cpu::exchange(mask, value, within ? other : me);
}
template <typename T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    unsigned me = brigade_cpu::fiber().lane, place = me & (width - 1);
    return brigade_cpu::exchange(mask, value, place + by < (unsigned)width ? me + by : me);
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    unsigned me = brigade_cpu::fiber().lane, place = me & (width - 1);
    return brigade_cpu::exchange(mask, value, place >= by ? me - by : me);
}

static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __nanosleep(unsigned) { brigade_cpu::stall(); }
static inline long long clock64() { return (long long)brigade_cpu::now_ns(); }
[[noreturn]] static inline void __trap() { abort(); }

template <typename T> static inline T brigade_cpu_change(T *address, T (*change)(T, T), T by) {
    using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    Bits *bits = (Bits *)address, before = __atomic_load_n(bits, __ATOMIC_RELAXED), after;
    T old;
    do {
        memcpy(&old, &before, sizeof(T));
        T fresh = change(old, by);
        memcpy(&after, &fresh, sizeof(T));
    } while (!__atomic_compare_exchange_n(bits, &before, after, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    return old;
}
#define BRIGADE_CPU_ATOMIC(name, expression)                                                    \
    template <typename T> static inline T name(T *address, std::common_type_t<T> by) {          \
        return brigade_cpu_change<T>(address, +[](T a, T b) -> T { return expression; }, by);   \
    }                                                                                           \
    template <typename T> static inline T name##_system(T *address, std::common_type_t<T> by) { \
        return name(address, by);                                                               \
    }                                                                                           \
    template <typename T> static inline T name##_block(T *address, std::common_type_t<T> by) {  \
        return name(address, by);                                                               \
    }
BRIGADE_CPU_ATOMIC(atomicAdd, a + b)
BRIGADE_CPU_ATOMIC(atomicSub, a - b)
BRIGADE_CPU_ATOMIC(atomicMax, a < b ? b : a)
BRIGADE_CPU_ATOMIC(atomicMin, b < a ? b : a)
BRIGADE_CPU_ATOMIC(atomicExch, ((void)a, b))
BRIGADE_CPU_ATOMIC(atomicOr, a | b)
BRIGADE_CPU_ATOMIC(atomicAnd, a & b)
BRIGADE_CPU_ATOMIC(atomicXor, a ^ b)
template <typename T> static inline T atomicCAS(T *address, std::common_type_t<T> expected, std::common_type_t<T> value) {
    __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return expected;
}
template <typename T> static inline T __ldcv(const T *address) {
    brigade_cpu::glance();
    return *(const volatile T *)address;
}
template <typename T> static inline T __ldg(const T *address) { return *address; }
template <typename T> static inline T __ldcs(const T *address) { return *address; }
template <typename T> static inline T __ldcg(const T *address) { return *address; }
template <typename T> static inline void __stcs(T *address, T value) { *address = value; }
template <typename T> static inline void __stcg(T *address, T value) { *address = value; }
template <typename T> static inline void __stwt(T *address, T value) { *address = value; }

template <typename To, typename From> static inline To brigade_cpu_cast(From from) {
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}
static inline unsigned __float_as_uint(float value) { return brigade_cpu_cast<unsigned>(value); }
static inline int __float_as_int(float value) { return brigade_cpu_cast<int>(value); }
static inline float __uint_as_float(unsigned bits) { return brigade_cpu_cast<float>(bits); }
static inline float __int_as_float(int bits) { return brigade_cpu_cast<float>(bits); }
static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
static inline int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
static inline int __clz(int bits) { return bits ? __builtin_clz(bits) : 32; }
static inline int __ffs(int bits) { return __builtin_ffs(bits); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline float rsqrtf(float value) { return 1.0f / sqrtf(value); }
// The C library has functions of these names.
#define __expf expf
#define __logf logf
#define __powf powf
#define __sinf sinf
#define __cosf cosf
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fadd_rn(float a, float b) { volatile float r = a + b; return r; }
static inline float __fmul_rn(float a, float b) { volatile float r = a * b; return r; }
static inline float __frcp_rn(float value) { return 1.0f / value; }
static inline float __frsqrt_rn(float value) { return 1.0f / sqrtf(value); }
static inline float __fsqrt_rn(float value) { return sqrtf(value); }
static inline float __saturatef(float value) { return value < 0 ? 0 : value > 1 ? 1 : value; }
template <typename T> static inline T min(T a, std::common_type_t<T> b) { return b < a ? b : a; }
template <typename T> static inline T max(T a, std::common_type_t<T> b) { return a < b ? b : a; }
