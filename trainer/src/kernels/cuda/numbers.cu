// What products read (weights, and activations inside of blocks) is `act`: f32, or bf16 where
// NARROW is defined, or f16 where HALF is. Sums, the residual stream, statistics and gradients of
// weights are f32.
//
// Every kernel is right with any number of blocks, and with any power of two of threads in each up
// to 256, one among them; numbers are added in an order that the shape alone decides, or, where
// they are whole, in any.

#ifdef HALF
#include "brigade.cuh"
#endif

typedef unsigned int u32;
typedef unsigned long long u64;

union Bits {
    float number;
    u32 bits;
};

struct Bf16 {
    unsigned short bits;
};

#ifdef HALF
typedef f16 act;
#elif defined(NARROW)
typedef Bf16 act;
#else
typedef float act;
#endif

__device__ inline float wide(float number) { return number; }

__device__ inline float wide(Bf16 narrow) {
    Bits as;
    as.bits = (u32)narrow.bits << 16;
    return as.number;
}

__device__ inline void put(float* to, float number) { *to = number; }

// To the nearest, and to even between two; a number that is none stays none.
__device__ inline void put(Bf16* to, float number) {
    Bits as;
    as.number = number;
    u32 rounded = as.bits + 0x7fff + ((as.bits >> 16) & 1);
    to->bits = (unsigned short)((number == number ? rounded : as.bits | 0x400000) >> 16);
}

#ifdef HALF
__device__ inline float wide(f16 narrow) { return to_float(narrow); }
__device__ inline void put(f16* to, float number) { *to = from_float<f16>(number); }
#endif

// What is added to this has been rounded before.
__device__ inline float rounded_product(float a, float b) { return __fmul_rn(a, b); }

// Places of a sum that has not been rounded, as the host has it.
enum { DIGITS = 19 };

// First element of this thread, and how far it is to its next, where elements are independent.
__device__ inline u64 first_element() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline u64 stride_of_elements() { return (u64)gridDim.x * blockDim.x; }

// The sum over the threads of a block, on all of them.
template <typename Number>
__device__ Number sum_of_block(Number value, Number* room) {
    __syncthreads();
    room[threadIdx.x] = value;
    __syncthreads();
    for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) room[threadIdx.x] += room[threadIdx.x + half];
        __syncthreads();
    }
    return room[0];
}

// The largest over the threads of a block, on all of them.
__device__ inline float largest_of_block(float value, float* room) {
    __syncthreads();
    room[threadIdx.x] = value;
    __syncthreads();
    for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            room[threadIdx.x] = fmaxf(room[threadIdx.x], room[threadIdx.x + half]);
        }
        __syncthreads();
    }
    return room[0];
}
