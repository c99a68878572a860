// out (m, n) = start + factor A (m, k) B (n, k)^T in float32, of three products of float16 parts.
//
// The smaller parts' product is left out, below 2^-22 of a product. Tensor cores round every addition down, so what
// DEEP columns add up to goes to an ordinary float32 sum. Two groups of four warps make 128 rows each and take turns,
// so that one adds up while the tensor cores work for the other; pieces are copied some steps ahead by the copy engine,
// which counts the bytes that have arrived at a barrier.

constexpr int STAGES = 4, TOGETHER = 8;  // steps in shared memory, reads that a thread has on their way at the end
constexpr int WIDE = TALL + 8;           // of a row of sums in shared memory: banks do not collide
constexpr unsigned STAGE = 3 * PIECE, SCALES = TALL * 4;

extern "C" __global__ void __launch_bounds__(256, 1) product(
    const unsigned char *a, const float *a_scales, const unsigned char *b, const float *b_scales, const float *start,
    float *out, whole m, whole n, whole blocks, whole each, whole between, whole started, whole symmetric, double factor
) {
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ __align__(8) whole barriers[2 * STAGES];
    unsigned base = address(memory), full = address(barriers), empty = full + 8 * STAGES;
    int thread = threadIdx.x, lane = thread % 32, group = thread / 128;
    int across = (int)((n + TALL - 1) / TALL), tile = blockIdx.x, down = tile / across, beside = tile % across;
    if (symmetric) {  // tiles left of the diagonal are left out
        down = 0;
        while (tile >= across - 2 * down) tile -= across - 2 * down++;
        beside = 2 * down + tile;
    }
    int first = blockIdx.y * (int)each, last = first + (int)each < blocks ? first + (int)each : (int)blocks;
    int steps = last - first, lowest = (int)((m + TALL - 1) / TALL) - 1;
    whole upper = (whole)(2 * down) * blocks + first, right = (whole)beside * blocks + first;
    whole lower = (whole)(2 * down < lowest ? 2 * down + 1 : lowest) * blocks + first;

    auto fetch = [&](int step) {
        unsigned stage = base + step % STAGES * STAGE, scales = base + STAGES * STAGE + step % STAGES * (3 * SCALES);
        unsigned barrier = full + step % STAGES * 8;
        arrive_and_expect(barrier, STAGE + 3 * SCALES);
        copy(stage, a + (upper + step) * PIECE, PIECE, barrier);
        copy(stage + PIECE, a + (lower + step) * PIECE, PIECE, barrier);
        copy(stage + 2 * PIECE, b + (right + step) * PIECE, PIECE, barrier);
        copy(scales, a_scales + (upper + step) * TALL, SCALES, barrier);
        copy(scales + SCALES, a_scales + (lower + step) * TALL, SCALES, barrier);
        copy(scales + 2 * SCALES, b_scales + (right + step) * TALL, SCALES, barrier);
    };

    if (thread == 0) {
        for (int i = 0; i < STAGES; i++) {
            make_barrier(full + 8 * i, 1);
            make_barrier(empty + 8 * i, 8);  // warps
        }
        barriers_made();
        for (int step = 0; step < STAGES && step < steps; step++) fetch(step);
    }
    __syncthreads();

    float total[2][64];
#pragma unroll
    for (int i = 0; i < 128; i++) total[i / 64][i % 64] = 0;
    int of_four = lane % 4, own = thread % 128 / 32 * 16 + lane / 4;  // of 64 rows; the other one lies 8 further down

    if (started && between) {  // start is read at the end: let it come nearer
        whole row = (whole)(2 * down) * TALL + thread;
        for (int line = 0; line < TALL / 32; line++)
            if (row < m && beside * TALL + line * 32 < n)
                come_nearer(start + row * between + beside * TALL + line * 32);
    }
    if (group == 1) give_turn(0);
    for (int step = 0; step < steps; step++) {
        unsigned stage = step % STAGES, at = base + stage * STAGE;
        const float *scales = (const float *)(memory + STAGES * STAGE + stage * (3 * SCALES));
        wait(full + 8 * stage, step / STAGES & 1);
#pragma unroll
        for (int half = 0; half < 2; half++) {  // 64 rows of the group
            float part[64];
            unsigned x = at + group * PIECE + half * (64 * LINE), y = at + 2 * PIECE;
            take_turn(group);
            multiply_begins();
#pragma unroll
            for (int i = 0; i < 2; i++) {
                multiply(part, matrix(x + 64 + 32 * i), matrix(y + 32 * i), i);
                multiply(part, matrix(x + 32 * i), matrix(y + 64 + 32 * i), 1);
            }
            multiply_ends();
#pragma unroll
            for (int i = 0; i < 2; i++) multiply(part, matrix(x + 32 * i), matrix(y + 32 * i), 1);
            multiply_ends();
            const float *of_rows = scales + group * TALL + half * 64 + own;
            float upper_scale = of_rows[0], lower_scale = of_rows[8];
            multiplied<1>();  // what is left takes the tensor cores as long as the other group needs to begin
            if (group == 0 || half == 0 || step + 1 < steps) give_turn(1 - group);
            // Meanwhile what the step before has read is replaced
            if (half == 1 && thread == 0 && step > 0 && step - 1 + STAGES < steps) {
                wait(empty + (step - 1) % STAGES * 8, (step - 1) / STAGES & 1);
                fetch(step - 1 + STAGES);
            }
            __syncwarp();
            multiplied<0>();
            settle(part);
#pragma unroll
            for (int i = 0; i < 16; i++) {
                float2 of_columns = *(const float2 *)(scales + 2 * TALL + i * 8 + of_four * 2);
                float *sums = total[half] + 4 * i;
                sums[0] = fmaf(part[4 * i] * upper_scale, of_columns.x, sums[0]);
                sums[1] = fmaf(part[4 * i + 1] * upper_scale, of_columns.y, sums[1]);
                sums[2] = fmaf(part[4 * i + 2] * lower_scale, of_columns.x, sums[2]);
                sums[3] = fmaf(part[4 * i + 3] * lower_scale, of_columns.y, sums[3]);
            }
        }
        __syncwarp();
        if (lane == 0) arrive(empty + 8 * stage);
    }

    // By way of shared memory, so that neighbours write to neighbours; nobody reads pieces any more
    __syncthreads();
    float *made = (float *)memory;
#pragma unroll
    for (int i = 0; i < 64; i++) {
        int row = group * TALL + i / 32 * 64 + own + i % 2 * 8, column = i % 32 / 2 * 8 + of_four * 2;
        int from = i % 32 / 2 * 4 + i % 2 * 2;
        *(float2 *)(made + row * WIDE + column) = make_float2(total[i / 32][from], total[i / 32][from + 1]);
    }
    __syncthreads();
    whole above = (whole)down * (2 * TALL), before = (whole)beside * TALL;
    int height = m - above < 2 * TALL ? (int)(m - above) : 2 * TALL;
    int width = n - before < TALL ? (int)(n - before) : TALL;
    out += blockIdx.y * m * n + above * n + before;
    start += above * between + before;
    float s = factor;
    bool aligned = ((whole)out & 15) == 0 && (!started || ((whole)start & 15) == 0) && n % 4 == 0;
    if (aligned)
#pragma unroll 1
        for (int first = thread; first < height * (TALL / 4); first += TOGETHER * 256) {
            float4 sums[TOGETHER];  // all are read before the first is written: out may be start
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                int row = (first + i * 256) / (TALL / 4), column = first % (TALL / 4) * 4;
                bool inside = started && row < height && column < width;
                sums[i] = inside ? *(const float4 *)(start + row * between + column) : make_float4(0.f, 0.f, 0.f, 0.f);
            }
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                int row = (first + i * 256) / (TALL / 4), column = first % (TALL / 4) * 4;
                if (row >= height || column >= width) continue;
                float4 x = *(const float4 *)(made + row * WIDE + column), y = sums[i];
                x.x = fmaf(x.x, s, y.x), x.y = fmaf(x.y, s, y.y), x.z = fmaf(x.z, s, y.z), x.w = fmaf(x.w, s, y.w);
                *(float4 *)(out + row * n + column) = x;
            }
        }
    else
#pragma unroll 1
        for (int i = thread; i < height * TALL; i += 256) {
            int row = i / TALL, column = i % TALL;
            if (column >= width) continue;
            out[row * n + column] = fmaf(made[row * WIDE + column], s, started ? start[row * between + column] : 0.f);
        }
}

// The sum of what several products have, each (p, q); of a symmetric matrix what lies on and right of the diagonal is
// known
extern "C" __global__ void __launch_bounds__(256) add_products(
    const float *found, double *sums, whole p, whole q, whole products, whole symmetric
) {
    whole at = (whole)blockIdx.x * 256 + threadIdx.x;
    if (at >= p * q) return;
    whole row = at / q, column = at % q, from = symmetric && column < row ? column * q + row : at;
    double sum = 0;
    for (whole i = 0; i < products; i++) sum += found[i * p * q + from];
    sums[at] = sum;
}
