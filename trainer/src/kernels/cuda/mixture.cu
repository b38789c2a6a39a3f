// A mixture of experts: gates, and rows on their way to experts and back. Each row of the stream
// has `top` choices; a choice has a place in the order of sending, and a place has a choice.

// Softmax of each row's scores, in place, and the `top` likeliest, likeliest first; of equals the
// one with the lower number.
extern "C" __global__ void choose_experts(
    float* scores, u32* chosen, float* shares, u32 experts, u32 top, u64 rows) {
    for (u64 row = first_element(); row < rows; row += stride_of_elements()) {
        float* p = scores + row * experts;
        float largest = -3.402823466e38f, total = 0.0f;
        for (u32 at = 0; at < experts; at++) largest = fmaxf(largest, p[at]);
        for (u32 at = 0; at < experts; at++) total += p[at] = expf(p[at] - largest);
        for (u32 at = 0; at < experts; at++) p[at] /= total;
        float last = 3.402823466e38f;
        u32 last_at = 0;
        for (u32 nth = 0; nth < top; nth++) {
            u32 best = experts;
            for (u32 at = 0; at < experts; at++) {
                bool is_later = p[at] < last || (p[at] == last && at > last_at);
                if (is_later && (best == experts || p[at] > p[best])) best = at;
            }
            // Scores that are no numbers have no order, but a choice is always an expert.
            if (best == experts) best = nth;
            chosen[row * top + nth] = best;
            shares[row * top + nth] = last = p[best];
            last_at = best;
        }
    }
}

// Rows of x at each place, in the order of sending.
extern "C" __global__ void send_rows(
    act* y, const act* x, const u32* choices, u32 top, u32 width, u64 len) {
    for (u64 at = first_element(); at < len; at += stride_of_elements()) {
        y[at] = x[(u64)(choices[at / width] / top) * width + at % width];
    }
}

// y = onto + the shares of what experts answered.
extern "C" __global__ void combine_answers(
    float* y, const float* onto, const act* answers, const u32* places, const float* shares,
    u32 top, u32 width, u64 len) {
    for (u64 at = first_element(); at < len; at += stride_of_elements()) {
        u64 row = at / width;
        u32 column = at % width;
        float sum = onto[at];
        for (u64 choice = row * top; choice < (row + 1) * top; choice++) {
            sum += shares[choice] * wide(answers[(u64)places[choice] * width + column]);
        }
        y[at] = sum;
    }
}

// How much each choice's share matters: the sum of dy times its answer.
extern "C" __global__ void share_gradients(
    float* dshares, const float* dy, const act* answers, const u32* places, u32 top, u32 width,
    u64 choices) {
    __shared__ float room[256];
    for (u64 choice = blockIdx.x; choice < choices; choice += gridDim.x) {
        const float* d = dy + choice / top * width;
        const act* answer = answers + (u64)places[choice] * width;
        float sum = 0.0f;
        for (u32 at = threadIdx.x; at < width; at += blockDim.x) sum += d[at] * wide(answer[at]);
        sum = sum_of_block(sum, room);
        if (threadIdx.x == 0) dshares[choice] = sum;
    }
}

// The gradient of the answer at each place: its share of dy.
extern "C" __global__ void send_gradients(
    act* y, const float* dy, const u32* choices, const float* shares, u32 top, u32 width,
    u64 len) {
    for (u64 at = first_element(); at < len; at += stride_of_elements()) {
        u32 choice = choices[at / width];
        put(&y[at], shares[choice] * dy[(u64)(choice / top) * width + at % width]);
    }
}

// dx += what came back for each of a row's choices.
extern "C" __global__ void add_returned(
    float* dx, const act* came, const u32* places, u32 top, u32 width, u64 len) {
    for (u64 at = first_element(); at < len; at += stride_of_elements()) {
        u64 row = at / width;
        u32 column = at % width;
        float sum = dx[at];
        for (u64 choice = row * top; choice < (row + 1) * top; choice++) {
            sum += wide(came[(u64)places[choice] * width + column]);
        }
        dx[at] = sum;
    }
}

// Of scores, from those of the shares: ds = p (dp - sum of dp p), with dp zero where nothing was
// chosen.
extern "C" __global__ void gate_backward(
    act* dscores, const float* probs, const u32* chosen, const float* dshares, u32 experts,
    u32 top, u64 rows) {
    for (u64 row = first_element(); row < rows; row += stride_of_elements()) {
        const float* p = probs + row * experts;
        const u32* own = chosen + row * top;
        const float* d = dshares + row * top;
        float dot = 0.0f;
        for (u32 nth = 0; nth < top; nth++) dot += d[nth] * p[own[nth]];
        for (u32 at = 0; at < experts; at++) {
            float dp = 0.0f;
            for (u32 nth = 0; nth < top; nth++) {
                if (own[nth] == at) dp = d[nth];
            }
            put(&dscores[row * experts + at], p[at] * (dp - dot));
        }
    }
}
