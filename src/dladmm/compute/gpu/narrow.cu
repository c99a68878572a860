// Products of many rows with a factor of few columns, dladmm/compute/narrow_kernels.py: in float32.
// COLUMNS, the number of the few, is defined where this is compiled. What is wide is read four numbers at a time.

typedef long long whole;

constexpr int THREADS = 256;
constexpr int TOGETHER = 2;                // rows that a warp takes at once in rows_to_few
constexpr int HEADINGS = 128, LANES = 16;  // threads of a block of few_headings, and of a row
constexpr int SUMS = 32;                   // of add_parts, that a block adds up
constexpr bool MORE = COLUMNS > 10;        // need more registers, so that a processor takes fewer blocks

__device__ float4 plus(float4 a, float b, float4 c) {
    return make_float4(a.x + b * c.x, a.y + b * c.y, a.z + b * c.z, a.w + b * c.w);
}

__device__ float plus_inner(float sum, float4 a, float4 b) {
    sum += a.x * b.x;
    sum += a.y * b.y;
    sum += a.z * b.z;
    return sum + a.w * b.w;
}

// out = start + scale x w^T, w (COLUMNS, 4 depth): a warp takes TOGETHER rows
extern "C" __global__ void __launch_bounds__(THREADS, MORE ? 2 : 3) rows_to_few(
    float *out, const float4 *x, const float4 *w, const float *start, whole rows, whole depth, whole between,
    whole starts, double scale
) {
    whole first = ((whole)blockIdx.x * THREADS + threadIdx.x) / 32 * TOGETHER;
    int lane = threadIdx.x % 32, deep = (int)depth;
    const float4 *row[TOGETHER];
    float sums[TOGETHER][COLUMNS];
    float4 next[TOGETHER];
    if (first >= rows) return;
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
        row[i] = x + (first + i < rows ? first + i : rows - 1) * depth;
        if (lane < deep) next[i] = row[i][lane];
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) sums[i][column] = 0;
    }
#pragma unroll 1
    for (int k = lane; k < deep; k += 32) {
        float4 own[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            own[i] = next[i];
            if (k + 32 < deep) next[i] = row[i][k + 32];  // on its way while this one is worked on
        }
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) {
            float4 weight = w[column * deep + k];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) sums[i][column] = plus_inner(sums[i][column], own[i], weight);
        }
    }
    float factor = scale;
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) {
            float sum = sum_of_lanes(sums[i][column], 32);
            if (lane == column && first + i < rows) {
                float begin = starts ? start[(first + i) * between + column] : 0.f;
                out[(first + i) * COLUMNS + column] = begin + factor * sum;
            }
        }
    }
}

// d = o + scale e w over o and moved = d w^T, e (rows, COLUMNS) and w (COLUMNS, 4 width); their squares, by blocks
extern "C" __global__ void __launch_bounds__(HEADINGS, MORE ? 3 : 5) few_headings(
    float4 *o, const float *e, const float4 *w, float *moved, double *squares_at, whole rows, whole width, double scale
) {
    whole row = ((whole)blockIdx.x * HEADINGS + threadIdx.x) / LANES;
    bool inside = row < rows;  // all lanes go on: they add up together
    if (!inside) row = rows - 1;
    int lane = threadIdx.x % LANES, wide = (int)width;
    float own_e[COLUMNS], sums[COLUMNS], square = 0, moved_square = 0;
    float4 next;
    o += row * width;
    if (lane < wide) next = o[lane];
#pragma unroll
    for (int column = 0; column < COLUMNS; column++) {
        own_e[column] = (float)scale * e[row * COLUMNS + column];
        sums[column] = 0;
    }
#pragma unroll 1
    for (int k = lane; k < wide; k += LANES) {
        float4 d = next, weights[COLUMNS];
        if (k + LANES < wide) next = o[k + LANES];  // on its way while this one is worked on
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) {
            weights[column] = w[column * wide + k];
            d = plus(d, own_e[column], weights[column]);
        }
        if (inside) {
            o[k] = d;
            square = plus_inner(square, d, d);
        }
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) sums[column] = plus_inner(sums[column], d, weights[column]);
    }
#pragma unroll
    for (int column = 0; column < COLUMNS; column++) {
        float sum = sum_of_lanes(sums[column], LANES);
        if (lane == column % LANES && inside) {
            moved[row * COLUMNS + column] = sum;
            moved_square += sum * sum;
        }
    }
    double total = sum_of_block<HEADINGS>(square), moved_total = sum_of_block<HEADINGS>(moved_square);
    if (threadIdx.x) return;
    squares_at[blockIdx.x] = total;
    squares_at[gridDim.x + blockIdx.x] = moved_total;
}

// out = start + scale x w, w (COLUMNS, 4 width): a thread has the weights of four columns, and goes down its block's rows
extern "C" __global__ void __launch_bounds__(THREADS, MORE ? 2 : 4) few_to_rows(
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
extern "C" __global__ void __launch_bounds__(THREADS, MORE ? 2 : 3) few_over_rows(
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
