// What kernels call: where a thread is, barriers and shuffles, fences, atomics, loads and stores,
// and arithmetic.
#pragma once

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
static inline unsigned __ballot_sync(unsigned mask, int vote) {
    return brigade_cpu::ballot(mask, vote != 0);
}
static inline int __any_sync(unsigned mask, int vote) {
    return brigade_cpu::ballot(mask, vote != 0) != 0;
}
static inline int __all_sync(unsigned mask, int vote) {
    return brigade_cpu::ballot(mask, vote == 0) == 0;
}
template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
    unsigned me = brigade_cpu::fiber().lane;
    return brigade_cpu::exchange(mask, value, (me & ~(width - 1)) + (lane & (width - 1)));
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    unsigned me = brigade_cpu::fiber().lane, other = me ^ bits;
    bool within = (other & ~(width - 1)) <= (me & ~(width - 1));
    return brigade_cpu::exchange(mask, value, within ? other : me);
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    unsigned me = brigade_cpu::fiber().lane, place = me & (width - 1);
    return brigade_cpu::exchange(mask, value, place + by < (unsigned)width ? me + by : me);
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
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
    } while (!__atomic_compare_exchange_n(bits, &before, after, false, __ATOMIC_ACQ_REL,
                                          __ATOMIC_RELAXED));
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
template <typename T>
static inline T atomicCAS(T *address, std::common_type_t<T> expected, std::common_type_t<T> value) {
    __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_ACQ_REL,
                                __ATOMIC_ACQUIRE);
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
