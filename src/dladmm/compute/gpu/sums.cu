// Sums over threads, for other files of this folder: over lanes that stand side by side, or over a block.

template <typename real> __device__ real sum_of_lanes(real x, int lanes) {
    for (int apart = lanes / 2; apart; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
    return x;
}

template <int threads> __device__ double sum_of_block(double x) {
    __shared__ double sums[threads / 32];
    x = sum_of_lanes(x, 32);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int warp = 0; warp < threads / 32; warp++) x += sums[warp];
    __syncthreads();
    return x;
}
