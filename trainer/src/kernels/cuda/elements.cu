// Kernels over elements that are independent: GELU, sums, casts, embeddings, the update.

// y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), Hendrycks and Gimpel 2016.
extern "C" __global__ void gelu(act* y, const act* x, u64 len) {
    for (u64 at = first_element(); at < len; at += stride_of_elements()) {
        float v = wide(x[at]);
        put(&y[at], 0.5f * v * (1.0f + tanhf(0.7978846f * (v + 0.044715f * v * v * v))));
    }
}

// dy becomes dx.
extern "C" __global__ void gelu_backward(act* dy, const act* x, u64 len) {
    for (u64 at = first_element(); at < len; at += stride_of_elements()) {
        float v = wide(x[at]);
        float t = tanhf(0.7978846f * (v + 0.044715f * v * v * v));
        float slope = 0.7978846f * (1.0f + 3.0f * 0.044715f * v * v);
        put(&dy[at], wide(dy[at]) * (0.5f * (1.0f + t) + 0.5f * v * (1.0f - t * t) * slope));
    }
}

extern "C" __global__ void add(float* total, const float* part, u64 len) {
    for (u64 at = first_element(); at < len; at += stride_of_elements()) total[at] += part[at];
}

extern "C" __global__ void to_act(act* y, const float* x, u64 len) {
    for (u64 at = first_element(); at < len; at += stride_of_elements()) put(&y[at], x[at]);
}

extern "C" __global__ void to_bf16(Bf16* y, const float* x, u64 len) {
    for (u64 at = first_element(); at < len; at += stride_of_elements()) put(&y[at], x[at]);
}

// total, or nothing, and all pieces behind it, in their order.
extern "C" __global__ void add_bf16(
    float* total, const Bf16* pieces, u32 count, u64 len, u32 anew) {
    for (u64 at = first_element(); at < len; at += stride_of_elements()) {
        float sum = anew ? 0.0f : total[at];
        for (u32 piece = 0; piece < count; piece++) sum += wide(pieces[piece * len + at]);
        total[at] = sum;
    }
}

// y = onto + bias, row by row: what a product is then added to. onto may be missing. Rows of both are
// `apart` numbers from each other, and have `len` of these columns in all.
extern "C" __global__ void start_stream(
    float* y, const float* onto, const act* bias, u64 len, u32 width, u32 apart) {
    for (u64 at = first_element(); at < len; at += stride_of_elements()) {
        u32 column = at % width;
        u64 place = at / width * apart + column;
        y[place] = (onto ? onto[place] : 0.0f) + wide(bias[column]);
    }
}

// The same inside of a block.
extern "C" __global__ void start_inside(act* y, const act* bias, u64 len, u32 width, u32 apart) {
    for (u64 at = first_element(); at < len; at += stride_of_elements()) {
        u32 column = at % width;
        y[at / width * apart + column] = bias[column];
    }
}

// x: [rows x width]. places: of each row in its sample, if rows are not whole samples.
extern "C" __global__ void embed(
    float* x, const u32* tokens, const u32* places, const act* tokens_table,
    const act* places_table, u32 time, u32 width, u64 len) {
    for (u64 at = first_element(); at < len; at += stride_of_elements()) {
        u64 row = at / width, place = places ? places[row] : row % time;
        u32 column = at % width;
        float token = wide(tokens_table[(u64)tokens[row] * width + column]);
        x[at] = token + wide(places_table[place * width + column]);
    }
}

// Of each place the sum of its rows, in order, which lie `period` apart; others in the table are not
// touched. places: of each row in its sample, if rows are not whole samples.
extern "C" __global__ void embed_places(
    float* table, const float* dx, const u32* places, u64 rows, u32 period, u32 width) {
    u64 first = period < rows ? period : rows;
    for (u64 at = first_element(); at < first * width; at += stride_of_elements()) {
        u64 row = at / width, place = places ? places[row] : row;
        u32 column = at % width;
        float sum = 0.0f;
        for (; row < rows; row += period) sum += dx[row * width + column];
        table[place * width + column] = sum;
    }
}

// Adds the squares of these numbers to `sums`, where digit d of base 2^32 counts for 2^(32 d - 298),
// and those that are not finite to the last place of all: whole numbers, which have the same sum in
// any order; once they are carried, the host has the same digits. Each warp has sums of its own, since
// squares of a gradient fall into few places.
extern "C" __global__ void squares(u64* sums, const float* x, u64 len) {
    __shared__ u64 all[8][DIGITS];
    for (u32 at = threadIdx.x; at < 8 * DIGITS; at += blockDim.x) all[at / DIGITS][at % DIGITS] = 0;
    __syncthreads();
    u64* digits = all[threadIdx.x / 32];
    for (u64 at = first_element(); at < len; at += stride_of_elements()) {
        Bits as;
        as.number = x[at];
        u32 exponent = as.bits >> 23 & 0xff, fraction = as.bits & 0x7fffff;
        if (exponent == 0xff) {
            atomicAdd(&digits[DIGITS - 1], 1ull);
            continue;
        }
        // Numbers without an exponent have no leading one either.
        u64 whole = exponent ? fraction | 0x800000 : fraction, square = whole * whole;
        u32 place = exponent ? 2 * (exponent - 1) : 0, shift = place % 32;
        u64 low = square << shift, high = shift ? square >> (64 - shift) : 0;
        u64* to = &digits[place / 32];
        if (low & 0xffffffff) atomicAdd(&to[0], low & 0xffffffff);
        if (low >> 32) atomicAdd(&to[1], low >> 32);
        if (high) atomicAdd(&to[2], high);
    }
    __syncthreads();
    for (u32 at = threadIdx.x; at < DIGITS; at += blockDim.x) {
        u64 sum = 0;
        for (u32 warp = 0; warp < 8; warp++) sum += all[warp][at];
        if (sum) atomicAdd(&sums[at], sum);
    }
}

// AdamW (Loshchilov and Hutter 2019) with its constants made for one step, as on the host. narrow:
// what products read, or nothing where that is the parameters themselves. Every operation is rounded,
// since other ranks or runs may update on their hosts: a compiler would add products unrounded.
extern "C" __global__ void adamw(
    float* params, act* narrow, float* mean, float* square, const float* grads, u64 len,
    float scale, float beta1, float beta2, float eps, float rate, float root, float shrink) {
    for (u64 at = first_element(); at < len; at += stride_of_elements()) {
        float g = rounded_product(grads[at], scale);
        float fresh = rounded_product(1.0f - beta1, g);
        float fresh_square = rounded_product(rounded_product(1.0f - beta2, g), g);
        float m = rounded_product(beta1, mean[at]) + fresh;
        float s = rounded_product(beta2, square[at]) + fresh_square;
        float move = rounded_product(rate, m) / (rounded_product(sqrtf(s), root) + eps);
        float p = rounded_product(params[at], shrink) - move;
        mean[at] = m;
        square[at] = s;
        params[at] = p;
        if (narrow) put(&narrow[at], p);
    }
}
