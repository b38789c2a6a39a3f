// Causal attention whose scores are never in memory: a tile of queries goes over the keys that it
// sees, tile by tile, and keeps a running softmax (Dao et al. 2022; Milakov and Gimelshein 2018).
//
// The plain version: s = scale q kT, p = softmax(s), y = p v. Here
// 1. p of a tile is exp(s - top), with the largest score that was met so far; when a larger one is
//    met, what was added up fades by exp(old top - new top);
// 2. what backward needs of all that is one number a row, top + log(sum);
// 3. backward computes p again, once for the queries' gradient and once for that of keys and
//    values, each of which one block owns, so nothing is added by two.
//
// qkv: [rows x 3 heads size], y and dy: [rows x heads size], lse and delta: [samples x heads x
// time]. A block takes a tile of one head of one sample at a time.

#define SIDE 16
#define FEW 8
// The longest row, and as many more numbers as keep threads that read a column of 16 rows out of each
// other's way: rows eight apart share a bank, where all of them did.
#define HEAD_MAX 128
#define ROW (HEAD_MAX + 4)

// Some rows of a head, wide; zeros behind the last. apart: numbers from a row to the next.
__device__ inline void load_rows(
    float (*to)[ROW], u32 count, const act* from, u32 first, u32 time, u32 apart, u32 size) {
    for (u32 at = threadIdx.x; at < count * size; at += blockDim.x) {
        u32 row = at / size, column = at % size;
        bool is_there = first + row < time;
        to[row][column] = is_there ? wide(from[(u64)(first + row) * apart + column]) : 0.0f;
    }
}

__device__ inline float dot(const float* a, const float* b, u32 size) {
    float sum = 0.0f;
    for (u32 at = 0; at < size; at++) sum += a[at] * b[at];
    return sum;
}

// Where a tile lies: the first row, which head of which sample, and where that begins.
struct Tile {
    u32 first;
    u64 line;
    u64 qkv;
    u64 y;
};

__device__ inline Tile tile_at(u64 index, u32 time, u32 heads, u32 size) {
    u32 tiles = (time + SIDE - 1) / SIDE;
    u64 sample = index / tiles / heads, head = index / tiles % heads;
    Tile tile;
    tile.first = index % tiles * SIDE;
    tile.line = (sample * heads + head) * time;
    tile.y = sample * time * heads * size + head * size;
    tile.qkv = 3 * sample * time * heads * size + head * size;
    return tile;
}

extern "C" __global__ void attention_tiles(
    act* y, float* lse, const act* qkv, u32 time, u32 heads, u32 size, float scale, u64 tiles) {
    __shared__ float q[SIDE][ROW], k[SIDE][ROW], v[SIDE][ROW], o[SIDE][ROW];
    __shared__ float s[SIDE][SIDE];
    __shared__ float top[SIDE], sum[SIDE], fade[SIDE];
    u32 width = heads * size;
    for (u64 index = blockIdx.x; index < tiles; index += gridDim.x) {
        Tile here = tile_at(index, time, heads, size);
        const act* from = qkv + here.qkv;
        __syncthreads();
        load_rows(q, SIDE, from, here.first, time, 3 * width, size);
        for (u32 at = threadIdx.x; at < SIDE * size; at += blockDim.x) {
            o[at / size][at % size] = 0.0f;
        }
        for (u32 row = threadIdx.x; row < SIDE; row += blockDim.x) {
            top[row] = -3.402823466e38f;
            sum[row] = 0.0f;
        }
        for (u32 first = 0; first <= here.first; first += SIDE) {
            __syncthreads();
            load_rows(k, SIDE, from + width, first, time, 3 * width, size);
            load_rows(v, SIDE, from + 2 * width, first, time, 3 * width, size);
            __syncthreads();
            for (u32 at = threadIdx.x; at < SIDE * SIDE; at += blockDim.x) {
                u32 row = at / SIDE, column = at % SIDE;
                s[row][column] = scale * dot(q[row], k[column], size);
            }
            __syncthreads();
            for (u32 row = threadIdx.x; row < SIDE; row += blockDim.x) {
                // Rows behind the last see what the last one does, and are not written.
                u32 query = here.first + row < time ? here.first + row : time - 1;
                u32 count = query - first < SIDE ? query - first + 1 : SIDE;
                float most = top[row];
                for (u32 at = 0; at < count; at++) most = fmaxf(most, s[row][at]);
                float all = 0.0f;
                for (u32 at = 0; at < SIDE; at++) {
                    s[row][at] = at < count ? expf(s[row][at] - most) : 0.0f;
                    all += s[row][at];
                }
                fade[row] = expf(top[row] - most);
                sum[row] = sum[row] * fade[row] + all;
                top[row] = most;
            }
            __syncthreads();
            for (u32 at = threadIdx.x; at < SIDE * size; at += blockDim.x) {
                u32 row = at / size, column = at % size;
                float mixed = o[row][column] * fade[row];
                for (u32 key = 0; key < SIDE; key++) mixed += s[row][key] * v[key][column];
                o[row][column] = mixed;
            }
        }
        __syncthreads();
        for (u32 at = threadIdx.x; at < SIDE * size; at += blockDim.x) {
            u32 row = at / size, column = at % size;
            if (here.first + row >= time) continue;
            act* to = y + here.y + (u64)(here.first + row) * width + column;
            put(to, o[row][column] / sum[row]);
        }
        for (u32 row = threadIdx.x; row < SIDE; row += blockDim.x) {
            u32 query = here.first + row;
            if (query < time) lse[here.line + query] = top[row] + logf(sum[row]);
        }
    }
}

// The queries' gradient, and delta, the sum of dy y of each row, for the other kernel.
extern "C" __global__ void attention_tiles_queries(
    act* dqkv, float* delta, const act* dy, const act* y, const act* qkv, const float* lse,
    u32 time, u32 heads, u32 size, float scale, u64 tiles) {
    __shared__ float q[SIDE][ROW], d[SIDE][ROW], k[SIDE][ROW], v[SIDE][ROW];
    __shared__ float dq[SIDE][ROW];
    __shared__ float ds[SIDE][SIDE];
    __shared__ float sums[SIDE];
    u32 width = heads * size;
    for (u64 index = blockIdx.x; index < tiles; index += gridDim.x) {
        Tile here = tile_at(index, time, heads, size);
        const act* from = qkv + here.qkv;
        __syncthreads();
        load_rows(q, SIDE, from, here.first, time, 3 * width, size);
        load_rows(d, SIDE, dy + here.y, here.first, time, width, size);
        load_rows(k, SIDE, y + here.y, here.first, time, width, size);
        for (u32 at = threadIdx.x; at < SIDE * size; at += blockDim.x) {
            dq[at / size][at % size] = 0.0f;
        }
        __syncthreads();
        for (u32 row = threadIdx.x; row < SIDE; row += blockDim.x) {
            sums[row] = dot(d[row], k[row], size);
            if (here.first + row < time) delta[here.line + here.first + row] = sums[row];
        }
        for (u32 first = 0; first <= here.first; first += SIDE) {
            __syncthreads();
            load_rows(k, SIDE, from + width, first, time, 3 * width, size);
            load_rows(v, SIDE, from + 2 * width, first, time, 3 * width, size);
            __syncthreads();
            for (u32 at = threadIdx.x; at < SIDE * SIDE; at += blockDim.x) {
                u32 row = at / SIDE, column = at % SIDE;
                u32 query = here.first + row;
                ds[row][column] = 0.0f;
                if (query >= time || first + column > query) continue;
                float s = scale * dot(q[row], k[column], size);
                float p = expf(s - lse[here.line + query]);
                ds[row][column] = p * (dot(d[row], v[column], size) - sums[row]) * scale;
            }
            __syncthreads();
            for (u32 at = threadIdx.x; at < SIDE * size; at += blockDim.x) {
                u32 row = at / size, column = at % size;
                float sum = dq[row][column];
                for (u32 key = 0; key < SIDE; key++) sum += ds[row][key] * k[key][column];
                dq[row][column] = sum;
            }
        }
        __syncthreads();
        for (u32 at = threadIdx.x; at < SIDE * size; at += blockDim.x) {
            u32 row = at / size, column = at % size;
            if (here.first + row >= time) continue;
            put(dqkv + here.qkv + (u64)(here.first + row) * 3 * width + column, dq[row][column]);
        }
    }
}

// The gradients of keys and values, from all queries that see them.
extern "C" __global__ void attention_tiles_keys(
    act* dqkv, const float* delta, const act* dy, const act* qkv, const float* lse, u32 time,
    u32 heads, u32 size, float scale, u64 tiles) {
    __shared__ float k[SIDE][ROW], v[SIDE][ROW], dk[SIDE][ROW], dv[SIDE][ROW];
    // Half as many queries, so that all of it fits.
    __shared__ float q[FEW][ROW], d[FEW][ROW];
    __shared__ float p[FEW][SIDE], ds[FEW][SIDE];
    u32 width = heads * size;
    for (u64 index = blockIdx.x; index < tiles; index += gridDim.x) {
        Tile here = tile_at(index, time, heads, size);
        const act* from = qkv + here.qkv;
        __syncthreads();
        load_rows(k, SIDE, from + width, here.first, time, 3 * width, size);
        load_rows(v, SIDE, from + 2 * width, here.first, time, 3 * width, size);
        for (u32 at = threadIdx.x; at < SIDE * size; at += blockDim.x) {
            dk[at / size][at % size] = 0.0f;
            dv[at / size][at % size] = 0.0f;
        }
        for (u32 first = here.first; first < time; first += FEW) {
            __syncthreads();
            load_rows(q, FEW, from, first, time, 3 * width, size);
            load_rows(d, FEW, dy + here.y, first, time, width, size);
            __syncthreads();
            for (u32 at = threadIdx.x; at < FEW * SIDE; at += blockDim.x) {
                u32 row = at / SIDE, column = at % SIDE;
                u32 query = first + row;
                p[row][column] = 0.0f;
                ds[row][column] = 0.0f;
                if (query >= time || here.first + column > query) continue;
                float s = scale * dot(q[row], k[column], size);
                float part = expf(s - lse[here.line + query]);
                float slope = dot(d[row], v[column], size) - delta[here.line + query];
                p[row][column] = part;
                ds[row][column] = part * slope * scale;
            }
            __syncthreads();
            for (u32 at = threadIdx.x; at < SIDE * size; at += blockDim.x) {
                u32 key = at / size, column = at % size;
                float of_key = dk[key][column], of_value = dv[key][column];
                for (u32 row = 0; row < FEW; row++) {
                    of_key += ds[row][key] * q[row][column];
                    of_value += p[row][key] * d[row][column];
                }
                dk[key][column] = of_key;
                dv[key][column] = of_value;
            }
        }
        __syncthreads();
        for (u32 at = threadIdx.x; at < SIDE * size; at += blockDim.x) {
            u32 row = at / size, column = at % size;
            if (here.first + row >= time) continue;
            u64 to = here.qkv + (u64)(here.first + row) * 3 * width + column;
            put(dqkv + to + width, dk[row][column]);
            put(dqkv + to + 2 * width, dv[row][column]);
        }
    }
}
