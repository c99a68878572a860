// Products of many rows with a factor of few columns, dladmm/compute/narrow_kernels.py: float32, and all wait for memory.
// COLUMNS, the number of the few, is defined where this is compiled. What is wide is read four numbers at a time.

typedef long long whole;

constexpr int THREADS = 256;
constexpr int LANES = 8, TOGETHER = 2;  // threads for some rows, and rows that are on their way at once
constexpr int SUMS = 32;                // of add_parts, that a block adds up

__device__ float4 plus(float4 a, float b, float4 c) {
    return make_float4(a.x + b * c.x, a.y + b * c.y, a.z + b * c.z, a.w + b * c.w);
}

// out = start + scale x w^T, w (COLUMNS, 4 depth): as many threads as LANES take TOGETHER rows
extern "C" __global__ void __launch_bounds__(THREADS) rows_to_few(
    float *out, const float4 *x, const float4 *w, const float *start, whole rows, whole depth, whole between,
    whole starts, double scale
) {
    whole first = ((whole)blockIdx.x * THREADS + threadIdx.x) / LANES * TOGETHER;
    int lane = threadIdx.x % LANES, deep = (int)depth;
    const float4 *row[TOGETHER];
    float sums[TOGETHER][COLUMNS];
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
        row[i] = x + (first + i < rows ? first + i : rows - 1) * depth;  // all go on: they add up together
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) sums[i][column] = 0;
    }
#pragma unroll 4
    for (int k = lane; k < deep; k += LANES) {
        float4 own[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) own[i] = row[i][k];
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) {
            float4 weight = w[column * deep + k];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
                sums[i][column] +=
                    own[i].x * weight.x + own[i].y * weight.y + (own[i].z * weight.z + own[i].w * weight.w);
        }
    }
    float factor = scale;
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) {
            float sum = sums[i][column];
            for (int apart = LANES / 2; apart; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
            if (lane == column % LANES && first + i < rows) {
                float begin = starts ? start[(first + i) * between + column] : 0.f;
                out[(first + i) * COLUMNS + column] = begin + factor * sum;
            }
        }
    }
}

// out = start + scale x w, w (COLUMNS, 4 width): a thread has the weights of four columns, and goes down its block's rows
extern "C" __global__ void __launch_bounds__(THREADS) few_to_rows(
    float4 *out, const float *x, const float4 *w, const float4 *start, whole rows, whole width, whole between,
    whole starts, double scale, whole rows_of_block
) {
    whole begin = (whole)blockIdx.y * rows_of_block, left = (whole)blockIdx.x * THREADS + threadIdx.x;
    if (left >= width) return;
    int many = (int)(begin + rows_of_block < rows ? rows_of_block : rows - begin);
    const float4 nothing = make_float4(0, 0, 0, 0);
    float4 weights[COLUMNS];
#pragma unroll
    for (int column = 0; column < COLUMNS; column++) weights[column] = plus(nothing, scale, w[column * width + left]);
    x += begin * COLUMNS;
    out += begin * width + left;
    start += begin * between + left;
#pragma unroll 4
    for (int row = 0; row < many; row++) {
        float4 sum = starts ? start[row * between] : nothing;
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) sum = plus(sum, x[row * COLUMNS + column], weights[column]);
        out[row * width] = sum;
    }
}

// The sums over a block's rows of x^T y, x (rows, COLUMNS) and y (rows, 4 width): (blocks, COLUMNS, 4 width)
extern "C" __global__ void __launch_bounds__(THREADS) few_over_rows(
    float4 *sums_at, const float *x, const float4 *y, whole rows, whole width, whole rows_of_block
) {
    whole begin = (whole)blockIdx.y * rows_of_block, left = (whole)blockIdx.x * THREADS + threadIdx.x;
    if (left >= width) return;
    int many = (int)(begin + rows_of_block < rows ? rows_of_block : rows - begin);
    float4 sums[COLUMNS];
#pragma unroll
    for (int column = 0; column < COLUMNS; column++) sums[column] = make_float4(0, 0, 0, 0);
    x += begin * COLUMNS;
    y += begin * width + left;
#pragma unroll 4
    for (int row = 0; row < many; row++) {
        float4 own = y[row * width];
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) sums[column] = plus(sums[column], x[row * COLUMNS + column], own);
    }
#pragma unroll
    for (int column = 0; column < COLUMNS; column++)
        sums_at[((whole)blockIdx.y * COLUMNS + column) * width + left] = sums[column];
}

// The sum of those: each of n numbers by THREADS / SUMS threads
extern "C" __global__ void add_parts(const float *parts_at, double *out, whole n, whole parts) {
    __shared__ double sums[THREADS];
    whole at = (whole)blockIdx.x * SUMS + threadIdx.x % SUMS;
    double sum = 0;
#pragma unroll 8
    for (int part = threadIdx.x / SUMS; part < (int)parts; part += THREADS / SUMS)
        sum += at < n ? parts_at[part * n + at] : 0.f;
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= SUMS || at >= n) return;
    for (int other = threadIdx.x + SUMS; other < THREADS; other += SUMS) sum += sums[other];
    out[at] = sum;
}
