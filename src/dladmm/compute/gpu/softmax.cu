// The prox of softmax cross-entropy, dladmm/losses/cross_entropy.py (softmax_prox, which explains the method): all its
// Newton steps in one launch. Some lanes take a row (softmax_kernels.py says how many), each some classes of it.

// DOUBLE says what is given, and is defined where this is compiled. Loops are not unrolled: that takes the compiler twice
// as long, and gains nothing.

typedef long long whole;
#if DOUBLE
typedef double given;
#else
typedef float given;
#endif

constexpr int INNER = 4;       // Newton steps for each class, as losses.cross_entropy has them
constexpr int FROM_ROUGH = 2;  // those in float64 from the root in float32, each of which doubles the digits

__device__ double largest_of_lanes(double x, int lanes) {
    for (int apart = lanes / 2; apart; apart /= 2) x = fmax(x, __shfl_xor_sync(~0u, x, apart));
    return x;
}

// What is sought of a class at s: the root t of k expm1(t) + t + d
template <typename real> struct Class {
    bool labelled;
    real k, log_k, d;

    __device__ Class(real v, real y, real s, real r, real log_r) {
        labelled = y > real(1e-30);
        real log_y = labelled ? log(y) : 0;
        k = labelled ? y / r : 1;
        log_k = labelled ? log_y - log_r : 0;
        d = (labelled ? log_y : 1 + log_r) - v + s;
    }

    __device__ real above() const {
        real x = k + log_k - d, below = (x - 1) / 2 < x ? (x - 1) / 2 : x;
        return (x > real(3.5) ? log(x) : below) - log_k;
    }

    __device__ real root(real t, int steps) const {
#pragma unroll 1
        for (int i = 0; i < steps; i++) {
            real e = expm1(t) * k;
            t -= (e + t + d) / (e + k + 1);
        }
        return t;
    }
};

template <typename real> __device__ bool finite(real x) { return x - x == 0; }

__device__ float root(const Class<float> &at, float, float, float, float, float) { return at.root(at.above(), INNER); }

__device__ double root(const Class<double> &at, float v, float y, float s, float r, float log_r) {
    Class<float> rounded(v, y, s, r, log_r);
    float rough = root(rounded, v, y, s, r, log_r);
    bool near = finite(rough);
    return at.root(near ? rough : at.above(), near ? FROM_ROUGH : INNER);
}

// w - y/r at s, and w itself (its return value)
template <typename real> __device__ real omega(real v, real y, real s, real r, real log_r, real &excess) {
    Class<real> at(v, y, s, r, log_r);
    excess = at.k * expm1(root(at, v, y, s, r, log_r));
    real w = excess + at.k;
    if (!at.labelled) excess = w;
    return w;
}

template <typename real> struct Row {
    const real *v, *y;
    int classes, lanes, lane;

    // One Newton step of s
    template <typename rounded> __device__ rounded step(rounded s, rounded r, rounded log_r, rounded total) const {
        rounded gap = 0, weight = 0, slope = 0;
#pragma unroll 1
        for (int column = lane; column < classes; column += lanes) {
            rounded excess, w = omega<rounded>(v[column], y[column], s, r, log_r, excess);
            gap += excess;
            weight += w;
            slope += w / (1 + w);
        }
        gap = sum_of_lanes(gap, lanes);
        weight = sum_of_lanes(weight, lanes);
        slope = sum_of_lanes(slope, lanes);
        return (gap + log1p(gap / total)) / ((1 + 1 / weight) * slope);
    }
};

extern "C" __global__ void softmax_prox(
    given *z, const given *v, const given *y, const given *r_at, double r, whole n, whole many, whole each,
    whole rough_steps, whole steps
) {
    int classes = (int)many, lanes = (int)each;
    whole row = ((whole)blockIdx.x * blockDim.x + threadIdx.x) / lanes;
    bool inside = row < n;  // all lanes go on: they add up together
    if (!inside) row = n - 1;
    Row<given> at = {v + row * classes, y + row * classes, classes, lanes, (int)(threadIdx.x % lanes)};
    if (r_at) r = r_at[row];
    double log_r = log(r), largest = at.v[0], sum = 0, total = 0;
#pragma unroll 1
    for (int column = at.lane; column < classes; column += lanes) {
        largest = fmax(largest, (double)at.v[column]);
        total += at.y[column];
    }
    largest = largest_of_lanes(largest, lanes);
    total = sum_of_lanes(total, lanes) / r;
#pragma unroll 1
    for (int column = at.lane; column < classes; column += lanes) sum += exp(at.v[column] - largest);
    double start = largest + log(sum_of_lanes(sum, lanes)), s = start;
    float rough = start;
#pragma unroll 1
    for (int i = 0; i < rough_steps; i++) rough += at.template step<float>(rough, r, log_r, total);
    if (finite(rough)) s = rough;
#pragma unroll 1
    for (int i = 1; i < steps; i++) s += at.template step<double>(s, r, log_r, total);
#pragma unroll 1
    for (int column = at.lane; column < classes && inside; column += lanes) {
        double excess;
        omega<double>(at.v[column], at.y[column], s, r, log_r, excess);
        z[row * classes + column] = at.v[column] - excess;
    }
}
