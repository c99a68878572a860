// CUDA code on a CPU. The threads of a block are contexts that take turns: each runs until it waits for others. Blocks
// run one after the other, so what they share is static.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int __float_as_int(float x) { int bits; memcpy(&bits, &x, 4); return bits; }
inline float __int_as_float(int bits) { float x; memcpy(&x, &bits, 4); return x; }
using std::ceil;
using std::expm1;
using std::frexp;
using std::ldexp;
using std::log;
using std::log1p;
using std::pow;

struct Dim { unsigned x = 0, y = 0; };

namespace emulated {

constexpr size_t STACK = 256 << 10, MEMORY = 227 << 10;
enum State { READY, AT_WARP, AT_BLOCK, LOOKS_AGAIN, DONE };

struct Product { float *sums; long long a, b; int adds; };

struct Thread {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(STACK);
    State state = READY;
    Dim index;
    std::vector<std::vector<Product>> products = {{}};  // groups of those under way, the last not ended
};

alignas(1024) unsigned char memory[MEMORY];
std::vector<Thread> threads;
std::vector<uint64_t> lent;  // what the lanes of each warp show each other
Thread *now;
ucontext_t scheduler;
std::function<void()> body;
Dim block, grid, threads_of_block;
bool happened;  // whether somebody who looks again may see something new

inline void wait_as(State state) {
    now->state = state;
    swapcontext(&now->context, &scheduler);
}

inline void run_thread() {
    body();
    happened = true;
    now->state = DONE;
    swapcontext(&now->context, &scheduler);
}

inline bool release(size_t first, size_t last, State state) {
    bool all = false;
    for (size_t i = first; i < last; i++)
        if (threads[i].state != DONE) {
            if (threads[i].state != state) return false;
            all = true;
        }
    for (size_t i = first; i < last; i++)
        if (threads[i].state == state) threads[i].state = READY;
    return all;
}

// False where threads wait for each other for ever
inline bool run_block() {
    memset(memory, 0xFF, MEMORY);
    for (size_t i = 0; i < threads.size(); i++) {
        Thread &thread = threads[i];
        thread.state = READY;
        thread.index.x = (unsigned)i;
        thread.products = {{}};
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.data();
        thread.context.uc_stack.ss_size = STACK;
        thread.context.uc_link = nullptr;
        makecontext(&thread.context, run_thread, 0);
    }
    for (;;) {
        happened = false;
        bool left = false;
        for (Thread &thread : threads) {
            if (thread.state == READY) happened = true;
            if (thread.state == READY || thread.state == LOOKS_AGAIN) {
                now = &thread;
                swapcontext(&scheduler, &thread.context);
            }
        }
        for (size_t i = 0; i < threads.size(); i += 32)
            happened |= release(i, std::min(i + 32, threads.size()), AT_WARP);
        happened |= release(0, threads.size(), AT_BLOCK);
        for (Thread &thread : threads) left |= thread.state != DONE;
        if (!left) return true;
        if (!happened) return false;
    }
}

template <class... Arguments, size_t... I>
void call(void (*kernel)(Arguments...), const char *packed, std::index_sequence<I...>) {
    auto unpacked = [&](auto *as, size_t i) {
        std::remove_reference_t<decltype(*as)> value;
        static_assert(sizeof(value) == 8, "every argument takes 8 bytes");
        memcpy(&value, packed + 8 * i, 8);
        return value;
    };
    kernel(unpacked((Arguments *)nullptr, I)...);
}

template <class... Arguments>
int launch(void (*kernel)(Arguments...), const char *packed, unsigned across, unsigned down, unsigned threads_each) {
    if (threads.size() != threads_each) threads = std::vector<Thread>(threads_each);
    lent.assign(threads_each, 0);
    grid = {across, down}, threads_of_block = {threads_each, 1};
    body = [=] { call(kernel, packed, std::index_sequence_for<Arguments...>()); };
    for (block.y = 0; block.y < down; block.y++)
        for (block.x = 0; block.x < across; block.x++)
            if (!run_block()) return 1;
    return 0;
}

}  // namespace emulated

#define threadIdx (emulated::now->index)
#define blockIdx emulated::block
#define blockDim emulated::threads_of_block
#define gridDim emulated::grid

inline void __syncthreads() { emulated::wait_as(emulated::AT_BLOCK); }
inline void __syncwarp() { emulated::wait_as(emulated::AT_WARP); }

template <typename T> T __shfl_sync(unsigned, T value, int lane) {
    static_assert(sizeof(T) <= 8, "");
    memcpy(&emulated::lent[threadIdx.x], &value, sizeof(T));
    __syncwarp();
    memcpy(&value, &emulated::lent[threadIdx.x / 32 * 32 + lane], sizeof(T));
    __syncwarp();
    return value;
}
template <typename T> T __shfl_xor_sync(unsigned all, T value, int apart) {
    return __shfl_sync(all, value, threadIdx.x % 32 ^ apart);
}
