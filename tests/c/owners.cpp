// What is owned beside communicators: windows of brigade.hpp, and what offloads to files.
// Files go to the folder that the first argument names, one of each kind for each rank.
#include <brigade_offload.hpp>

#include <cmath>
#include <cstdio>
#include <exception>

namespace {

void require(bool so, const char *what) {
    if (!so) throw std::runtime_error(std::string("not so: ") + what);
}

// Each rank writes numbers into the next one's window, and reads them back.
void ring(const brigade::Communicator &world) {
    const int rank = world.rank(), size = world.size();
    const int next = (rank + 1) % size, last = (rank + size - 1) % size;
    brigade::Window made(world, 8 * sizeof(double), 2);
    brigade::Window window(std::move(made));
    require(window && !made, "a window moves");
    require(window.size(next) == std::make_pair(8 * sizeof(double), std::size_t(2)), "its size");
    double sent[8], got[8];
    for (int at = 0; at < 8; at++) sent[at] = 100 * rank + at;
    window.put(sent, 8, next, 0);
    window.signal(next, 0);
    require(window.wait(0, 1) == 1, "one has signalled");
    window.read(got, 8, rank, 0);
    require(got[0] == 100 * last && got[7] == 100 * last + 7, "what the last one wrote");
    window.read(got, 8, next, 0);
    require(got[7] == sent[7], "what this one wrote");
    require(!window.wait_for(1, 1, 5), "nobody signals there");
    try {
        window.put(sent, 8, next, sizeof(double));
        require(false, "a put that reaches outside is refused");
    } catch (const brigade::Error &error) {
        require(error.result() == BRIGADE_INVALID_ARGUMENT, error.what());
    }
    world.barrier();
}

// Whatever the language calls a number, its size is what counts.
template <typename T>
void sums(const brigade::Communicator &world) {
    T one = 1, sum = 0;
    world.all_reduce(&one, &sum, 1);
    require(sum == T(world.size()), "a sum of ones");
}

// A tensor goes to a file and comes back, in memory that is borrowed and by copies.
void swap(const brigade::Arena &arena, const std::string &path) {
    const std::size_t count = 5000;
    std::vector<float> data(count, 1.5f);
    const std::vector<brigade_tensor_t> tensors = {{"a", BRIGADE_FLOAT32, count},
                                                   {"b", BRIGADE_FLOAT32, count}};
    {
        brigade::Store store = brigade::Store::create(arena, {path}, tensors, 1 << 20);
        store.expect({"a", "b"});
        store.put("a", data.data(), count * sizeof(float));
        store.prefetch("b");
        std::size_t bytes = 0;
        float *borrowed = static_cast<float *>(store.borrow("b", &bytes));
        require(bytes == count * sizeof(float) && borrowed[7] == 0, "zeros at first");
        borrowed[7] = 2.5f;
        store.give_back("b", BRIGADE_CHANGED);
        store.commit(7);
        require(store.label() == 7, "the label");
    }
    brigade::Store store = brigade::Store::open(arena, {path}, 1 << 20);
    std::vector<float> got(count);
    store.read("a", got.data(), count * sizeof(float));
    require(got == data, "what was put");
    store.read("b", got.data(), count * sizeof(float));
    require(got[7] == 2.5f, "what was changed");
}

// Weights go down their gradients, and are there when the state is opened again.
void descend(const brigade::Arena &arena, const std::string &path) {
    std::vector<float> weights(1000, 1.0f), gradients(1000, 0.5f), got(1000);
    brigade_adamw_config_t config = brigade::AdamW::usual();
    config.decay = 0;
    {
        brigade::AdamW adamw =
            brigade::AdamW::create(arena, {path}, weights.data(), weights.size(), config);
        adamw.step(gradients.data(), 0.1f);
    }
    brigade::AdamW adamw = brigade::AdamW::open(arena, {path}, config);
    require(adamw.size().first == 1000 && adamw.size().second == 1, "one step of all weights");
    adamw.weights(got.data(), got.size());
    // The first step of AdamW is as long as the rate.
    require(std::fabs(got[0] - 0.9f) < 1e-5f && got[999] == got[0], "the weights");
}

// What is listed goes together, or not at all.
void group(const brigade::Communicator &world) {
    const int next = (world.rank() + 1) % world.size();
    const int previous = (world.rank() + world.size() - 1) % world.size();
    const float mine = float(world.rank());
    float theirs = -1;
    const auto list = [&] {
        brigade::check(brigade_send(&mine, 1, BRIGADE_FLOAT32, next, world.get(), nullptr));
        brigade::check(brigade_recv(&theirs, 1, BRIGADE_FLOAT32, previous, world.get(), nullptr));
    };
    try {
        brigade::Group group;
        list();
        throw std::runtime_error("on the way");
    } catch (const std::runtime_error &) {
        require(theirs == -1, "nothing was carried out");
    }
    {
        brigade::Group group;
        list();
        group.end();
        require(theirs == float(previous), "what came");
    }
    theirs = -1;
    brigade::Group group;
    list();
    group.start().wait();
    require(theirs == float(previous), "what came by a work");
}

}  // namespace

int main(int count, char **arguments) {
    try {
        require(count == 2, "a folder for files");
        brigade::Communicator world = brigade::Communicator::from_env();
        ring(world);
        group(world);
        sums<char>(world);
        sums<std::int64_t>(world);
        sums<long>(world);
        sums<unsigned long>(world);
        sums<long long>(world);
        sums<unsigned long long>(world);
        const std::string base = std::string(arguments[1]) + "/" + std::to_string(world.rank());
        brigade::Arena arena(32 << 20);
        const std::size_t free_bytes = arena.free_bytes();
        swap(arena, base + "-store");
        descend(arena, base + "-adamw");
        require(arena.free_bytes() == free_bytes, "all memory came back");
        std::printf("rank %d of %d: all as it should be\n", world.rank(), world.size());
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
