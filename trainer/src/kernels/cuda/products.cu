// Products where there is no cuBLAS: tiles of 64 x 64 through shared memory, 4 x 4 elements a
// thread. The number of threads divides 256; with fewer a block goes over its tile more than once.

#define TILE 64
#define DEEP 16

// out = scale a b, or out += scale a b; out: [m x n], a: [m x k] or its transpose, b: [k x n] or
// its transpose, rows lda, ldb and ldc apart. flags: 1 a is transposed, 2 b is, 4 out is added to.
template <typename Out>
__device__ void product(
    Out* out, const act* a, const act* b, u32 m, u32 n, u32 k, u32 lda, u32 ldb, u32 ldc,
    float scale, u32 flags) {
    __shared__ float a_tile[DEEP][TILE + 4];
    __shared__ float b_tile[DEEP][TILE + 4];
    // Of rows there may be more than a grid has blocks along its second dimension.
    u32 row0 = blockIdx.x * TILE, column0 = blockIdx.y * TILE;
    bool is_a_turned = flags & 1, is_b_turned = flags & 2, is_added = flags & 4;
    for (u32 part = threadIdx.x; part < 256; part += blockDim.x) {
        u32 row = part / 16 * 4, column = part % 16 * 4;
        float sums[4][4] = {};
        // Who has nothing inside of the matrix loads for the others, and adds up nothing.
        bool is_inside = row0 + row < m && column0 + column < n;
        for (u32 first = 0; first < k; first += DEEP) {
            __syncthreads();
            for (u32 at = threadIdx.x; at < TILE * DEEP; at += blockDim.x) {
                // Neighbouring threads read neighbours in memory, whichever way it lies.
                u32 i = is_a_turned ? at % TILE : at / DEEP;
                u32 p = is_a_turned ? at / TILE : at % DEEP;
                u64 from = is_a_turned ? (u64)(first + p) * lda + row0 + i
                                       : (u64)(row0 + i) * lda + first + p;
                a_tile[p][i] = row0 + i < m && first + p < k ? wide(a[from]) : 0.0f;
                u32 j = is_b_turned ? at / DEEP : at % TILE;
                u32 q = is_b_turned ? at % DEEP : at / TILE;
                from = is_b_turned ? (u64)(column0 + j) * ldb + first + q
                                   : (u64)(first + q) * ldb + column0 + j;
                b_tile[q][j] = column0 + j < n && first + q < k ? wide(b[from]) : 0.0f;
            }
            __syncthreads();
            for (u32 p = 0; is_inside && p < DEEP; p++) {
                for (u32 i = 0; i < 4; i++) {
                    for (u32 j = 0; j < 4; j++) {
                        sums[i][j] += a_tile[p][row + i] * b_tile[p][column + j];
                    }
                }
            }
        }
        for (u32 i = 0; i < 4; i++) {
            for (u32 j = 0; j < 4; j++) {
                if (row0 + row + i < m && column0 + column + j < n) {
                    Out* to = &out[(u64)(row0 + row + i) * ldc + column0 + column + j];
                    put(to, (is_added ? wide(*to) : 0.0f) + scale * sums[i][j]);
                }
            }
        }
    }
}

// Products of matrices that lie a stride apart, one for each layer of blocks.
extern "C" __global__ void product_wide(
    float* out, const act* a, const act* b, u32 m, u32 n, u32 k, u32 lda, u32 ldb, u32 ldc,
    u64 stride_a, u64 stride_b, u64 stride_out, float scale, u32 flags) {
    out += blockIdx.z * stride_out;
    a += blockIdx.z * stride_a;
    b += blockIdx.z * stride_b;
    product(out, a, b, m, n, k, lda, ldb, ldc, scale, flags);
}

extern "C" __global__ void product_inside(
    act* out, const act* a, const act* b, u32 m, u32 n, u32 k, u32 lda, u32 ldb, u32 ldc,
    u64 stride_a, u64 stride_b, u64 stride_out, float scale, u32 flags) {
    out += blockIdx.z * stride_out;
    a += blockIdx.z * stride_a;
    b += blockIdx.z * stride_b;
    product(out, a, b, m, n, k, lda, ldb, ldc, scale, flags);
}
