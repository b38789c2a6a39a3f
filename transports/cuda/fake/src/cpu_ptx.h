// PTX's instructions as functions of C++, each by its name with `_` for `.`: what `ptx.rs` makes of
// what NVRTC compiled. A register is so many bits, whatever they mean. An instruction that is not
// here does not compile, and its name is in what the compiler says.
//
// Where NVIDIA's manual (PTX ISA) leaves the last bits of a result open (`.approx`), the C
// library's are taken; a NaN that is made is the one number that devices make.
#pragma once

#include <cfenv>
#include <limits>

typedef uint8_t b8;
typedef uint16_t b16;
typedef uint32_t b32;
typedef uint64_t b64;
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t s8;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;
typedef bool pred;
// Registers of floats, by their bits.
typedef uint32_t f32;
typedef uint64_t f64;

#define PTX static inline __attribute__((always_inline))

PTX float as_float(b32 bits) { return brigade_cpu_cast<float>(bits); }
PTX double as_double(b64 bits) { return brigade_cpu_cast<double>(bits); }
PTX f32 of_float(float value) {
    return value != value ? 0x7fffffffu : brigade_cpu_cast<b32>(value);
}
PTX f64 of_double(double value) { return brigade_cpu_cast<b64>(value); }

// ---- memory ----

// A device refuses an address that is no multiple of what moves at once, and ends the context.
PTX b64 aligned(b64 at, unsigned bytes) {
    if (at % bytes == 0) return at;
    fprintf(stderr, "a kernel moves %u bytes at once at %p, where they are not aligned\n", bytes,
            (void *)at);
    abort();
}

// A block's shared memory: what its kernel declares, what several kernels have, and what its launch
// says. A block has one thread of the system.
constexpr unsigned SHARED_BYTES = 48 * 1024;
alignas(128) static thread_local char shared_room[3 * SHARED_BYTES];

// Its addresses fit into 32 bits, and registers of so many may have only that part of them.
PTX b64 of_shared(b64 at) {
    const b64 start = (b64)shared_room, offset = (b32)((b32)at - (b32)start);
    if (offset < sizeof(shared_room)) return start + offset;
    fprintf(stderr, "a kernel goes beyond its shared memory\n");
    abort();
}

template <typename T> PTX T load(b64 at) { return *(const T *)at; }
template <typename T> PTX void store(b64 at, T value) { *(T *)at = value; }
template <typename T> PTX T load_acquire(b64 at) {
    brigade_cpu::glance();
    return __atomic_load_n((const T *)at, __ATOMIC_ACQUIRE);
}
template <typename T> PTX T load_relaxed(b64 at) {
    brigade_cpu::glance();
    return __atomic_load_n((const T *)at, __ATOMIC_RELAXED);
}
template <typename T> PTX void store_release(b64 at, T value) {
    __atomic_store_n((T *)at, value, __ATOMIC_RELEASE);
}
template <typename T> PTX void store_relaxed(b64 at, T value) {
    __atomic_store_n((T *)at, value, __ATOMIC_RELAXED);
}
template <typename T> PTX T atom_add(b64 at, T by) {
    return __atomic_fetch_add((T *)at, by, __ATOMIC_ACQ_REL);
}

PTX void fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// ---- the lanes of a warp ----

// A lane asks another one of its segment, or itself where that is beyond the bound.
PTX b32 asked(b32 value, s32 lane, bool is_there, b32 mask, pred *told) {
    if (told) *told = is_there;
    return brigade_cpu::exchange(mask, value, is_there ? lane : brigade_cpu::fiber().lane);
}
PTX b32 segment(b32 shape, b32 lane) { return shape >> 8 & 31 & lane; }
PTX s32 bound(b32 shape, b32 lane) { return segment(shape, lane) | (shape & 31 & ~(shape >> 8)); }
PTX b32 shfl_sync_bfly_b32(b32 value, b32 by, b32 shape, b32 mask, pred *told) {
    const s32 me = brigade_cpu::fiber().lane, other = me ^ (by & 31);
    return asked(value, other, other <= bound(shape, me), mask, told);
}
PTX b32 shfl_sync_down_b32(b32 value, b32 by, b32 shape, b32 mask, pred *told) {
    const s32 me = brigade_cpu::fiber().lane, other = me + (by & 31);
    return asked(value, other, other <= bound(shape, me), mask, told);
}
PTX b32 shfl_sync_up_b32(b32 value, b32 by, b32 shape, b32 mask, pred *told) {
    const s32 me = brigade_cpu::fiber().lane, other = me - (by & 31);
    return asked(value, other, other >= bound(shape, me), mask, told);
}
PTX b32 shfl_sync_idx_b32(b32 value, b32 lane, b32 shape, b32 mask, pred *told) {
    const s32 me = brigade_cpu::fiber().lane;
    const s32 other = segment(shape, me) | (lane & 31 & ~(shape >> 8));
    return asked(value, other, other <= bound(shape, me), mask, told);
}
PTX b32 vote_sync_ballot_b32(pred vote, b32 mask) { return brigade_cpu::ballot(mask, vote); }
PTX pred vote_sync_any_pred(pred vote, b32 mask) { return brigade_cpu::ballot(mask, vote) != 0; }
PTX pred vote_sync_all_pred(pred vote, b32 mask) { return brigade_cpu::ballot(mask, !vote) == 0; }

// ---- whole numbers ----

#define EACH_WIDTH(DO) DO(s16, b16) DO(u16, b16) DO(s32, b32) DO(u32, b32) DO(s64, b64) DO(u64, b64)

// A division by zero has no result that a program may use.
#define PTX_ARITHMETIC(T, B)                                                                    \
    PTX B add_##T(B a, B b) { return (B)(a + b); }                                              \
    PTX B sub_##T(B a, B b) { return (B)(a - b); }                                              \
    PTX B mul_lo_##T(B a, B b) { return (B)((b64)a * b); }                                      \
    PTX B mad_lo_##T(B a, B b, B c) { return (B)((b64)a * b + c); }                             \
    PTX B mul_hi_##T(T a, T b) {                                                                \
        using Wide = std::conditional_t<T(-1) < 0, __int128, unsigned __int128>;                \
        return (B)((Wide)a * b >> 8 * sizeof(T));                                               \
    }                                                                                           \
    PTX B div_##T(T a, T b) { return b == 0 ? (B)~0 : (B)((__int128)a / b); }                   \
    PTX B rem_##T(T a, T b) { return b == 0 ? (B)~0 : (B)((__int128)a % b); }                   \
    PTX B min_##T(T a, T b) { return (B)(b < a ? b : a); }                                      \
    PTX B max_##T(T a, T b) { return (B)(a < b ? b : a); }                                      \
    PTX B neg_##T(B a) { return (B)-a; }                                                        \
    PTX B abs_##T(T a) { return a < 0 ? (B)-(B)a : (B)a; }                                         \
    PTX B shr_##T(T a, b32 by) {                                                                \
        return by < 8 * sizeof(T) ? (B)(a >> by) : a < 0 ? (B)~0 : (B)0;                        \
    }                                                                                           \
    PTX B bfe_##T(T a, b32 from, b32 count) {                                                   \
        from &= 0xff, count &= 0xff;                                                            \
        if (count == 0) return 0;                                                               \
        if (from >= 8 * sizeof(T)) return a < 0 ? (B)~0 : (B)0;                                 \
        if (count >= 8 * sizeof(T) - from) return (B)(a >> from);                               \
        const b32 above = 8 * sizeof(T) - from - count;                                         \
        return (B)((T)((B)a << above) >> (above + from));                                       \
    }                                                                                           \
    PTX pred setp_lt_##T(T a, T b) { return a < b; }                                            \
    PTX pred setp_le_##T(T a, T b) { return a <= b; }                                           \
    PTX pred setp_gt_##T(T a, T b) { return a > b; }                                            \
    PTX pred setp_ge_##T(T a, T b) { return a >= b; }
EACH_WIDTH(PTX_ARITHMETIC)

#define EACH_KIND(DO) EACH_WIDTH(DO) DO(b16, b16) DO(b32, b32) DO(b64, b64)
#define PTX_CHOICE(T, B)                                                                        \
    PTX pred setp_eq_##T(B a, B b) { return a == b; }                                           \
    PTX pred setp_ne_##T(B a, B b) { return a != b; }                                           \
    PTX B selp_##T(B a, B b, pred first) { return first ? a : b; }
EACH_KIND(PTX_CHOICE)
PTX f32 selp_f32(f32 a, f32 b, pred first) { return first ? a : b; }
PTX f64 selp_f64(f64 a, f64 b, pred first) { return first ? a : b; }

#define PTX_BITS(B)                                                                             \
    PTX B bfi_##B(B a, B b, b32 from, b32 count) {                                              \
        from &= 0xff, count &= 0xff;                                                            \
        if (count == 0 || from >= 8 * sizeof(B)) return b;                                      \
        const B ones = count >= 8 * sizeof(B) ? (B)~(B)0 : (B)(((B)1 << count) - 1);            \
        return (B)((b & ~(B)(ones << from)) | (a & ones) << from);                              \
    }                                                                                           \
    PTX B and_##B(B a, B b) { return a & b; }                                                   \
    PTX B or_##B(B a, B b) { return a | b; }                                                    \
    PTX B xor_##B(B a, B b) { return a ^ b; }                                                   \
    PTX B shl_##B(B a, b32 by) { return by < 8 * sizeof(B) ? (B)(a << by) : (B)0; }             \
    PTX B not_##B(B a) { return (B)~a; }
PTX_BITS(b16)
PTX_BITS(b32)
PTX_BITS(b64)
PTX pred and_pred(pred a, pred b) { return a && b; }
PTX pred or_pred(pred a, pred b) { return a || b; }
PTX pred xor_pred(pred a, pred b) { return a != b; }
PTX pred not_pred(pred a) { return !a; }

PTX b32 mul_wide_u16(u16 a, u16 b) { return (b32)a * b; }
PTX b32 mul_wide_s16(s16 a, s16 b) { return (b32)((s32)a * b); }
PTX b64 mul_wide_u32(u32 a, u32 b) { return (b64)a * b; }
PTX b64 mul_wide_s32(s32 a, s32 b) { return (b64)((s64)a * b); }
PTX b64 mad_wide_u32(u32 a, u32 b, b64 c) { return (b64)a * b + c; }
PTX b64 mad_wide_s32(s32 a, s32 b, b64 c) { return (b64)((s64)a * b) + c; }
// Four bytes of eight, each named by four bits, of which the first asks for its sign alone.
PTX b32 prmt_b32(b32 a, b32 b, b32 choice) {
    const b64 all = (b64)b << 32 | a;
    b32 result = 0;
    for (unsigned at = 0; at < 4; at++) {
        const b32 which = choice >> 4 * at & 15, byte = all >> 8 * (which & 7) & 0xff;
        result |= (which & 8 ? (byte & 0x80 ? 0xff : 0) : byte) << 8 * at;
    }
    return result;
}
PTX b32 popc_b32(b32 a) { return __builtin_popcount(a); }
PTX b32 popc_b64(b64 a) { return __builtin_popcountll(a); }
PTX b32 clz_b32(b32 a) { return a ? __builtin_clz(a) : 32; }
PTX b32 clz_b64(b64 a) { return a ? __builtin_clzll(a) : 64; }

// What is narrower than its register stands there with the sign that its type has.
#define PTX_CONVERSION(D, S) \
    PTX D cvt_##D##_##S(S a) { return (D)a; }
#define PTX_CONVERSIONS(D)                                                                      \
    PTX_CONVERSION(D, s8) PTX_CONVERSION(D, u8) PTX_CONVERSION(D, s16) PTX_CONVERSION(D, u16)   \
    PTX_CONVERSION(D, s32) PTX_CONVERSION(D, u32) PTX_CONVERSION(D, s64) PTX_CONVERSION(D, u64)
PTX_CONVERSIONS(s8) PTX_CONVERSIONS(u8) PTX_CONVERSIONS(s16) PTX_CONVERSIONS(u16)
PTX_CONVERSIONS(s32) PTX_CONVERSIONS(u32) PTX_CONVERSIONS(s64) PTX_CONVERSIONS(u64)

PTX b64 pack_64(b32 low, b32 high) { return (b64)high << 32 | low; }
PTX b32 pack_32(b16 low, b16 high) { return (b32)high << 16 | low; }

// ---- floats ----

#define PTX_FLOATS(F, as, of)                                                                   \
    PTX F add_rn_##F(F a, F b) { return of(as(a) + as(b)); }                                    \
    PTX F sub_rn_##F(F a, F b) { return of(as(a) - as(b)); }                                    \
    PTX F mul_rn_##F(F a, F b) { return of(as(a) * as(b)); }                                    \
    PTX F add_##F(F a, F b) { return add_rn_##F(a, b); }                                        \
    PTX F sub_##F(F a, F b) { return sub_rn_##F(a, b); }                                        \
    PTX F mul_##F(F a, F b) { return mul_rn_##F(a, b); }                                        \
    PTX F div_rn_##F(F a, F b) { return of(as(a) / as(b)); }                                    \
    PTX F rcp_rn_##F(F a) { return of(1 / as(a)); }                                             \
    PTX F sqrt_rn_##F(F a) { return of(std::sqrt(as(a))); }                                     \
    PTX F fma_rn_##F(F a, F b, F c) { return of(std::fma(as(a), as(b), as(c))); }               \
    PTX F min_##F(F a, F b) {                                                                   \
        if (as(a) != as(a) || as(b) != as(b)) return of(as(a) != as(a) ? as(b) : as(a));        \
        return as(a) == as(b) ? a | b : as(a) < as(b) ? a : b;                                  \
    }                                                                                           \
    PTX F max_##F(F a, F b) {                                                                   \
        if (as(a) != as(a) || as(b) != as(b)) return of(as(a) != as(a) ? as(b) : as(a));        \
        return as(a) == as(b) ? a & b : as(a) > as(b) ? a : b;                                  \
    }                                                                                           \
    PTX F mov_##F(F a) { return a; }                                                            \
    PTX F neg_##F(F a) { return a ^ (F)1 << (8 * sizeof(F) - 1); }                              \
    PTX F abs_##F(F a) { return a & ~((F)1 << (8 * sizeof(F) - 1)); }                           \
    PTX F copysign_##F(F sign, F value) { return abs_##F(value) | (sign ^ abs_##F(sign)); }     \
    PTX pred setp_eq_##F(F a, F b) { return as(a) == as(b); }                                   \
    PTX pred setp_lt_##F(F a, F b) { return as(a) < as(b); }                                    \
    PTX pred setp_le_##F(F a, F b) { return as(a) <= as(b); }                                   \
    PTX pred setp_gt_##F(F a, F b) { return as(a) > as(b); }                                    \
    PTX pred setp_ge_##F(F a, F b) { return as(a) >= as(b); }                                   \
    PTX pred setp_nan_##F(F a, F b) { return std::isunordered(as(a), as(b)); }                  \
    PTX pred setp_num_##F(F a, F b) { return !setp_nan_##F(a, b); }                             \
    PTX pred setp_ne_##F(F a, F b) { return setp_num_##F(a, b) && as(a) != as(b); }             \
    PTX pred setp_equ_##F(F a, F b) { return !setp_ne_##F(a, b); }                              \
    PTX pred setp_neu_##F(F a, F b) { return !setp_eq_##F(a, b); }                              \
    PTX pred setp_ltu_##F(F a, F b) { return !setp_ge_##F(a, b); }                              \
    PTX pred setp_leu_##F(F a, F b) { return !setp_gt_##F(a, b); }                              \
    PTX pred setp_gtu_##F(F a, F b) { return !setp_le_##F(a, b); }                              \
    PTX pred setp_geu_##F(F a, F b) { return !setp_lt_##F(a, b); }
PTX_FLOATS(f32, as_float, of_float)
PTX_FLOATS(f64, as_double, of_double)

// A number too small for its mantissa's first place is zero, with its sign.
PTX float flushed(float value) {
    return std::fabs(value) < 0x1p-126f ? std::copysign(0.f, value) : value;
}

static __attribute__((noinline)) f32 fma_rm_f32(f32 a, f32 b, f32 c) {
    const int before = fegetround();
    fesetround(FE_DOWNWARD);
    // Volatile, so that nothing of it is done before or after.
    volatile float x = as_float(a), y = as_float(b), z = as_float(c);
    volatile float result = fmaf(x, y, z);
    fesetround(before);
    return of_float(result);
}
PTX f32 ex2_approx_ftz_f32(f32 a) { return of_float(flushed(exp2f(flushed(as_float(a))))); }
PTX f32 rcp_approx_ftz_f32(f32 a) { return of_float(flushed(1 / flushed(as_float(a)))); }

PTX f32 cvt_f32_f16(b16 a) { return of_float((float)brigade_cpu_cast<_Float16>(a)); }
PTX b16 cvt_rn_f16_f32(f32 a) {
    return setp_nan_f32(a, a) ? 0x7fff : brigade_cpu_cast<b16>((_Float16)as_float(a));
}
PTX b16 cvt_rn_bf16_f32(f32 a) {
    return setp_nan_f32(a, a) ? 0x7fff : (b16)((a + 0x7fff + (a >> 16 & 1)) >> 16);
}
PTX f64 cvt_f64_f32(f32 a) { return of_double(as_float(a)); }
PTX f32 cvt_rn_f32_f64(f64 a) { return of_float((float)as_double(a)); }
PTX f32 cvt_sat_f32_f32(f32 a) {
    // A NaN becomes zero.
    return of_float(as_float(a) > 0 ? std::fmin(as_float(a), 1.f) : 0.f);
}
#define PTX_FLOAT_OF(S)                                                                         \
    PTX f32 cvt_rn_f32_##S(S a) { return of_float((float)a); }                                  \
    PTX f64 cvt_rn_f64_##S(S a) { return of_double((double)a); }
PTX_FLOAT_OF(u8) PTX_FLOAT_OF(s8) PTX_FLOAT_OF(u16) PTX_FLOAT_OF(s16) PTX_FLOAT_OF(u32)
PTX_FLOAT_OF(s32) PTX_FLOAT_OF(u64) PTX_FLOAT_OF(s64)

// Towards zero; what is beyond the type is its end. A NaN is zero where both are of 32 bits, else
// the first bit alone.
template <typename D, bool IS_WIDE> PTX D truncated(double value) {
    using Bits = std::make_unsigned_t<D>;
    if (value != value) return IS_WIDE ? (D)((Bits)1 << (8 * sizeof(D) - 1)) : 0;
    using Limits = std::numeric_limits<D>;
    if (value >= std::ldexp(1.0, Limits::digits)) return Limits::max();
    if (value <= (double)Limits::min()) return Limits::min();
    return (D)value;
}
#define PTX_TRUNCATION(D)                                                                       \
    PTX D cvt_rzi_##D##_f32(f32 a) { return truncated<D, sizeof(D) == 8>(as_float(a)); }        \
    PTX D cvt_rzi_##D##_f64(f64 a) { return truncated<D, true>(as_double(a)); }
PTX_TRUNCATION(u32) PTX_TRUNCATION(s32) PTX_TRUNCATION(u64) PTX_TRUNCATION(s64)
