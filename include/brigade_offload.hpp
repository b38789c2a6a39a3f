// What offloads, for C++11 and later: owners for arenas, stores and AdamW of brigade.h.
#ifndef BRIGADE_OFFLOAD_HPP
#define BRIGADE_OFFLOAD_HPP

#include "brigade.hpp"

namespace brigade {

// Memory for what is offloaded, all of it taken at once.
class Arena : public Owned<brigade_arena_t, brigade_arena_destroy> {
public:
    explicit Arena(std::size_t bytes) : Owned(make(bytes)) {}

    std::size_t free_bytes() const {
        std::size_t bytes = 0;
        check(brigade_arena_free_bytes(get(), &bytes));
        return bytes;
    }

private:
    static brigade_arena_t make(std::size_t bytes) {
        brigade_arena_t handle = nullptr;
        check(brigade_arena_create(&handle, bytes));
        return handle;
    }
};

// Files over which something is striped, as C has them. The strings must outlive it.
class Paths {
public:
    explicit Paths(const std::vector<std::string> &paths) {
        for (const std::string &path : paths) list_.push_back(path.c_str());
    }
    const char *const *data() const noexcept { return list_.data(); }
    std::size_t size() const noexcept { return list_.size(); }

private:
    std::vector<const char *> list_;
};

// Tensors in files, some of them in memory.
class Store : public Owned<brigade_store_t, brigade_store_destroy> {
public:
    static Store create(const Arena &arena, const std::vector<std::string> &paths,
                        const std::vector<brigade_tensor_t> &tensors, std::size_t memory_bytes) {
        const Paths list(paths);
        brigade_store_t handle = nullptr;
        check(brigade_store_create(&handle, arena.get(), list.data(), list.size(), tensors.data(),
                                   tensors.size(), memory_bytes));
        return Store(handle);
    }
    static Store open(const Arena &arena, const std::vector<std::string> &paths,
                      std::size_t memory_bytes) {
        const Paths list(paths);
        brigade_store_t handle = nullptr;
        check(brigade_store_open(&handle, arena.get(), list.data(), list.size(), memory_bytes));
        return Store(handle);
    }

    void expect(const std::vector<const char *> &names) const {
        check(brigade_store_expect(get(), names.data(), names.size()));
    }
    void prefetch(const char *name) const { check(brigade_store_prefetch(get(), name)); }
    // Good until it is given back; `bytes` may be null.
    void *borrow(const char *name, std::size_t *bytes = nullptr) const {
        void *data = nullptr;
        check(brigade_store_borrow(get(), name, &data, bytes));
        return data;
    }
    void give_back(const char *name, brigade_returned_t how) const {
        check(brigade_store_give_back(get(), name, how));
    }
    void put(const char *name, const void *data, std::size_t bytes) const {
        check(brigade_store_put(get(), name, data, bytes));
    }
    void read(const char *name, void *data, std::size_t bytes) const {
        check(brigade_store_get(get(), name, data, bytes));
    }
    void commit(std::uint64_t label) const { check(brigade_store_commit(get(), label)); }
    // The label of the last commit; 0 where there was none.
    std::uint64_t label() const {
        std::uint64_t label = 0;
        check(brigade_store_last(get(), nullptr, &label));
        return label;
    }

private:
    explicit Store(brigade_store_t handle) noexcept : Owned(handle) {}
};

// AdamW whose state is in files.
class AdamW : public Owned<brigade_adamw_t, brigade_adamw_destroy> {
public:
    // What is usual.
    static brigade_adamw_config_t usual() {
        const brigade_adamw_config_t config = BRIGADE_ADAMW_INIT;
        return config;
    }
    static AdamW create(const Arena &arena, const std::vector<std::string> &paths,
                        const float *weights, std::size_t count,
                        const brigade_adamw_config_t &config = usual()) {
        const Paths list(paths);
        brigade_adamw_t handle = nullptr;
        check(brigade_adamw_create(&handle, arena.get(), list.data(), list.size(), weights, count,
                                   &config));
        return AdamW(handle);
    }
    static AdamW open(const Arena &arena, const std::vector<std::string> &paths,
                      const brigade_adamw_config_t &config = usual()) {
        const Paths list(paths);
        brigade_adamw_t handle = nullptr;
        check(brigade_adamw_open(&handle, arena.get(), list.data(), list.size(), &config));
        return AdamW(handle);
    }

    // One step in float32; brigade_adamw_step knows narrower types, and makes a copy.
    void step(const float *gradients, float lr, float scale = 1) const {
        check(brigade_adamw_step(get(), gradients, BRIGADE_FLOAT32, nullptr, BRIGADE_FLOAT32, lr,
                                 scale));
    }
    void weights(float *weights, std::size_t count) const {
        check(brigade_adamw_weights(get(), weights, count));
    }
    // How many weights there are, and how many steps they have seen.
    std::pair<std::size_t, std::uint64_t> size() const {
        std::pair<std::size_t, std::uint64_t> size(0, 0);
        check(brigade_adamw_size(get(), &size.first, &size.second));
        return size;
    }

private:
    explicit AdamW(brigade_adamw_t handle) noexcept : Owned(handle) {}
};

}  // namespace brigade

#endif  // BRIGADE_OFFLOAD_HPP
