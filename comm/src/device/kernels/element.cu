// One element: how it is widened, folded, and rounded back. TYPE is the number of the type on the
// wire. Narrow floats are folded in f32 and rounded once, at the end; NaN results are canonical, a
// minimum with a NaN is NaN, and minus zero is less than plus zero: as the processor folds.

#define SUM 0
#define PROD 1
#define MAX 2
#define MIN 3
#define AVG 4
#define BAND 5
#define BOR 6
#define BXOR 7
#define PREMULSUM 8

union Word {
    float number;
    u32 bits;
};

DEVICE float of_bits(u32 bits) {
    Word word;
    word.bits = bits;
    return word.number;
}

DEVICE u32 to_bits(float number) {
    Word word;
    word.number = number;
    return word.bits;
}

// Formats of 8 and 16 bits: MANTISSA bits, BIAS, the least magnitude that is not finite; what is
// too large becomes LIMIT.
template <int WIDTH, int MANTISSA, int BIAS, u32 SPECIAL, u32 LIMIT, u32 NAN_BITS>
struct Narrow {
    DEVICE float decode(u32 bits) {
        u32 sign = bits >> (WIDTH - 1) << 31;
        u32 magnitude = bits & ((1u << (WIDTH - 1)) - 1);
        u32 moved = magnitude << (23 - MANTISSA);
        u32 normal = moved + ((u32)(127 - BIAS) << 23);
        float least = of_bits((u32)(1 - BIAS - MANTISSA + 127) << 23);
        float tiny = (float)(int)magnitude * least;
        u32 finite = magnitude < (1u << MANTISSA) ? to_bits(tiny) : normal;
        return of_bits(sign | (magnitude >= SPECIAL ? moved | 0x7f800000u : finite));
    }

    DEVICE u32 encode(float value) {
        const int shift = 23 - MANTISSA;
        u32 bits = to_bits(value), sign = bits >> 31 << (WIDTH - 1);
        u32 magnitude = bits & 0x7fffffffu;
        u32 half = (1u << (shift - 1)) - 1;
        u32 rounded = (magnitude + half + ((magnitude >> shift) & 1)) >> shift;
        u32 normal = rounded - ((u32)(127 - BIAS) << MANTISSA);
        u32 magic = (u32)(24 - BIAS - MANTISSA + 127) << 23;
        u32 tiny = to_bits(of_bits(magnitude) + of_bits(magic)) - magic;
        bool is_tiny = magnitude < ((u32)(128 - BIAS) << 23);
        u32 finite = is_tiny ? tiny : (normal < LIMIT ? normal : LIMIT);
        return magnitude > 0x7f800000u ? NAN_BITS : (sign | finite);
    }
};

#if TYPE == 0
typedef u8 Stored;
typedef signed char Signed;
typedef int Wide;
#define INTEGER
#elif TYPE == 1
typedef u8 Stored;
typedef u8 Signed;
typedef u32 Wide;
#define INTEGER
#elif TYPE == 2
typedef u32 Stored;
typedef int Signed;
typedef int Wide;
#define INTEGER
#elif TYPE == 3
typedef u32 Stored;
typedef u32 Signed;
typedef u32 Wide;
#define INTEGER
#elif TYPE == 4
typedef u64 Stored;
typedef long long Signed;
typedef long long Wide;
#define INTEGER
#elif TYPE == 5
typedef u64 Stored;
typedef u64 Signed;
typedef u64 Wide;
#define INTEGER
#elif TYPE == 12
typedef u16 Stored;
typedef short Signed;
typedef int Wide;
#define INTEGER
#elif TYPE == 13
typedef u8 Stored;
typedef u8 Signed;
typedef u32 Wide;
#define TRUTH
#elif TYPE == 6
typedef u16 Stored;
typedef short Signed;
typedef float Wide;
#define INFINITE 0x7c00
#define CANONICAL 0x7e00
#elif TYPE == 9
typedef u16 Stored;
typedef short Signed;
typedef float Wide;
#define INFINITE 0x7f80
#define CANONICAL 0x7fc0
#elif TYPE == 7
typedef u32 Stored;
typedef int Signed;
typedef float Wide;
#define INFINITE 0x7f800000
#define CANONICAL 0x7fc00000u
#elif TYPE == 8
typedef u64 Stored;
typedef long long Signed;
typedef double Wide;
#define INFINITE 0x7ff0000000000000ll
#define CANONICAL 0x7ff8000000000000ull
#elif TYPE == 10
typedef u8 Stored;
typedef signed char Signed;
typedef float Wide;
typedef Narrow<8, 3, 7, 0x7f, 0x7e, 0x7f> Format;
#define INFINITE 0x7e
#define CANONICAL 0x7f
#elif TYPE == 11
typedef u8 Stored;
typedef signed char Signed;
typedef float Wide;
typedef Narrow<8, 2, 15, 0x7c, 0x7b, 0x7e> Format;
#define INFINITE 0x7c
#define CANONICAL 0x7e
#endif

#if TYPE == 6 && defined(BRIGADE_CPU)
typedef Narrow<16, 10, 15, 0x7c00, 0x7c00, 0x7e00> Format;
#endif

#if defined(INTEGER)
DEVICE Wide widen(Stored stored) {
    return (Wide)(Signed)stored;
}

DEVICE Stored narrow(Wide wide) {
    return (Stored)wide;
}
#elif defined(TRUTH)
DEVICE Wide widen(Stored stored) {
    return stored != 0;
}

DEVICE Stored narrow(Wide wide) {
    return wide != 0;
}
#elif TYPE == 7
DEVICE Wide widen(Stored stored) {
    return of_bits(stored);
}

DEVICE Stored narrow(Wide wide) {
    return wide != wide ? CANONICAL : to_bits(wide);
}
#elif TYPE == 8
union LongWord {
    double number;
    u64 bits;
};

DEVICE Wide widen(Stored stored) {
    LongWord word;
    word.bits = stored;
    return word.number;
}

DEVICE Stored narrow(Wide wide) {
    LongWord word;
    word.number = wide;
    return wide != wide ? CANONICAL : word.bits;
}
#elif TYPE == 9
DEVICE Wide widen(Stored stored) {
    return of_bits((u32)stored << 16);
}

DEVICE Stored narrow(Wide wide) {
    u32 bits = to_bits(wide);
    u32 rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return wide != wide ? CANONICAL : (Stored)(rounded >> 16);
}
#elif TYPE == 6 && !defined(BRIGADE_CPU)
DEVICE Wide widen(Stored stored) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(stored));
    return wide;
}

DEVICE Stored narrow(Wide wide) {
    u16 stored;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(stored) : "f"(wide));
    return wide != wide ? CANONICAL : stored;
}
#else
DEVICE Wide widen(Stored stored) {
    return Format::decode(stored);
}

DEVICE Stored narrow(Wide wide) {
    return (Stored)Format::encode(wide);
}
#endif

// What is the same for all elements of a call.
struct Scale {
    double factor;
    u32 ranks;
};

// Sums, products and what is made of them: held wide.
template <int OP>
struct Fold {
    typedef Wide Held;

    DEVICE Held first(Stored stored, const Scale& scale) {
        Wide wide = widen(stored);
#ifdef INTEGER
        if (OP == PREMULSUM) wide = (Wide)((u64)wide * (u64)(long long)scale.factor);
#elif !defined(TRUTH)
        if (OP == PREMULSUM) wide = widen(narrow(wide * (Wide)scale.factor));
#endif
        return wide;
    }

    DEVICE Held more(Held held, Stored stored, const Scale& scale) {
        Wide wide = first(stored, scale);
#ifdef INTEGER
        if (OP == PROD) return (Wide)((u64)held * (u64)wide);
        if (OP == BAND) return held & wide;
        if (OP == BOR) return held | wide;
        if (OP == BXOR) return held ^ wide;
        return (Wide)((u64)held + (u64)wide);
#elif defined(TRUTH)
        if (OP == PROD || OP == BAND) return held & wide;
        if (OP == BXOR) return held ^ wide;
        return held | wide;
#else
        if (OP == PROD) return held * wide;
        return held + wide;
#endif
    }

    DEVICE Stored last(Held held, const Scale& scale) {
#ifdef INTEGER
        // The sum has wrapped in the element's own width before it is divided.
        if (OP == AVG) return narrow(widen(narrow(held)) / (Wide)scale.ranks);
#elif !defined(TRUTH)
        if (OP == AVG) return narrow(held / (Wide)scale.ranks);
#endif
        return narrow(held);
    }
};

// The least and the greatest are one of the operands, whose bits stay as they are.
template <bool LEAST>
struct Extreme {
    typedef Stored Held;

    DEVICE Held first(Stored stored, const Scale&) {
#ifdef TRUTH
        return stored != 0;
#else
        return stored;
#endif
    }

    DEVICE Held more(Held held, Stored stored, const Scale&) {
#ifdef TRUTH
        return LEAST ? (held && stored) : (held || stored);
#elif defined(INTEGER)
        bool swap = LEAST ? (Signed)stored < (Signed)held : (Signed)stored > (Signed)held;
        return swap ? stored : held;
#else
        const int top = 8 * sizeof(Stored) - 1;
        const Signed magnitude = (Signed)(((Stored)1 << top) - 1);
        Signed a = (Signed)held, b = (Signed)stored;
        Signed key_a = (Signed)(a ^ ((a >> top) & magnitude));
        Signed key_b = (Signed)(b ^ ((b >> top) & magnitude));
        bool nan = (a & magnitude) > INFINITE || (b & magnitude) > INFINITE;
        bool swap = LEAST ? key_b < key_a : key_b > key_a;
        return nan ? (Stored)CANONICAL : (swap ? stored : held);
#endif
    }

    DEVICE Stored last(Held held, const Scale&) {
        return held;
    }
};

// Loads on their way at a time: narrow elements have many lanes, which cost registers.
#define WIDTH (sizeof(Stored) == 1 ? 4 : 8)
#define LANES (16 / (int)sizeof(Stored))
#define HALF_LANES (8 / (int)sizeof(Stored))

union Lanes {
    Vector vector;
    Stored lane[16 / sizeof(Stored)];
};

// Fold one vector of each of so many, in their order.
template <class F, int COUNT>
DEVICE Vector fold_vector(const Vector* vectors, const Scale& scale) {
    Lanes lanes, result;
    lanes.vector = vectors[0];
    typename F::Held held[LANES];
    UNROLL for (int lane = 0; lane < LANES; lane++) held[lane] = F::first(lanes.lane[lane], scale);
    UNROLL for (int k = 1; k < COUNT; k++) {
        lanes.vector = vectors[k];
        UNROLL for (int lane = 0; lane < LANES; lane++) {
            held[lane] = F::more(held[lane], lanes.lane[lane], scale);
        }
    }
    UNROLL for (int lane = 0; lane < LANES; lane++) {
        result.lane[lane] = F::last(held[lane], scale);
    }
    return result.vector;
}

// Call `RUN<F>(...)` with the fold of an operator. Where ONLY is defined there is code for that one
// only, which is quick to compile; 255 stands for none.
#if !defined(ONLY)
#if defined(INTEGER)
#define OF_SOME(RUN, ...)                                         \
    case AVG: RUN<Fold<AVG>>(__VA_ARGS__); break;                 \
    case PREMULSUM: RUN<Fold<PREMULSUM>>(__VA_ARGS__); break;     \
    case BAND: RUN<Fold<BAND>>(__VA_ARGS__); break;               \
    case BOR: RUN<Fold<BOR>>(__VA_ARGS__); break;                 \
    case BXOR: RUN<Fold<BXOR>>(__VA_ARGS__); break;
#elif defined(TRUTH)
#define OF_SOME(RUN, ...)                           \
    case BAND: RUN<Fold<BAND>>(__VA_ARGS__); break; \
    case BOR: RUN<Fold<BOR>>(__VA_ARGS__); break;   \
    case BXOR: RUN<Fold<BXOR>>(__VA_ARGS__); break;
#else
#define OF_SOME(RUN, ...)                         \
    case AVG: RUN<Fold<AVG>>(__VA_ARGS__); break; \
    case PREMULSUM: RUN<Fold<PREMULSUM>>(__VA_ARGS__); break;
#endif
#define WITH_OPERATOR(OPERATOR, RUN, ...)                  \
    switch (OPERATOR) {                                    \
        case SUM: RUN<Fold<SUM>>(__VA_ARGS__); break;      \
        case PROD: RUN<Fold<PROD>>(__VA_ARGS__); break;    \
        case MAX: RUN<Extreme<false>>(__VA_ARGS__); break; \
        case MIN: RUN<Extreme<true>>(__VA_ARGS__); break;  \
            OF_SOME(RUN, __VA_ARGS__)                      \
    }
#elif ONLY == 255
#define WITH_OPERATOR(OPERATOR, RUN, ...)
#elif ONLY == MAX || ONLY == MIN
#define WITH_OPERATOR(OPERATOR, RUN, ...) RUN<Extreme<ONLY == MIN>>(__VA_ARGS__);
#else
#define WITH_OPERATOR(OPERATOR, RUN, ...) RUN<Fold<ONLY>>(__VA_ARGS__);
#endif
