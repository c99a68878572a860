// What only Hopper GPUs have: barriers that count bytes, a copy engine, products of matrices in shared memory, each as
// a function. tests/compute/emulated has the same functions for a CPU.

// Two numbers as float16 parts, the high ones and what is left, the first in the lower half of each
__device__ __forceinline__ void parts(float x, float y, unsigned &high, unsigned &rest) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(high) : "f"(y), "f"(x));
    float near_x, near_y;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
        : "=f"(near_x), "=f"(near_y) : "r"(high));
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(rest) : "f"(y - near_y), "f"(x - near_x));
}

__device__ __forceinline__ unsigned address(const void *shared) { return (unsigned)__cvta_generic_to_shared(shared); }

// A barrier's phase is over when so many have arrived, and all bytes that they expect
__device__ __forceinline__ void make_barrier(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barriers_made() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive_and_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Until the phase of this parity is over
__device__ __forceinline__ void wait(unsigned barrier, unsigned parity) {
    asm volatile(
        "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra again; }"
        ::"r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void copy(unsigned to, const void *from, unsigned bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
__device__ __forceinline__ void come_nearer(const void *from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// Two groups of 128 threads take turns: a group waits until the other has given it the turn
__device__ __forceinline__ void take_turn(int group) { asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory"); }
__device__ __forceinline__ void give_turn(int group) {
    asm volatile("bar.arrive %0, 256;" ::"r"(1 + group) : "memory");
}

// A matrix in shared memory for the tensor cores: rows of 128 swizzled bytes, eight of them after the other
__device__ __forceinline__ whole matrix(unsigned at) {
    return (whole)((at & 0x3FFFF) >> 4) | (whole)1 << 16 | (whole)(1024 >> 4) << 32 | (whole)1 << 62;
}

// d (64 x 128) = a b^T of 16 columns, or added to d. Of a group's 64 rows, thread t has t / 32 * 16 + t % 32 / 4 and
// the one 8 further down, of the columns 8 i + t % 4 * 2 and the next: d[4 i], d[4 i + 1], and below d[4 i + 2], d[4 i + 3]
__device__ __forceinline__ void multiply(float (&d)[64], whole a, whole b, int adds) {
    asm volatile(
        "{ .reg .pred adds; setp.ne.b32 adds, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
        "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "
        "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, adds, 1, 1, 0, 0; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
          "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
          "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(adds));
}
__device__ __forceinline__ void multiply_begins() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void multiply_ends() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most so many of what has ended are under way
template <int LATER> __device__ __forceinline__ void multiplied() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LATER) : "memory");
}

// The compiler may not move what becomes of products past the wait for them
__device__ __forceinline__ void settle(float (&x)[64]) {
#pragma unroll
    for (int i = 0; i < 64; i++) asm volatile("" : "+f"(x[i])::"memory");
}
