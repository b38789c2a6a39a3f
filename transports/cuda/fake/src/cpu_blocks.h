// A block from its first thread to the end of its last one, and how a kernel is called with its
// parameters.
#pragma once

namespace brigade_cpu {

// A fiber's first and last function.
[[noreturn]] static void main_of_fiber() {
    Block &b = *block;
    b.kernel(b.arguments);
    Fiber &me = fiber();
    me.is_done = true;
    me.warp->live &= ~(1u << me.lane);
    b.live--;
    if (b.live == 0) {
        void *gone;
        brigade_cpu_switch(&gone, b.home);
    }
    yield();
    __builtin_unreachable();
}

// What a fiber comes back to lies elsewhere in each stack, so that those of a block have places in a
// cache side by side.
constexpr size_t COLOURS = 256, COLOUR_BYTES = 256;

static inline void prepare(Fiber &f, unsigned number) {
    if (stacks.kept.empty()) {
        void *fresh = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (fresh == MAP_FAILED) abort();
        stacks.kept.push_back((char *)fresh);
    }
    f.stack = stacks.kept.back();
    stacks.kept.pop_back();
    const size_t colour = number % COLOURS * COLOUR_BYTES;
    void **top = (void **)(f.stack + STACK_BYTES - 64 - colour);
    *--top = nullptr;  // Where main_of_fiber would return to; it aligns the stack, too.
    *--top = (void *)main_of_fiber;
    for (int saved = 0; saved < 6; saved++) *--top = nullptr;
    f.stack_pointer = top;
}

// Run one block on this thread, to its end.
static void run(const unsigned *grid, const unsigned *size, const unsigned *index,
                unsigned shared_bytes, void (*kernel)(void **), void **arguments,
                void (*on_stall)(void *), void *on_stall_data) {
    Block b{};
    b.grid = {grid[0], grid[1], grid[2]};
    b.size = {size[0], size[1], size[2]};
    b.index = {index[0], index[1], index[2]};
    unsigned threads = size[0] * size[1] * size[2];
    b.fibers.resize(threads);
    b.warps.resize((threads + WARP - 1) / WARP);
    b.shared.resize(shared_bytes + 128);
    b.live = threads;
    b.kernel = kernel, b.arguments = arguments;
    b.on_stall = on_stall, b.on_stall_data = on_stall_data;
    for (unsigned at = 0; at < threads; at++) {
        Fiber &f = b.fibers[at];
        f.thread = {at % size[0], at / size[0] % size[1], at / size[0] / size[1]};
        f.lane = at % WARP;
        f.warp = &b.warps[at / WARP];
        f.warp->live |= 1u << f.lane;
        prepare(f, at);
    }
    Block *before = block;
    block = &b;
    brigade_cpu_switch(&b.home, b.fibers[0].stack_pointer);
    block = before;
    for (Fiber &f : b.fibers) stacks.kept.push_back(f.stack);
}

static inline void *dynamic_shared() {
    uintptr_t start = (uintptr_t)block->shared.data();
    return (void *)((start + 127) & ~(uintptr_t)127);
}

// A kernel's parameters: their sizes, for who copies arguments, and how it is called with them.
template <typename... A, size_t... I>
static void call(void (*kernel)(A...), void **arguments, std::index_sequence<I...>) {
    kernel(*(std::remove_reference_t<A> *)arguments[I]...);
}
template <typename... A> static void call(void (*kernel)(A...), void **arguments) {
    call(kernel, arguments, std::index_sequence_for<A...>{});
}
template <typename... A>
static unsigned sizes(void (*)(A...), unsigned *into, unsigned room) {
    const size_t all[] = {sizeof(A)..., 0};
    for (unsigned at = 0; at < sizeof...(A) && at < room; at++) into[at] = (unsigned)all[at];
    return sizeof...(A);
}

}  // namespace brigade_cpu

extern "C" void brigade_cpu_run(const unsigned *grid, const unsigned *size, const unsigned *index,
                                unsigned shared_bytes, void (*kernel)(void **), void **arguments,
                                void (*on_stall)(void *), void *data) {
    brigade_cpu::run(grid, size, index, shared_bytes, kernel, arguments, on_stall, data);
}
