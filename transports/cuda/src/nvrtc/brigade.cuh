// What kernels here need, for compilers of devices and of processors alike: numbers in every width,
// narrow floats, and loads and stores that other devices, other processes and the host see in
// order. A kernel that takes these from here, and has no assembly of its own, also runs on a
// processor in tests.
//
// Whoever waits for somebody else's store does so in a loop around one of the loads below that end
// in _acquire, _volatile or _relaxed, or calls pause() in it: on a processor those let others run.
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

#define BRIGADE_INLINE static __device__ __forceinline__

// Sixteen bytes, which move at once.
struct __align__(16) Pack16 {
    u32 x, y, z, w;
};

// Floats of 16 and 8 bits, by their bits.
struct __align__(2) bf16 {
    u16 bits;
};
struct __align__(2) f16 {
    u16 bits;
};
struct f8e4m3 {
    u8 bits;
};
struct f8e5m2 {
    u8 bits;
};

BRIGADE_INLINE u32 float_bits(float value) { return __float_as_uint(value); }
BRIGADE_INLINE float bits_float(u32 bits) { return __uint_as_float(bits); }

// ---- widening: exact ----

BRIGADE_INLINE float to_float(float value) { return value; }
BRIGADE_INLINE float to_float(bf16 value) { return bits_float((u32)value.bits << 16); }

// magnitude: the bits without the sign; mantissa_bits and bias: of the format.
BRIGADE_INLINE float widen8(u32 bits, u32 mantissa_bits, u32 bias, u32 infinity, u32 nan_from) {
    u32 magnitude = bits & 0x7f;
    float value;
    if (magnitude >= nan_from) {
        value = bits_float(0x7fc00000);
    } else if (magnitude == infinity) {
        value = bits_float(0x7f800000);
    } else if (magnitude < (1u << mantissa_bits)) {
        value = (float)magnitude * bits_float((127 + 1 - bias - mantissa_bits) << 23);
    } else {
        value = bits_float((magnitude << (23 - mantissa_bits)) + ((127 - bias) << 23));
    }
    return bits & 0x80 ? -value : value;
}
BRIGADE_INLINE float to_float(f8e4m3 value) { return widen8(value.bits, 3, 7, 0x80, 0x7f); }
BRIGADE_INLINE float to_float(f8e5m2 value) { return widen8(value.bits, 2, 15, 0x7c, 0x7d); }

// ---- narrowing: to nearest, ties to even; 8 bits saturate, as reductions on the host do ----

BRIGADE_INLINE u8 narrow8(float value, u32 mantissa_bits, u32 bias, u32 largest, u32 nan) {
    u32 bits = float_bits(value);
    u32 sign = bits >> 24 & 0x80;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return (u8)nan;
    u32 shift = 23 - mantissa_bits;
    u32 magnitude;
    if (bits >= (127 + 1 - bias) << 23) {
        bits += (1u << (shift - 1)) - 1 + (bits >> shift & 1);
        magnitude = (bits >> shift) - ((127 - bias) << mantissa_bits);
    } else {
        // Adding a number whose last place is the format's smallest step rounds to that step.
        u32 whole = (127 + 1 - bias + 23 - mantissa_bits) << 23;
        magnitude = float_bits(bits_float(bits) + bits_float(whole)) - whole;
    }
    return (u8)(sign | (magnitude > largest ? largest : magnitude));
}

template <typename T> BRIGADE_INLINE T from_float(float value);
template <> __device__ __forceinline__ float from_float<float>(float value) { return value; }
template <> __device__ __forceinline__ f8e4m3 from_float<f8e4m3>(float value) {
    f8e4m3 narrow;
    narrow.bits = narrow8(value, 3, 7, 0x7e, 0x7f);
    return narrow;
}
template <> __device__ __forceinline__ f8e5m2 from_float<f8e5m2>(float value) {
    f8e5m2 narrow;
    narrow.bits = narrow8(value, 2, 15, 0x7b, 0x7e);
    return narrow;
}

#ifdef BRIGADE_CPU

BRIGADE_INLINE float to_float(f16 value) {
    _Float16 half;
    __builtin_memcpy(&half, &value.bits, 2);
    return (float)half;
}
template <> __device__ __forceinline__ f16 from_float<f16>(float value) {
    _Float16 half = (_Float16)value;
    f16 narrow;
    __builtin_memcpy(&narrow.bits, &half, 2);
    if (value != value) narrow.bits = 0x7fff;
    return narrow;
}
template <> __device__ __forceinline__ bf16 from_float<bf16>(float value) {
    u32 bits = float_bits(value);
    bf16 narrow;
    narrow.bits = value != value ? 0x7fff : (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    return narrow;
}

BRIGADE_INLINE void pause() { brigade_cpu::stall(); }
BRIGADE_INLINE void fence_sys() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
BRIGADE_INLINE u64 now_ns() { return brigade_cpu::now_ns(); }

#define BRIGADE_WORDS(T, name)                                                                  \
    BRIGADE_INLINE T load_acquire(const T *address) {                                           \
        brigade_cpu::glance();                                                                  \
        return __atomic_load_n(address, __ATOMIC_ACQUIRE);                                      \
    }                                                                                           \
    BRIGADE_INLINE T load_relaxed(const T *address) {                                           \
        brigade_cpu::glance();                                                                  \
        return __atomic_load_n(address, __ATOMIC_RELAXED);                                      \
    }                                                                                           \
    BRIGADE_INLINE void store_release(T *address, T value) {                                    \
        __atomic_store_n(address, value, __ATOMIC_RELEASE);                                     \
    }                                                                                           \
    BRIGADE_INLINE void store_relaxed(T *address, T value) {                                    \
        __atomic_store_n(address, value, __ATOMIC_RELAXED);                                     \
    }                                                                                           \
    BRIGADE_INLINE T fetch_add(T *address, T value) {                                           \
        return __atomic_fetch_add(address, value, __ATOMIC_ACQ_REL);                            \
    }

BRIGADE_INLINE Pack16 load16_stream(const void *address) { return *(const Pack16 *)address; }
BRIGADE_INLINE void store16_stream(void *address, Pack16 pack) { *(Pack16 *)address = pack; }

#else

BRIGADE_INLINE float to_float(f16 value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
}
template <> __device__ __forceinline__ f16 from_float<f16>(float value) {
    f16 narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(value));
    return narrow;
}
template <> __device__ __forceinline__ bf16 from_float<bf16>(float value) {
    bf16 narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(value));
    return narrow;
}

BRIGADE_INLINE void pause() { __nanosleep(20); }
BRIGADE_INLINE void fence_sys() { __threadfence_system(); }
BRIGADE_INLINE u64 now_ns() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

#define BRIGADE_WORDS(T, name)                                                                  \
    BRIGADE_INLINE T load_acquire(const T *address) {                                           \
        T value;                                                                                \
        asm volatile("ld.acquire.sys.global." name " %0, [%1];"                                 \
                     : BRIGADE_OUT_##T(value) : "l"(address) : "memory");                       \
        return value;                                                                           \
    }                                                                                           \
    BRIGADE_INLINE T load_relaxed(const T *address) {                                           \
        T value;                                                                                \
        asm volatile("ld.relaxed.sys.global." name " %0, [%1];"                                 \
                     : BRIGADE_OUT_##T(value) : "l"(address) : "memory");                       \
        return value;                                                                           \
    }                                                                                           \
    BRIGADE_INLINE void store_release(T *address, T value) {                                    \
        asm volatile("st.release.sys.global." name " [%0], %1;"                                 \
                     :: "l"(address), BRIGADE_IN_##T(value) : "memory");                        \
    }                                                                                           \
    BRIGADE_INLINE void store_relaxed(T *address, T value) {                                    \
        asm volatile("st.relaxed.sys.global." name " [%0], %1;"                                 \
                     :: "l"(address), BRIGADE_IN_##T(value) : "memory");                        \
    }                                                                                           \
    BRIGADE_INLINE T fetch_add(T *address, T value) {                                           \
        T before;                                                                               \
        asm volatile("atom.acq_rel.sys.global.add." name " %0, [%1], %2;"                       \
                     : BRIGADE_OUT_##T(before) : "l"(address), BRIGADE_IN_##T(value)            \
                     : "memory");                                                               \
        return before;                                                                          \
    }
#define BRIGADE_OUT_u32(value) "=r"(value)
#define BRIGADE_OUT_u64(value) "=l"(value)
#define BRIGADE_IN_u32(value) "r"(value)
#define BRIGADE_IN_u64(value) "l"(value)

// For bytes that are touched once: they need not stay in the caches.
BRIGADE_INLINE Pack16 load16_stream(const void *address) {
    Pack16 pack;
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pack.x), "=r"(pack.y), "=r"(pack.z), "=r"(pack.w)
                 : "l"(address) : "memory");
    return pack;
}
BRIGADE_INLINE void store16_stream(void *address, Pack16 pack) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(address), "r"(pack.x), "r"(pack.y), "r"(pack.z), "r"(pack.w)
                 : "memory");
}

#endif

// All of them are for memory of devices, and pinned memory by its address on the device, and are
// seen in order by everybody on the machine.
BRIGADE_WORDS(u32, "u32")
BRIGADE_WORDS(u64, "u64")
