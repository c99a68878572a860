// The passes of dladmm/compute/kernels.py: a block of threads works on ENTRIES entries at a time. Where it writes nothing
// but a sum it takes several such parts, so that few sums are left; passes that write are slower that way.
//
// A thread reads all that it needs before it writes, so that many reads are on their way at once. What a pass does
// only at times is said by numbers. Every argument takes 8 bytes: dladmm/compute/gpu/code.py packs them.

typedef long long whole;

constexpr int THREADS = 256, EACH = 8, ENTRIES = THREADS * EACH;

__device__ float nan_max(float x, float floor) { return x != x ? x : fmaxf(x, floor); }

// Blocks begin at the end: what the product before wrote last still lies in the cache
__device__ whole first_entry() { return (whole)(gridDim.x - 1 - blockIdx.x) * ENTRIES + threadIdx.x; }

// From a part of this block to its next one
__device__ whole stride() { return (whole)gridDim.x * ENTRIES; }

// The first entry of a block's last part, with which it begins; there may be none left in it
__device__ whole last_part(whole n) { return first_entry() + n / stride() * stride(); }

__device__ void read(float (&found)[EACH], const float *from, whole first, whole n) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        whole at = first + i * THREADS;
        found[i] = at < n ? from[at] : 0.f;
    }
}

__device__ void write(float *to, const float (&values)[EACH], whole first, whole n) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        whole at = first + i * THREADS;
        if (at < n) to[at] = values[i];
    }
}

extern "C" __global__ void advance(
    float *x_at, const float *move_at, const float *target_at, float *residual_at, const float *multiple_at,
    const float *shift_at, whole n, whole columns, whole inner, whole moves, whole shifts, whole leaves
) {
    whole first = first_entry();
    float x[EACH], other[EACH], target[EACH];
    read(x, x_at, first, n);
    if (moves) read(other, move_at, first, n);
    if (leaves) read(target, target_at, first, n);
    if (moves) {
        float multiple = *multiple_at;
#pragma unroll
        for (int i = 0; i < EACH; i++) x[i] += other[i] * multiple;
    }
    if (shifts) {
        // Where 32 bits hold the numbers, a remainder takes a quarter of the time
        bool narrow = n < (1LL << 31);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            whole at = first + i * THREADS;
            whole column = narrow ? (whole)((unsigned)at / (unsigned)inner % (unsigned)columns) : at / inner % columns;
            if (at < n) x[i] += shift_at[column];
        }
    }
    write(x_at, x, first, n);
    if (leaves) {
#pragma unroll
        for (int i = 0; i < EACH; i++) x[i] -= target[i];
        write(residual_at, x, first, n);
    }
}

extern "C" __global__ void descend(
    float *x_at, const float *d_at, const float *other_at, float *residual_at, const float *step_at, double *sums_at,
    whole n, whole row, whole by_row, whole compares, whole leaves
) {
    whole first = first_entry();
    float x[EACH], d[EACH], other[EACH], sum = 0;
    read(x, x_at, first, n);
    read(d, d_at, first, n);
    if (compares) read(other, other_at, first, n);
    bool narrow = n < (1LL << 31);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        whole at = first + i * THREADS;
        if (at < n) x[i] -= d[i] * step_at[!by_row ? 0 : narrow ? (whole)((unsigned)at / (unsigned)row) : at / row];
    }
    write(x_at, x, first, n);
    if (!compares) return;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        x[i] -= other[i];
        sum += x[i] * x[i];
    }
    if (leaves) write(residual_at, x, first, n);
    double total = sum_of_block<THREADS>(sum);
    if (threadIdx.x == 0) sums_at[blockIdx.x] = total;
}

extern "C" __global__ void relu_entries(
    float *z_at, float *f_at, const float *m_at, const float *a_at, float *residual_at, float *offset_at,
    double *sums_at, whole n, double weight, double slope, whole writes, whole leaves, whole offsets
) {
    whole first = first_entry();
    float m[EACH], a[EACH], z[EACH], f[EACH], w = weight, s = slope, sum = 0;
    read(m, m_at, first, n);
    read(a, a_at, first, n);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        bool above = fmaxf(a[i], 0.f) * s + m[i] > 0;
        z[i] = above ? fmaxf((m[i] + w * a[i]) / (1 + w), 0.f) : m[i];
        z[i] = a[i] != a[i] ? a[i] : z[i];
        f[i] = nan_max(z[i], 0.f);
        a[i] -= f[i];
        m[i] -= z[i];
        sum += m[i] * m[i];
    }
    write(z_at, z, first, n);
    if (writes) write(f_at, f, first, n);
    if (offsets) write(offset_at, a, first, n);
    if (leaves) write(residual_at, m, first, n);
    double total = sum_of_block<THREADS>(sum);
    if (threadIdx.x == 0) sums_at[blockIdx.x] = total;
}

extern "C" __global__ void inner(
    const float *prediction_at, const float *target_at, const float *gradient_at, double *sums_at, whole n
) {
    double products = 0, squares = 0;
    for (whole first = last_part(n); first >= 0; first -= stride()) {
        float prediction[EACH], target[EACH], gradient[EACH], product = 0, square = 0;
        read(prediction, prediction_at, first, n);
        read(target, target_at, first, n);
        read(gradient, gradient_at, first, n);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            product += (prediction[i] - target[i]) * gradient[i];
            square += gradient[i] * gradient[i];
        }
        products += product;
        squares += square;
    }
    products = sum_of_block<THREADS>(products);
    squares = sum_of_block<THREADS>(squares);
    if (threadIdx.x == 0) {
        sums_at[blockIdx.x] = products;
        sums_at[gridDim.x + blockIdx.x] = squares;
    }
}

extern "C" __global__ void squares(const float *x_at, double *sums_at, whole n) {
    double sum = 0;
    for (whole first = last_part(n); first >= 0; first -= stride()) {
        float x[EACH], square = 0;
        read(x, x_at, first, n);
#pragma unroll
        for (int i = 0; i < EACH; i++) square += x[i] * x[i];
        sum += square;
    }
    sum = sum_of_block<THREADS>(sum);
    if (threadIdx.x == 0) sums_at[blockIdx.x] = sum;
}

extern "C" __global__ void difference(float *out, const float *first_at, const float *second_at, whole n) {
    whole at = first_entry();
    float x[EACH], y[EACH];
    read(x, first_at, at, n);
    read(y, second_at, at, n);
#pragma unroll
    for (int i = 0; i < EACH; i++) x[i] -= y[i];
    write(out, x, at, n);
}

// A warp takes a row
extern "C" __global__ void inner_rows(
    const float *x_at, const float *y_at, double *products_at, double *squares_at, whole rows, whole width
) {
    whole row = (whole)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    x_at += row * width;
    y_at += row * width;
    double product = 0, square = 0;
    for (whole begin = threadIdx.x % 32; begin < width; begin += 32 * EACH) {
        float x[EACH], y[EACH], products = 0, squares = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            whole at = begin + 32 * i;
            x[i] = at < width ? x_at[at] : 0.f;
            y[i] = at < width ? y_at[at] : 0.f;
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            products += x[i] * y[i];
            squares += y[i] * y[i];
        }
        product += products;
        square += squares;
    }
    for (int apart = 16; apart; apart /= 2) {
        product += __shfl_xor_sync(~0u, product, apart);
        square += __shfl_xor_sync(~0u, square, apart);
    }
    if (threadIdx.x % 32 == 0) {
        products_at[row] = product;
        squares_at[row] = square;
    }
}

extern "C" __global__ void relu_rises(
    const float *H_at, const float *change_at, const float *prediction_at, const float *residual_at,
    const double *steps_at, double *sums_at, whole n, whole steps
) {
    constexpr int TOGETHER = 64;  // trials between two meetings of the block
    __shared__ float sums[THREADS / 32][TOGETHER];
    whole first = first_entry();
    float H[EACH], change[EACH], prediction[EACH], residual[EACH];
    read(H, H_at, first, n);
    read(change, change_at, first, n);
    read(prediction, prediction_at, first, n);
    read(residual, residual_at, first, n);
    for (whole begin = 0; begin < steps; begin += TOGETHER) {
        int some = steps - begin < TOGETHER ? (int)(steps - begin) : TOGETHER;
        for (int trial = 0; trial < some; trial++) {
            float step = steps_at[begin + trial], sum = 0;
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                float moved = nan_max(H[i] - step * change[i], 0.f) - prediction[i];
                float rise = (moved + 2 * residual[i]) * moved;
                sum += first + i * THREADS < n ? rise : 0.f;
            }
            for (int apart = 16; apart; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
            if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32][trial] = sum;
        }
        __syncthreads();
        if (threadIdx.x < some) {
            float sum = 0;
            for (int warp = 0; warp < THREADS / 32; warp++) sum += sums[warp][threadIdx.x];
            sums_at[(begin + threadIdx.x) * gridDim.x + blockIdx.x] = sum;
        }
        __syncthreads();
    }
}

__device__ unsigned stirred(unsigned x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 16)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

extern "C" __global__ void drop(
    float *out_at, const float *x_at, const whole *rows_at, const whole *columns_at, const double *limit_at,
    const double *factor_at, whole n, whole columns
) {
    whole first = first_entry();
    float x[EACH];
    read(x, x_at, first, n);
    double limit = *limit_at;
    float factor = *factor_at;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        whole at = first + i * THREADS;
        if (at >= n) break;
        whole row = at / columns;
        unsigned mixed = (unsigned)(rows_at[row] ^ columns_at[at - row * columns]);
        x[i] = (double)stirred(mixed) >= limit ? x[i] * factor : 0.f;
    }
    write(out_at, x, first, n);
}

// A thread takes a window of 2 x 2 entries: v, m have two rows of 2 across entries for each row of f, a
extern "C" __global__ void pool(
    float *v_at, float *f_at, const float *m_at, const float *a_at, double *sums_at, whole n, whole across,
    double weight, double pull
) {
    whole at = (whole)blockIdx.x * THREADS + threadIdx.x;
    float sum = 0;
    if (at < n) {
        float nu = weight, c = pull;
        whole place = at / across * (4 * across) + 2 * (at % across);
        whole places[4] = {place, place + 1, place + 2 * across, place + 2 * across + 1};
        float m[4], v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            m[i] = m_at[places[i]];
            v[i] = v_at[places[i]];
        }
        float high = fmaxf(m[0], m[1]), low = fminf(m[0], m[1]);
        float high2 = fmaxf(m[2], m[3]), low2 = fminf(m[2], m[3]);
        float first = fmaxf(high, high2), fourth = fminf(low, low2);
        float middle = fminf(high, high2), middle2 = fmaxf(low, low2);
        float second = fmaxf(middle, middle2), third = fminf(middle, middle2);
        float pulled = nu * first + c * a_at[at];
        float top = pulled / (nu + c);
        pulled += nu * second;
        top = top >= second ? top : pulled / (2 * nu + c);
        pulled += nu * third;
        top = top >= third ? top : pulled / (3 * nu + c);
        pulled += nu * fourth;
        top = top >= fourth ? top : pulled / (4 * nu + c);
        f_at[at] = top;
        // The first entry that is the largest takes the new maximum; the others come down to it
        bool taken = false;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bool is = m[i] == first && !taken;
            taken |= is;
            float moved = is ? top : fminf(m[i], top), apart = moved - v[i];
            sum += apart * apart;
            v_at[places[i]] = moved;
        }
    }
    sum = sum_of_block<THREADS>(sum);
    if (threadIdx.x == 0) sums_at[blockIdx.x] = sum;
}
