// Products of many rows with a factor of few columns, dladmm/compute/narrow_kernels.py: float32, each waits for memory
// alone. COLUMNS, the number of the few, is defined where this is compiled.

typedef long long whole;

constexpr int THREADS = 256, EACH = 4;  // wide columns of a thread
constexpr int TOGETHER = 4;             // rows that are on their way at once

// out = start + scale x w, w (depth, COLUMNS): a warp takes TOGETHER rows
extern "C" __global__ void __launch_bounds__(THREADS) rows_to_few(
    float *out, const float *x, const float *w, const float *start, whole rows, whole depth, whole down, whole across,
    whole between, whole starts, double scale
) {
    whole first = ((whole)blockIdx.x * (THREADS / 32) + threadIdx.x / 32) * TOGETHER;
    if (first >= rows) return;
    int lane = threadIdx.x % 32;
    const float *row[TOGETHER];
    float sums[TOGETHER][COLUMNS];
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
        row[i] = x + (first + i < rows ? first + i : rows - 1) * depth;
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) sums[i][column] = 0;
    }
#pragma unroll 4
    for (whole k = lane; k < depth; k += 32) {
        float own[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) own[i] = row[i][k];
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) {
            float weight = w[k * down + column * across];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) sums[i][column] += own[i] * weight;
        }
    }
    float factor = scale;
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) {
            float sum = sums[i][column];
            for (int apart = 16; apart; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
            if (lane == column && first + i < rows) {
                float begin = starts ? start[(first + i) * between + column] : 0.f;
                out[(first + i) * COLUMNS + column] = begin + factor * sum;
            }
        }
    }
}

// out = start + scale x w, w (COLUMNS, width): a thread has the weights of EACH columns, and goes down its block's rows
extern "C" __global__ void __launch_bounds__(THREADS) few_to_rows(
    float *out, const float *x, const float *w, const float *start, whole rows, whole width, whole down, whole across,
    whole between, whole starts, double scale, whole rows_of_block
) {
    whole begin = (whole)blockIdx.y * rows_of_block, left = (whole)blockIdx.x * THREADS * EACH + threadIdx.x;
    whole end = begin + rows_of_block < rows ? begin + rows_of_block : rows;
    float weights[COLUMNS][EACH], factor = scale;
#pragma unroll
    for (int column = 0; column < COLUMNS; column++) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            whole at = left + i * THREADS;
            weights[column][i] = at < width ? factor * w[column * down + at * across] : 0.f;
        }
    }
#pragma unroll 2
    for (whole row = begin; row < end; row++) {
        float sums[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            whole at = left + i * THREADS;
            sums[i] = starts && at < width ? start[row * between + at] : 0.f;
        }
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) {
            float own = x[row * COLUMNS + column];
#pragma unroll
            for (int i = 0; i < EACH; i++) sums[i] += own * weights[column][i];
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            whole at = left + i * THREADS;
            if (at < width) out[row * width + at] = sums[i];
        }
    }
}

// The sums over a block's rows of x^T y, x (rows, COLUMNS): (blocks, COLUMNS, width)
extern "C" __global__ void __launch_bounds__(THREADS) few_over_rows(
    float *sums_at, const float *x, const float *y, whole rows, whole width, whole rows_of_block
) {
    whole begin = (whole)blockIdx.y * rows_of_block, left = (whole)blockIdx.x * THREADS * EACH + threadIdx.x;
    whole end = begin + rows_of_block < rows ? begin + rows_of_block : rows;
    float sums[COLUMNS][EACH];
#pragma unroll
    for (int column = 0; column < COLUMNS; column++) {
#pragma unroll
        for (int i = 0; i < EACH; i++) sums[column][i] = 0;
    }
#pragma unroll 4
    for (whole row = begin; row < end; row++) {
        float own[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            whole at = left + i * THREADS;
            own[i] = at < width ? y[row * width + at] : 0.f;
        }
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) {
            float other = x[row * COLUMNS + column];
#pragma unroll
            for (int i = 0; i < EACH; i++) sums[column][i] += own[i] * other;
        }
    }
#pragma unroll
    for (int column = 0; column < COLUMNS; column++) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            whole at = left + i * THREADS;
            if (at < width) sums_at[((whole)blockIdx.y * COLUMNS + column) * width + at] = sums[column][i];
        }
    }
}
