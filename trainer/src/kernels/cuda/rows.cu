// Kernels in which the elements of a row depend on each other: a block takes one row at a time.
// And sums over rows, slice by slice.

// Layer normalisation (Ba, Kiros and Hinton 2016). stats: [rows x 2], mean and inverse deviation.
extern "C" __global__ void layernorm(
    act* y, float* stats, const float* x, const act* gain, const act* bias, u32 width, u32 rows) {
    __shared__ float room[256];
    for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
        const float* from = x + (u64)row * width;
        act* to = y + (u64)row * width;
        float sum = 0.0f;
        for (u32 at = threadIdx.x; at < width; at += blockDim.x) sum += from[at];
        float mean = sum_of_block(sum, room) / width;
        float squares = 0.0f;
        for (u32 at = threadIdx.x; at < width; at += blockDim.x) {
            squares += (from[at] - mean) * (from[at] - mean);
        }
        float inverse = 1.0f / sqrtf(sum_of_block(squares, room) / width + 1e-5f);
        for (u32 at = threadIdx.x; at < width; at += blockDim.x) {
            put(&to[at], (from[at] - mean) * inverse * wide(gain[at]) + wide(bias[at]));
        }
        if (threadIdx.x == 0) {
            stats[2 * row] = mean;
            stats[2 * row + 1] = inverse;
        }
    }
}

// dx += inverse (g - mean(g) - n mean(g n)), with g = dy gain and n the normalised x.
extern "C" __global__ void layernorm_backward(
    float* dx, const float* dy, const float* x, const float* stats, const act* gain, u32 width,
    u32 rows) {
    __shared__ float room[256];
    for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
        u64 start = (u64)row * width;
        float mean = stats[2 * row], inverse = stats[2 * row + 1];
        float sum = 0.0f, product = 0.0f;
        for (u32 at = threadIdx.x; at < width; at += blockDim.x) {
            float g = dy[start + at] * wide(gain[at]);
            sum += g;
            product += g * ((x[start + at] - mean) * inverse);
        }
        float g_mean = sum_of_block(sum, room) / width;
        float gn_mean = sum_of_block(product, room) / width;
        for (u32 at = threadIdx.x; at < width; at += blockDim.x) {
            float normal = (x[start + at] - mean) * inverse;
            float g = dy[start + at] * wide(gain[at]);
            dx[start + at] += inverse * (g - g_mean - normal * gn_mean);
        }
    }
}

// Of each column the sums of dy n and of dy over each slice of the rows.
// partials: [2 x slices x width]
extern "C" __global__ void norm_slices(
    float* partials, const float* dy, const float* x, const float* stats, u32 rows, u32 width,
    u32 slices) {
    u64 len = (u64)slices * width;
    for (u64 at = first_element(); at < len; at += stride_of_elements()) {
        u32 column = at % width;
        u64 slice = at / width;
        float gain = 0.0f, bias = 0.0f;
        for (u64 row = rows * slice / slices; row < rows * (slice + 1) / slices; row++) {
            float d = dy[row * width + column];
            gain += d * ((x[row * width + column] - stats[2 * row]) * stats[2 * row + 1]);
            bias += d;
        }
        partials[at] = gain;
        partials[len + at] = bias;
    }
}

// Of each column the sum over each slice of the rows, which are `apart` numbers from each other.
// partials: [slices x width]
extern "C" __global__ void column_slices(
    float* partials, const act* dy, u32 rows, u32 width, u32 apart, u32 slices) {
    u64 len = (u64)slices * width;
    for (u64 at = first_element(); at < len; at += stride_of_elements()) {
        u32 column = at % width;
        u64 slice = at / width;
        float sum = 0.0f;
        for (u64 row = rows * slice / slices; row < rows * (slice + 1) / slices; row++) {
            sum += wide(dy[row * apart + column]);
        }
        partials[at] = sum;
    }
}

// Of each token the sum of its rows over each slice; a block takes one token and slice at a time.
// partials: [slices x vocab x width]
extern "C" __global__ void token_slices(
    float* partials, const float* dx, const u32* tokens, u32 rows, u32 width, u32 vocab,
    u32 slices) {
    for (u32 pair = blockIdx.x; pair < vocab * slices; pair += gridDim.x) {
        u32 token = pair % vocab;
        u64 slice = pair / vocab;
        u64 first = rows * slice / slices, end = rows * (slice + 1) / slices;
        for (u32 column = threadIdx.x; column < width; column += blockDim.x) {
            float sum = 0.0f;
            for (u64 row = first; row < end; row++) {
                if (tokens[row] == token) sum += dx[row * width + column];
            }
            partials[(u64)pair * width + column] = sum;
        }
    }
}

// The sum of all slices, in order.
extern "C" __global__ void fold_slices(float* sums, const float* partials, u32 slices, u64 len) {
    for (u64 at = first_element(); at < len; at += stride_of_elements()) {
        float sum = 0.0f;
        for (u32 slice = 0; slice < slices; slice++) sum += partials[slice * len + at];
        sums[at] = sum;
    }
}

// Softmax in place over the columns that causality allows; the rest become zero.
// scores: [rows x time], rows a multiple of time
extern "C" __global__ void causal_softmax(act* scores, u32 time, u64 rows) {
    __shared__ float room[256];
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        act* s = scores + row * time;
        u32 seen = row % time + 1;
        float top = -3.402823466e38f;
        for (u32 at = threadIdx.x; at < seen; at += blockDim.x) top = fmaxf(top, wide(s[at]));
        top = largest_of_block(top, room);
        float sum = 0.0f;
        for (u32 at = threadIdx.x; at < seen; at += blockDim.x) sum += expf(wide(s[at]) - top);
        float scale = 1.0f / sum_of_block(sum, room);
        for (u32 at = threadIdx.x; at < time; at += blockDim.x) {
            put(&s[at], at < seen ? expf(wide(s[at]) - top) * scale : 0.0f);
        }
    }
}

// ds = p (dp - sum of dp p) scale, in place of dp.
extern "C" __global__ void softmax_backward(
    act* dp, const act* probs, u32 time, u64 rows, float scale) {
    __shared__ float room[256];
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        act* d = dp + row * time;
        const act* p = probs + row * time;
        u32 seen = row % time + 1;
        float sum = 0.0f;
        for (u32 at = threadIdx.x; at < seen; at += blockDim.x) sum += wide(d[at]) * wide(p[at]);
        float dot = sum_of_block(sum, room);
        for (u32 at = threadIdx.x; at < time; at += blockDim.x) {
            put(&d[at], at < seen ? wide(p[at]) * (wide(d[at]) - dot) * scale : 0.0f);
        }
    }
}

// Softmax cross-entropy: each row's loss, and scale times the gradient of its logits, which may
// take their place.
extern "C" __global__ void cross_entropy(
    act* gradient, float* losses, const float* logits, const u32* targets, float scale, u32 vocab,
    u32 rows) {
    __shared__ float room[256];
    for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
        const float* s = logits + (u64)row * vocab;
        act* g = gradient + (u64)row * vocab;
        u32 target = targets[row];
        float top = -3.402823466e38f;
        for (u32 at = threadIdx.x; at < vocab; at += blockDim.x) top = fmaxf(top, s[at]);
        top = largest_of_block(top, room);
        float sum = 0.0f;
        for (u32 at = threadIdx.x; at < vocab; at += blockDim.x) sum += expf(s[at] - top);
        float total = sum_of_block(sum, room);
        if (threadIdx.x == 0) losses[row] = logf(total) - (s[target] - top);
        __syncthreads();
        for (u32 at = threadIdx.x; at < vocab; at += blockDim.x) {
            put(&g[at], scale * (expf(s[at] - top) / total - (at == target ? 1.0f : 0.0f)));
        }
    }
}

// One block: the sum of all losses.
extern "C" __global__ void sum_losses(double* total, const float* losses, u32 rows) {
    __shared__ double room[256];
    double sum = 0.0;
    for (u32 row = threadIdx.x; row < rows; row += blockDim.x) sum += losses[row];
    sum = sum_of_block(sum, room);
    if (threadIdx.x == 0) *total = sum;
}
