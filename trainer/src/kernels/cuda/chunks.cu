// Attention of some rows to some others' keys and values, a chunk of each at a time, with a softmax
// that is put right as more chunks come (Milakov and Gimelshein 2018).
//
// Of each row and head is kept lse = log(sum of exp(score)) over the columns seen so far. A chunk's
// scores become their share of the softmax at once, and what was there before shrinks by
// exp(lse before - lse after). Backward makes the same scores again, whose exp(score - lse) is that
// share when all have been seen.
//
// scores: [samples x heads x len x len], of rows that begin at `first` of each sample's `time`
// here; lse and delta: [samples x heads x time]; y: [samples x time x heads size], in f32.

// Flags: 1 a row sees no column behind its own, 2 nothing has been seen before.
extern "C" __global__ void chunk_softmax(
    act* scores, float* lse, float* y, u32 len, u32 first, u32 time, u32 heads, u32 size,
    u32 flags, u64 rows) {
    __shared__ float room[256];
    bool is_causal = flags & 1, is_first = flags & 2;
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        act* s = scores + row * len;
        u32 here = row % len, seen = is_causal ? here + 1 : len;
        u64 line = row / len, head = line % heads, sample = line / heads;
        float* kept = lse + line * time + first + here;
        float* made = y + (sample * time + first + here) * heads * size + head * size;
        float before = is_first ? -3.402823466e38f : *kept;
        float top = before;
        for (u32 at = threadIdx.x; at < seen; at += blockDim.x) top = fmaxf(top, wide(s[at]));
        top = largest_of_block(top, room);
        float sum = 0.0f;
        for (u32 at = threadIdx.x; at < seen; at += blockDim.x) sum += expf(wide(s[at]) - top);
        float rest = is_first ? 0.0f : expf(before - top);
        float total = sum_of_block(sum, room) + rest;
        for (u32 at = threadIdx.x; at < len; at += blockDim.x) {
            put(&s[at], at < seen ? expf(wide(s[at]) - top) / total : 0.0f);
        }
        if (!is_first) {
            for (u32 at = threadIdx.x; at < size; at += blockDim.x) made[at] *= rest / total;
        }
        if (threadIdx.x == 0) *kept = top + logf(total);
    }
}

// Scores become p = exp(score - lse), and dp becomes ds = p (dp - delta) scale.
extern "C" __global__ void chunk_backward(
    act* dp, act* scores, const float* lse, const float* delta, u32 len, u32 first, u32 time,
    float scale, u32 is_causal, u64 rows) {
    for (u64 at = first_element(); at < rows * len; at += stride_of_elements()) {
        u64 row = at / len;
        u32 column = at % len, here = row % len;
        u64 line = row / len * time + first + here;
        bool is_seen = !is_causal || column <= here;
        float p = is_seen ? expf(wide(scores[at]) - lse[line]) : 0.0f;
        put(&scores[at], p);
        put(&dp[at], is_seen ? p * (wide(dp[at]) - delta[line]) * scale : 0.0f);
    }
}

// delta: of each row and head the sum of dy y. count: samples x heads x time
extern "C" __global__ void chunk_deltas(
    float* delta, const act* dy, const act* y, u32 time, u32 heads, u32 size, u64 count) {
    for (u64 at = first_element(); at < count; at += stride_of_elements()) {
        u64 line = at / time, head = line % heads, sample = line / heads;
        u64 from = (sample * time + at % time) * heads * size + head * size;
        float sum = 0.0f;
        for (u32 each = 0; each < size; each++) sum += wide(dy[from + each]) * wide(y[from + each]);
        delta[at] = sum;
    }
}

// Some columns of rows that lie `apart` become rows without gaps.
extern "C" __global__ void take_columns(act* y, const act* x, u32 width, u32 apart, u64 len) {
    for (u64 at = first_element(); at < len; at += stride_of_elements()) {
        y[at] = x[at / width * apart + at % width];
    }
}

// And such rows become some columns.
extern "C" __global__ void put_columns(act* y, const float* x, u32 width, u32 apart, u64 len) {
    for (u64 at = first_element(); at < len; at += stride_of_elements()) {
        put(&y[at / width * apart + at % width], x[at]);
    }
}

// Tiles that lie one after the other become a matrix with `across` of them to a row, or are added
// to one.
extern "C" __global__ void join_tiles(
    float* y, const float* tiles, u32 rows, u32 width, u32 across, u32 added, u64 len) {
    u64 each = (u64)rows * width;
    for (u64 at = first_element(); at < len; at += stride_of_elements()) {
        u64 tile = at / each, row = tile / across * rows + at % each / width;
        u64 to = (row * across + tile % across) * width + at % width;
        y[to] = (added ? y[to] : 0.0f) + tiles[at];
    }
}
