// Arithmetic on a few numbers, dladmm/compute/number_kernels.py: what plain functions take ten to thirty launches for.

typedef long long whole;

// A quotient, and otherwise where the denominator is zero: dladmm/compute/passes.py
__device__ double ratio(double numerator, double denominator, double otherwise = 0) {
    return denominator > 0 ? numerator / denominator : otherwise;
}

// Where the backtracking of Algorithms 3, 4, 6 and 7 stops: dladmm/solvers/subproblems.py. No start is 0
__device__ double backtracked(double required, double start, double growth) {
    if (!(start > 0)) return required < 2.2250738585072014e-308 ? 2.2250738585072014e-308 : required;
    double exponent = ceil(log((required < start ? start : required) / start) / log(growth));
    if (start * pow(growth, exponent - 1) >= required) exponent -= 1;
    if (exponent < 0) exponent = 0;
    if (start * pow(growth, exponent) < required) exponent += 1;
    return start * pow(growth, exponent);
}

// Equations 3 and 16, dladmm/solvers/subproblems.py: length, squared length with that of the direction, rate
extern "C" __global__ void majorised_numbers(
    double *out, const double *d_squared_at, const double *moved_squared_at, double c, double nu, double start,
    double growth
) {
    if (threadIdx.x) return;
    double d_squared = *d_squared_at;
    double tau = backtracked(nu * (c * ratio(*moved_squared_at, d_squared) + 1), start, growth);
    double length = d_squared > 0 ? nu / tau : 0, squared = d_squared * (length * length);
    out[0] = length;
    out[1] = squared;
    out[2] = ratio(tau * squared, squared, nu) / 2;
}

// Equations 9 and 11, dladmm/solvers/weight_step.py: multiple of the heading, squared length, rate
extern "C" __global__ void majorised_length(
    double *out, const double *squared_at, const double *moved_squared_at, const float *power32, const double *power64,
    double c, double strength, double start, double growth
) {
    if (threadIdx.x) return;
    double squared = *squared_at, power = power32 ? *power32 : power64 ? *power64 : 1;
    double alpha = backtracked(c * ratio(*moved_squared_at, squared), start, growth);
    double multiple = squared > 0 ? power * c / (alpha + strength) : 0;
    out[0] = multiple;
    out[1] = squared * (multiple * multiple);
    out[2] = (alpha + strength) / 2;
}

// Equations 8 and 10, dladmm/solvers/weight_step.py, the same
extern "C" __global__ void solved_length(
    double *out, const double *squared_at, const double *moved_squared_at, const double *slope_at,
    const double *shifted_at, double c, double strength
) {
    if (threadIdx.x) return;
    double squared = *squared_at, moved_squared = *moved_squared_at, shifted = *shifted_at;
    double multiple = ratio(*slope_at, moved_squared + shifted, 1);
    multiple = multiple < 0 ? 0 : multiple;
    out[0] = multiple;
    out[1] = squared * (multiple * multiple);
    out[2] = c * ratio(moved_squared / 2 + shifted, squared) - strength / 2;
}

template <typename real> __device__ void power_above(real *out, const real *low, const real *high) {
    if (threadIdx.x) return;
    real largest = -*low > *high ? -*low : *high;
    int exponent = 0;
    frexp(largest, &exponent);
    out[0] = ldexp(real(1), exponent < -120 ? -120 : exponent > 120 ? 120 : exponent);
}

extern "C" __global__ void power_above_float32(float *out, const float *low, const float *high) {
    power_above<float>(out, low, high);
}

extern "C" __global__ void power_above_float64(double *out, const double *low, const double *high) {
    power_above<double>(out, low, high);
}

constexpr int THREADS = 256;

// The shift of b, Equations 6, 7, 12 and 13, dladmm/solvers/least_squares.py, its squared length and its rate
template <typename real> __device__ void mean_shift(
    real *shift_at, double *out, const double *sums_at, const double *samples_at, double samples, double weight, whole n
) {
    __shared__ double squares[THREADS];
    if (samples_at) samples = *samples_at;
    double square = 0;
    for (whole at = threadIdx.x; at < n; at += THREADS) {
        real shift = -(sums_at[at] / samples);
        shift_at[at] = shift;
        square += (double)shift * shift;
    }
    squares[threadIdx.x] = square;
    for (int half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) squares[threadIdx.x] += squares[threadIdx.x + half];
    }
    if (threadIdx.x) return;
    out[0] = squares[0];
    out[1] = weight / 2 * samples;
}

#define MEAN_SHIFT(name, real)                                                                                        \
    extern "C" __global__ void name(                                                                                  \
        real *shift, double *out, const double *sums, const double *samples_at, double samples, double weight, whole n \
    ) {                                                                                                               \
        mean_shift<real>(shift, out, sums, samples_at, samples, weight, n);                                           \
    }

MEAN_SHIFT(mean_shift_float32, float)
MEAN_SHIFT(mean_shift_float64, double)
