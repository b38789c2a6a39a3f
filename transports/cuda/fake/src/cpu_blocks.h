// A block from its first thread to the end of its last one, and how a kernel is called with its
// parameters.
#pragma once

namespace brigade_cpu {

// What runs on a stack: a thread of the block to its end, and then, while the next in turn has not
// begun, that one too. So a block whose threads wait for nobody needs one stack.
[[noreturn]] BRIGADE_UNSEEN static void main_of_stack() {
    Block &b = *block;
    come_behind(&b.beginning);
    char *stack = fiber().stack;
    Fiber *next;
    do {
        b.kernel(b.arguments);
        Fiber &me = fiber();
        me.is_done = true;
        me.warp->live &= ~(1u << me.lane);
        b.live--;
        next = &take_turn();
    } while (b.live > 0 && !next->stack_pointer && !next->identity);
    // Nobody takes this stack before the switch has left it.
    if (!next->identity) b.stacks->kept.push_back(stack);
    if (b.live > 0 && !next->stack_pointer) begin(*next);
    go_before(&b.end);
    become(b.live == 0 ? &b.identity : next->identity);
    void *gone;
    brigade_cpu_switch(&gone, b.live == 0 ? b.home : next->stack_pointer);
    __builtin_unreachable();
}

// What a fiber comes back to lies elsewhere in each stack, so that those of a block have places in a
// cache side by side.
constexpr size_t COLOURS = 256, COLOUR_BYTES = 256;

BRIGADE_UNSEEN static void begin(Fiber &f) {
    f.stack = f.identity ? f.identity->stack : block->stacks->take();
    const size_t colour = (&f - block->first) % COLOURS * COLOUR_BYTES;
    void **top = (void **)(f.stack + STACK_BYTES - 64 - colour);
    *--top = nullptr;  // Where main_of_stack would return to; it aligns the stack, too.
    *--top = (void *)main_of_stack;
    for (int saved = 0; saved < 5; saved++) *--top = nullptr;
    *--top = block;  // The register that it may have.
    f.stack_pointer = top;
}

// Leave the thread's own stack for that of the first one, until the last one ends.
BRIGADE_UNSEEN static void enter(Block &b, Fiber &first) {
    begin(first);
    become(first.identity);
    brigade_cpu_switch(&b.home, first.stack_pointer);
}

// Run one block on this thread, to its end. `stream` is a number.
static void run(const unsigned *grid, const unsigned *size, const unsigned *index,
                unsigned shared_bytes, void (*kernel)(void **), void **arguments,
                void (*on_stall)(void *), void *on_stall_data, unsigned long stream) {
    Block b{};
    b.grid = {grid[0], grid[1], grid[2]};
    b.size = {size[0], size[1], size[2]};
    b.index = {index[0], index[1], index[2]};
    unsigned threads = size[0] * size[1] * size[2];
    b.fibers.resize(threads);
    b.current = b.first = &b.fibers.front();
    b.last = &b.fibers.back();
    b.warps.resize((threads + WARP - 1) / WARP);
    b.shared.resize(shared_bytes + 128);
    b.live = threads;
    b.kernel = kernel, b.arguments = arguments;
    b.stacks = &own_stacks;
    b.identity = own_identity();
    b.on_stall = on_stall, b.on_stall_data = on_stall_data;
    for (unsigned at = 0; at < threads; at++) {
        Fiber &f = b.fibers[at];
        f.thread = {at % size[0], at / size[0] % size[1], at / size[0] / size[1]};
        f.lane = at % WARP;
        f.warp = &b.warps[at / WARP];
        f.warp->live |= 1u << f.lane;
        f.identity = take_identity(stream);
    }
    Block *before = block;
    block = &b;
    go_before(&b.beginning);
    enter(b, *b.first);
    block = before;
    come_behind(&b.end);
    for (const Fiber &f : b.fibers) give_identity(f.identity, stream);
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
                                void (*on_stall)(void *), void *data, unsigned long stream) {
    brigade_cpu::run(grid, size, index, shared_bytes, kernel, arguments, on_stall, data, stream);
}
