// The memory traffic of an AdamW step with next to no arithmetic: how fast a step could be.
//
//   cc -O3 -march=native -ffast-math -fopenmp -shared -fPIC traffic.c -o traffic.so
//
// The same arrays are read and written as in a step, in one pass, on OpenMP's threads.
#include <stddef.h>
#include <stdint.h>

static float widen(uint16_t half) {
    union { uint32_t bits; float number; } number = {(uint32_t)half << 16};
    return number.number;
}

static uint16_t cut(float number) {
    union { float number; uint32_t bits; } bits = {number};
    return (uint16_t)(bits.bits >> 16);
}

// 28 bytes an element: reads weight, gradient, mean, square; writes weight, mean, square.
void traffic_full(float *restrict weights, const float *restrict gradients, float *restrict mean,
                  float *restrict square, size_t count, int threads) {
#pragma omp parallel for simd schedule(static) num_threads(threads)
    for (size_t i = 0; i < count; i++) {
        float gradient = gradients[i] * 1e-9f;
        weights[i] += gradient;
        mean[i] += gradient;
        square[i] += gradient;
    }
}

// 28 bytes an element: the gradient is 2 bytes, and so is a copy of the weight.
void traffic_mixed(float *restrict weights, const uint16_t *restrict gradients,
                   float *restrict mean, float *restrict square, uint16_t *restrict narrowed,
                   size_t count, int threads) {
#pragma omp parallel for simd schedule(static) num_threads(threads)
    for (size_t i = 0; i < count; i++) {
        float gradient = widen(gradients[i]) * 1e-9f;
        weights[i] += gradient;
        mean[i] += gradient;
        square[i] += gradient;
        narrowed[i] = cut(weights[i]);
    }
}

// 22 bytes an element: the weight is 2 bytes, read and written.
void traffic_narrow(uint16_t *restrict weights, const uint16_t *restrict gradients,
                    float *restrict mean, float *restrict square, size_t count, int threads) {
#pragma omp parallel for simd schedule(static) num_threads(threads)
    for (size_t i = 0; i < count; i++) {
        float gradient = widen(gradients[i]) * 1e-9f;
        weights[i] = cut(widen(weights[i]) + gradient);
        mean[i] += gradient;
        square[i] += gradient;
    }
}
