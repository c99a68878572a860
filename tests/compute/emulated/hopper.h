// The functions of src/dladmm/compute/gpu/hopper.cu for a CPU. Products are made as late as they may be, copies as early,
// so that what is overwritten before it was read shows.

inline void parts(float x, float y, unsigned &high, unsigned &rest) {
    _Float16 near[2] = {(_Float16)x, (_Float16)y};
    _Float16 left[2] = {(_Float16)(x - (float)near[0]), (_Float16)(y - (float)near[1])};
    memcpy(&high, near, 4);
    memcpy(&rest, left, 4);
}

// Shared memory from 0 on, and what else is shared in windows of its own
constexpr unsigned WINDOW = 1 << 16, FIRST_WINDOW = 1 << 30;

inline std::vector<const unsigned char *> &windows() {
    static std::vector<const unsigned char *> found;
    return found;
}
inline unsigned address(const void *shared) {
    const unsigned char *at = (const unsigned char *)shared;
    if (at >= emulated::memory && at < emulated::memory + emulated::MEMORY) return (unsigned)(at - emulated::memory);
    for (size_t i = 0; i < windows().size(); i++)
        if (windows()[i] == at) return FIRST_WINDOW + (unsigned)i * WINDOW;
    windows().push_back(at);
    return FIRST_WINDOW + (unsigned)(windows().size() - 1) * WINDOW;
}
inline unsigned char *pointer(unsigned at) {
    if (at < FIRST_WINDOW) return emulated::memory + at;
    return (unsigned char *)windows()[(at - FIRST_WINDOW) / WINDOW] + at % WINDOW;
}

// In the 8 bytes of a barrier: how many arrivals make a phase and are missing, bytes that are missing, phases so far
struct Barrier {
    uint8_t arrivals, missing;
    uint16_t phase;
    int32_t bytes;
};
inline void with(unsigned at, const std::function<void(Barrier &)> &change) {
    Barrier barrier;
    memcpy(&barrier, pointer(at), 8);
    change(barrier);
    if (barrier.missing == 0 && barrier.bytes == 0) barrier.missing = barrier.arrivals, barrier.phase++;
    memcpy(pointer(at), &barrier, 8);
    emulated::happened = true;
}
inline void make_barrier(unsigned barrier, int arrivals) {
    Barrier made = {(uint8_t)arrivals, (uint8_t)arrivals, 0, 0};
    memcpy(pointer(barrier), &made, 8);
}
inline void barriers_made() {}
inline void arrive(unsigned barrier) {
    with(barrier, [](Barrier &b) { b.missing--; });
}
inline void arrive_and_expect(unsigned barrier, unsigned bytes) {
    with(barrier, [=](Barrier &b) { b.missing--, b.bytes += (int32_t)bytes; });
}
inline void wait(unsigned barrier, unsigned parity) {
    for (;;) {
        Barrier b;
        memcpy(&b, pointer(barrier), 8);
        if ((b.phase & 1) != parity) return;
        emulated::wait_as(emulated::LOOKS_AGAIN);
    }
}
inline void copy(unsigned to, const void *from, unsigned bytes, unsigned barrier) {
    memcpy(pointer(to), from, bytes);
    with(barrier, [=](Barrier &b) { b.bytes -= (int32_t)bytes; });
}
inline void come_nearer(const void *) {}

struct Turn { int present = 0, rounds = 0; };
inline Turn &turn_of(int group) {
    static Turn turns[2];
    return turns[group];
}
inline void give_turn(int group) {
    Turn &turn = turn_of(group);
    if (++turn.present == 256) turn.present = 0, turn.rounds++;
    emulated::happened = true;
}
inline void take_turn(int group) {
    int before = turn_of(group).rounds;
    give_turn(group);
    while (turn_of(group).rounds == before) emulated::wait_as(emulated::LOOKS_AGAIN);
}

inline whole matrix(unsigned at) { return at; }

// Where a number of a swizzled matrix lies
inline float number(whole start, int row, int column) {
    unsigned at = (unsigned)start + (unsigned)row * 128 + (unsigned)column * 2;
    _Float16 found;
    memcpy(&found, emulated::memory + (at ^ (at >> 3 & 0x70)), 2);
    return (float)found;
}
inline void make(const emulated::Product &product) {
    int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    for (int i = 0; i < 64; i++) {
        int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        float sum = product.adds ? product.sums[i] : 0.f;
        for (int k = 0; k < 16; k++) sum += number(product.a, row, k) * number(product.b, column, k);
        product.sums[i] = sum;
    }
}
inline void multiply(float (&d)[64], whole a, whole b, int adds) {
    emulated::now->products.back().push_back({d, a, b, adds});
}
inline void multiply_begins() {}
inline void multiply_ends() { emulated::now->products.emplace_back(); }
template <int LATER> void multiplied() {
    auto &groups = emulated::now->products;
    while (groups.size() > LATER + 1) {
        for (const emulated::Product &product : groups.front()) make(product);
        groups.erase(groups.begin());
    }
}
inline void settle(float (&)[64]) {}
