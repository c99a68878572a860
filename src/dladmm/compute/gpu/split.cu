// A matrix as pieces of float16 parts, each with the scales of its rows: halves.cu says how they lie.

// The power of two that brings numbers up to ``largest`` in range, and its inverse
__device__ __forceinline__ float power_for(float largest, float &inverse) {
    int exponent = (__float_as_int(largest) >> 23) & 255;
    exponent = exponent < 30 ? 30 : exponent > 254 ? 254 : exponent;
    inverse = __int_as_float((exponent - 14) << 23);
    return __int_as_float((268 - exponent) << 23);
}

// N numbers of a row, the first of them of number ``column``, to their places in a piece
template <int N>
__device__ __forceinline__ void place(unsigned char *line, int row, int column, const float (&x)[N], float power) {
    unsigned high[N / 2], rest[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) parts(x[2 * i] * power, x[2 * i + 1] * power, high[i], rest[i]);
    int unit = column / 8, within = column % 8 * 2;
    unsigned char *high_at = line + (unit ^ row % 8) * 16 + within,
                  *rest_at = line + ((unit + 4) ^ row % 8) * 16 + within;
    if (N == 8) {
        *(uint4 *)high_at = make_uint4(high[0], high[1], high[N / 2 - 2], high[N / 2 - 1]);
        *(uint4 *)rest_at = make_uint4(rest[0], rest[1], rest[N / 2 - 2], rest[N / 2 - 1]);
    } else {
        *(uint2 *)high_at = make_uint2(high[0], high[1]);
        *(uint2 *)rest_at = make_uint2(rest[0], rest[1]);
    }
}

__device__ __forceinline__ void
write_piece(unsigned char *to, const unsigned char *piece, float *scales_at, const float *scales) {
    __syncthreads();
#pragma unroll
    for (int i = threadIdx.x; i < (int)PIECE / 16; i += TALL) ((uint4 *)to)[i] = ((const uint4 *)piece)[i];
    scales_at[threadIdx.x] = scales[threadIdx.x];
}

// x (rows, depth): eight threads take a row of a piece
extern "C" __global__ void __launch_bounds__(TALL) split_rows(
    const float *x, unsigned char *pieces, float *scales_at, whole rows, whole depth, whole blocks
) {
    __shared__ __align__(128) unsigned char piece[PIECE];
    __shared__ float scales[TALL];
    constexpr int TOGETHER = TALL / 8, EACH = TALL / TOGETHER;
    whole block = blockIdx.x % blocks, first = blockIdx.x / blocks * TALL;
    int column = threadIdx.x % 8 * 4;
    whole from = block * DEEP + column, left = depth - from;
    bool by_four = depth % 4 == 0 && left > 0;
    float found[EACH][4];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        whole row = first + threadIdx.x / 8 + i * TOGETHER;
        const float *at = x + row * depth + from;
        float4 four = make_float4(0.f, 0.f, 0.f, 0.f);
        if (row < rows && by_four) four = *(const float4 *)at;
        found[i][0] = four.x, found[i][1] = four.y, found[i][2] = four.z, found[i][3] = four.w;
        if (!by_four)
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (row < rows && j < left) found[i][j] = at[j];
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int row = threadIdx.x / 8 + i * TOGETHER;
        float largest =
            fmaxf(fmaxf(fabsf(found[i][0]), fabsf(found[i][1])), fmaxf(fabsf(found[i][2]), fabsf(found[i][3])));
#pragma unroll
        for (int apart = 4; apart; apart /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, apart));
        float inverse, power = power_for(largest, inverse);
        place(piece + row * LINE, row, column, found[i], power);
        if (column == 0) scales[row] = inverse;
    }
    write_piece(pieces + (whole)blockIdx.x * PIECE, piece, scales_at + (whole)blockIdx.x * TALL, scales);
}

// x (depth, rows): a thread takes a row of a piece, which is a column of x
extern "C" __global__ void __launch_bounds__(TALL) split_columns(
    const float *x, unsigned char *pieces, float *scales_at, whole rows, whole depth, whole blocks
) {
    __shared__ __align__(128) unsigned char piece[PIECE];
    __shared__ float scales[TALL];
    whole tiles = gridDim.x / blocks, block = blockIdx.x / tiles, tile = blockIdx.x % tiles;  // rows of x side by side
    whole row = tile * TALL + threadIdx.x, number = tile * blocks + block;
    float found[DEEP / 8][8], largest = 0;
#pragma unroll
    for (int i = 0; i < DEEP; i++) {
        whole from = block * DEEP + i;
        found[i / 8][i % 8] = row < rows && from < depth ? x[from * rows + row] : 0.f;
    }
#pragma unroll
    for (int i = 0; i < DEEP; i++) largest = fmaxf(largest, fabsf(found[i / 8][i % 8]));
    float power = power_for(largest, scales[threadIdx.x]);
#pragma unroll
    for (int i = 0; i < DEEP / 8; i++) place(piece + threadIdx.x * LINE, threadIdx.x, i * 8, found[i], power);
    write_piece(pieces + number * PIECE, piece, scales_at + number * TALL, scales);
}
