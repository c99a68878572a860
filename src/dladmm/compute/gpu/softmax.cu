// A Newton step of the softmax prox, dladmm/losses/cross_entropy.py: as many lanes take a row as it has classes, or 32.

typedef long long whole;

constexpr int INNER = 4;  // Newton steps for each class, as losses.cross_entropy has them

template <typename real> __device__ real sum_of_lanes(real x, int lanes) {
    for (int apart = lanes / 2; apart; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
    return x;
}

template <typename real> __device__ void newton(
    real *excess_at, real *s_at, real *step_at, const real *offset_at, const real *k_at, const real *log_k_at,
    const bool *labelled_at, const real *total_at, whole n, int classes, int lanes
) {
    whole row = ((whole)blockIdx.x * blockDim.x + threadIdx.x) / lanes;
    bool inside = row < n;  // all lanes go on: they add up together
    if (!inside) row = n - 1;
    real s = s_at[row], total = total_at[row], gap = 0, weight = 0, slope = 0;
    for (int column = threadIdx.x % lanes; column < classes; column += lanes) {
        whole at = row * classes + column;
        real d = offset_at[at] + s, k = k_at[at], log_k = log_k_at[at], x = k + log_k - d;
        real below = (x - 1) / 2 < x ? (x - 1) / 2 : x;
        real t = (x > real(3.5) ? log(x) : below) - log_k;
        for (int i = 0; i < INNER; i++) {
            real e = expm1(t) * k;
            t -= (e + t + d) / (e + k + 1);
        }
        real excess = k * expm1(t), w = excess + k;
        if (!labelled_at[at]) excess = w;
        if (inside) excess_at[at] = excess;
        gap += excess;
        weight += w;
        slope += w / (1 + w);
    }
    gap = sum_of_lanes(gap, lanes);
    weight = sum_of_lanes(weight, lanes);
    slope = sum_of_lanes(slope, lanes);
    real step = (gap + log1p(gap / total)) / ((1 + 1 / weight) * slope);
    __syncwarp();  // every lane has read s
    if (inside && threadIdx.x % lanes == 0) {
        step_at[row] = step;
        s_at[row] = s + step;
    }
}

#define NEWTON_STEP(name, real)                                                                                        \
    extern "C" __global__ void name(                                                                                   \
        real *excess, real *s, real *step, const real *offset, const real *k, const real *log_k, const bool *labelled, \
        const real *total, whole n, whole classes, whole lanes                                                         \
    ) {                                                                                                                \
        newton<real>(excess, s, step, offset, k, log_k, labelled, total, n, (int)classes, (int)lanes);                 \
    }

NEWTON_STEP(newton_step_float32, float)
NEWTON_STEP(newton_step_float64, double)
