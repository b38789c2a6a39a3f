// The least that kernels do: nothing, a copy, and a mark that is looked for afterwards.
#include "brigade.cuh"

extern "C" __global__ void nothing() {}

// Four loads are on their way before the first store.
extern "C" __global__ void __launch_bounds__(512)
copy16(Pack16 *target, const Pack16 *source, u64 count) {
    u64 step = (u64)gridDim.x * blockDim.x;
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (; at + 3 * step < count; at += 4 * step) {
        Pack16 a = load16_stream(source + at), b = load16_stream(source + at + step);
        Pack16 c = load16_stream(source + at + 2 * step), d = load16_stream(source + at + 3 * step);
        store16_stream(target + at, a);
        store16_stream(target + at + step, b);
        store16_stream(target + at + 2 * step, c);
        store16_stream(target + at + 3 * step, d);
    }
    for (; at < count; at += step) store16_stream(target + at, load16_stream(source + at));
}

extern "C" __global__ void add_one(u32 *numbers, u32 count) {
    for (u32 at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x)
        numbers[at] += 1;
}
