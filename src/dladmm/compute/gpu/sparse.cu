// Row i of a sparse product: the sum of values[e] dense[columns[e]] over the entries e of the row.
//
// A warp makes some columns of one row. It reads 32 entries at once, the next ones while it works on them, and its lanes
// tell each other: so many rows of ``dense`` are on their way at a time. Where columns are few the lanes take several
// entries side by side.

typedef long long whole;

constexpr int AHEAD = 8;  // rows of ``dense`` that a lane has on their way at once

template <typename real, int N> struct alignas(N * sizeof(real)) Several {
    real at[N];
};

template <typename real, typename index, int N>
__device__ void row_sums(
    const index *columns_at, const real *values_at, const index *starts_at, const real *dense_at, real *sums_at,
    whole n, whole width, whole weighted, int lanes
) {
    typedef Several<real, N> Part;
    whole row = (whole)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= n) return;
    int lane = threadIdx.x % 32, together = 32 / lanes, own = lane / lanes;
    whole column = (whole)blockIdx.y * lanes * N + lane % lanes * N;
    bool within = column < width;
    whole begin = starts_at[row], last = starts_at[row + 1];
    real sums[N] = {};
    auto entry = [&](whole at, index &where, real &weight) {
        where = at < last ? columns_at[at] : 0;
        weight = at < last && weighted ? values_at[at] : real(1);
    };
    index next_where;
    real next_weight;
    entry(begin + lane, next_where, next_weight);
    for (; begin < last; begin += 32) {
        index where = next_where;
        real weight = next_weight;
        entry(begin + 32 + lane, next_where, next_weight);
        int count = last - begin < 32 ? (int)(last - begin) : 32;
        for (int first = 0; first < count; first += together * AHEAD) {
            Part parts[AHEAD];
            real weights[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                int number = first + i * together + own;
                whole from = __shfl_sync(~0u, where, number & 31);
                weights[i] = __shfl_sync(~0u, weight, number & 31);
                parts[i] = Part();
                if (number < count && within) parts[i] = *(const Part *)(dense_at + from * width + column);
                if (number >= count) weights[i] = 0;
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
#pragma unroll
                for (int j = 0; j < N; j++) sums[j] += weights[i] * parts[i].at[j];
        }
    }
#pragma unroll
    for (int j = 0; j < N; j++)
        for (int apart = lanes; apart < 32; apart *= 2) sums[j] += __shfl_xor_sync(~0u, sums[j], apart);
    if (lane < lanes && within) {
        Part made;
#pragma unroll
        for (int j = 0; j < N; j++) made.at[j] = sums[j];
        *(Part *)(sums_at + row * width + column) = made;
    }
}

#define ROW_SUMS(name, real, index, N)                                                                                 \
    extern "C" __global__ void name(                                                                                   \
        const index *columns, const real *values, const index *starts, const real *dense, real *sums, whole n,         \
        whole width, whole weighted, whole lanes                                                                       \
    ) {                                                                                                                \
        row_sums<real, index, N>(columns, values, starts, dense, sums, n, width, weighted, (int)lanes);                \
    }

ROW_SUMS(row_sums_float32_int32_4, float, int, 4)
ROW_SUMS(row_sums_float32_int32_1, float, int, 1)
ROW_SUMS(row_sums_float32_int64_4, float, whole, 4)
ROW_SUMS(row_sums_float32_int64_1, float, whole, 1)
ROW_SUMS(row_sums_float64_int32_2, double, int, 2)
ROW_SUMS(row_sums_float64_int32_1, double, int, 1)
ROW_SUMS(row_sums_float64_int64_2, double, whole, 2)
ROW_SUMS(row_sums_float64_int64_1, double, whole, 1)
