// Brigade for C++11 and later: brigade.h with owners, types and exceptions. Nothing to link beside
// libbrigade. What offloads is in brigade_offload.hpp. Whoever wants something that is in neither
// calls brigade.h with `get()`.
#ifndef BRIGADE_HPP
#define BRIGADE_HPP

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "brigade.h"

namespace brigade {

// What a call of brigade.h failed with: its number, and the whole sentence.
class Error : public std::runtime_error {
public:
    explicit Error(brigade_result_t result)
        : std::runtime_error(brigade_last_error()), result_(result) {}

    brigade_result_t result() const noexcept { return result_; }

private:
    brigade_result_t result_;
};

inline void check(brigade_result_t result) {
    if (result != BRIGADE_SUCCESS) throw Error(result);
}

// The element type that a C++ type stands for. Give narrow floats of your own one like this. Whole
// numbers are named as the language does: std::int64_t is one of long and long long, and programs
// have both.
template <typename T>
struct Dtype;
template <> struct Dtype<char> {
    static constexpr brigade_dtype_t value = char(-1) < 0 ? BRIGADE_INT8 : BRIGADE_UINT8;
};
template <> struct Dtype<signed char> { static constexpr brigade_dtype_t value = BRIGADE_INT8; };
template <> struct Dtype<unsigned char> { static constexpr brigade_dtype_t value = BRIGADE_UINT8; };
template <> struct Dtype<short> { static constexpr brigade_dtype_t value = BRIGADE_INT16; };
template <> struct Dtype<int> { static constexpr brigade_dtype_t value = BRIGADE_INT32; };
template <> struct Dtype<unsigned> { static constexpr brigade_dtype_t value = BRIGADE_UINT32; };
template <> struct Dtype<long> {
    static constexpr brigade_dtype_t value = sizeof(long) == 8 ? BRIGADE_INT64 : BRIGADE_INT32;
};
template <> struct Dtype<unsigned long> {
    static constexpr brigade_dtype_t value = sizeof(long) == 8 ? BRIGADE_UINT64 : BRIGADE_UINT32;
};
template <> struct Dtype<long long> { static constexpr brigade_dtype_t value = BRIGADE_INT64; };
template <> struct Dtype<unsigned long long> {
    static constexpr brigade_dtype_t value = BRIGADE_UINT64;
};
template <> struct Dtype<float> { static constexpr brigade_dtype_t value = BRIGADE_FLOAT32; };
template <> struct Dtype<double> { static constexpr brigade_dtype_t value = BRIGADE_FLOAT64; };
template <> struct Dtype<bool> { static constexpr brigade_dtype_t value = BRIGADE_BOOL; };

// A handle that ends with its owner. What ends there cannot be told to anybody if it fails.
template <typename Handle, brigade_result_t (*End)(Handle)>
class Owned {
public:
    // Takes the handle over.
    explicit Owned(Handle handle) noexcept : handle_(handle) {}
    Owned(Owned &&other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
    Owned &operator=(Owned &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Owned() {
        if (handle_ != nullptr) End(handle_);
    }

    Handle get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ != nullptr; }

private:
    Handle handle_;
};

// Calls in flight. The memory they use must outlive them: the destructor waits.
class Work {
public:
    Work() noexcept = default;
    Work(Work &&other) noexcept : handle_(other.release()) {}
    Work &operator=(Work &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Work() {
        if (handle_ != nullptr) {
            brigade_work_wait(handle_, -1);
            brigade_work_free(handle_);
        }
    }

    // Whether it has ended; throws what it failed with.
    bool done() const { return ended(brigade_work_test(handle_)); }
    void wait() const { check(brigade_work_wait(handle_, -1)); }
    // Whether it has ended within this time.
    bool wait_for(std::int64_t ms) const { return ended(brigade_work_wait(handle_, ms < 0 ? 0 : ms)); }

    // Can be read from once it has ended; closed with this object.
    int fd() const {
        int fd = -1;
        check(brigade_work_fd(handle_, &fd));
        return fd;
    }

    brigade_work_t get() const noexcept { return handle_; }
    brigade_work_t *put() noexcept { return &handle_; }
    brigade_work_t release() noexcept {
        brigade_work_t handle = handle_;
        handle_ = nullptr;
        return handle;
    }

private:
    static bool ended(brigade_result_t result) {
        if (result == BRIGADE_IN_PROGRESS) return false;
        check(result);
        return true;
    }

    brigade_work_t handle_ = nullptr;
};

// Calls that are listed and carried out together, by `end`. Who leaves the scope without it, as an
// exception does, has none of them carried out, nor those of a group around it. Communicators end
// outside of groups: declare them before it.
class Group {
public:
    Group() { check(brigade_group_start()); }
    Group(const Group &) = delete;
    Group &operator=(const Group &) = delete;
    ~Group() {
        if (is_open_) brigade_group_cancel();
    }

    void end() {
        is_open_ = false;
        check(brigade_group_end(nullptr));
    }
    // All of them go on until the work has ended.
    Work start() {
        Work work;
        is_open_ = false;
        check(brigade_group_end(work.put()));
        return work;
    }

private:
    bool is_open_ = true;
};

// A group of ranks. Counts are elements; "in place" is what brigade.h says of it.
class Communicator {
public:
    using Settings = std::vector<std::pair<std::string, std::string>>;

    // Takes the handle over.
    explicit Communicator(brigade_comm_t handle) noexcept : handle_(handle) {}
    Communicator(Communicator &&other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
    Communicator &operator=(Communicator &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Communicator() {
        if (handle_ != nullptr) brigade_comm_destroy(handle_);
    }

    static Communicator from_env(const Settings &settings = Settings()) {
        std::vector<brigade_setting_t> list;
        const brigade_config_t config = configure(settings, list);
        brigade_comm_t handle = nullptr;
        check(brigade_comm_init_from_env(&handle, &config));
        return Communicator(handle);
    }
    static Communicator from_id(const brigade_unique_id_t &id, int rank, int size,
                                const Settings &settings = Settings()) {
        std::vector<brigade_setting_t> list;
        const brigade_config_t config = configure(settings, list);
        brigade_comm_t handle = nullptr;
        check(brigade_comm_init_rank_config(&handle, size, id, rank, &config));
        return Communicator(handle);
    }
    // With BRIGADE_SPLIT_NOCOLOR the result has no handle.
    Communicator split(int color, int key) const {
        brigade_comm_t handle = nullptr;
        check(brigade_comm_split(handle_, color, key, &handle));
        return Communicator(handle);
    }

    // Those who are left go on; see brigade_comm_shrink.
    Communicator shrink(const std::vector<int> &excluded) const {
        brigade_comm_t handle = nullptr;
        check(brigade_comm_shrink(handle_, excluded.data(), excluded.size(), &handle, nullptr));
        return Communicator(handle);
    }

    // With newcomers behind these ranks, which have the id from one or more of them; see
    // brigade_comm_grow.
    Communicator grow(int size, const brigade_unique_id_t *id) const {
        brigade_comm_t handle = nullptr;
        check(brigade_comm_grow(handle_, size, id, &handle, nullptr));
        return Communicator(handle);
    }

    int rank() const { return number(brigade_comm_rank); }
    int size() const { return number(brigade_comm_size); }
    brigade_comm_t get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    void abort(const char *reason = nullptr) const { check(brigade_comm_abort(handle_, reason)); }
    void barrier() const { check(brigade_barrier(handle_, nullptr)); }

    template <typename T>
    void all_reduce(const T *send, T *recv, std::size_t count, brigade_op_t op = BRIGADE_SUM) const {
        check(brigade_all_reduce(send, recv, count, Dtype<T>::value, op, handle_, nullptr));
    }
    template <typename T>
    Work start_all_reduce(const T *send, T *recv, std::size_t count,
                          brigade_op_t op = BRIGADE_SUM) const {
        Work work;
        check(brigade_all_reduce(send, recv, count, Dtype<T>::value, op, handle_, work.put()));
        return work;
    }
    template <typename T>
    void reduce_scatter(const T *send, T *recv, std::size_t recvcount,
                        brigade_op_t op = BRIGADE_SUM) const {
        check(brigade_reduce_scatter(send, recv, recvcount, Dtype<T>::value, op, handle_, nullptr));
    }
    template <typename T>
    void all_gather(const T *send, T *recv, std::size_t sendcount) const {
        check(brigade_all_gather(send, recv, sendcount, Dtype<T>::value, handle_, nullptr));
    }
    template <typename T>
    void all_to_all(const T *send, T *recv, std::size_t count) const {
        check(brigade_all_to_all(send, recv, count, Dtype<T>::value, handle_, nullptr));
    }
    template <typename T>
    void broadcast(T *data, std::size_t count, int root) const {
        check(brigade_broadcast(data, data, count, Dtype<T>::value, root, handle_, nullptr));
    }
    template <typename T>
    void send(const T *data, std::size_t count, int peer) const {
        check(brigade_send(data, count, Dtype<T>::value, peer, handle_, nullptr));
    }
    template <typename T>
    void recv(T *data, std::size_t count, int peer) const {
        check(brigade_recv(data, count, Dtype<T>::value, peer, handle_, nullptr));
    }

private:
    static brigade_config_t configure(const Settings &settings, std::vector<brigade_setting_t> &list) {
        for (const auto &setting : settings)
            list.push_back(brigade_setting_t{setting.first.c_str(), setting.second.c_str()});
        brigade_config_t config = BRIGADE_CONFIG_INIT;
        config.settings = list.data();
        config.setting_count = list.size();
        return config;
    }
    int number(brigade_result_t (*ask)(brigade_comm_t, int *)) const {
        int number = 0;
        check(ask(handle_, &number));
        return number;
    }

    brigade_comm_t handle_ = nullptr;
};

// Memory of every rank of a group, with counters beside it, that all of them write and read.
// Offsets are bytes, counts are elements. End it when no rank uses this one's any more: after a
// barrier, say.
class Window : public Owned<brigade_window_t, brigade_window_destroy> {
public:
    // Every rank makes one, each with sizes of its own.
    Window(const Communicator &comm, std::size_t bytes, std::size_t signals)
        : Owned(make(comm, bytes, signals)) {}

    template <typename T>
    void put(const T *data, std::size_t count, int rank, std::size_t offset) const {
        check(brigade_window_put(data, count * sizeof(T), rank, offset, get()));
    }
    template <typename T>
    void read(T *data, std::size_t count, int rank, std::size_t offset) const {
        check(brigade_window_get(data, count * sizeof(T), rank, offset, get()));
    }
    // Whoever sees the sum there sees all that this rank put into that window before.
    void signal(int rank, std::size_t signal, std::uint64_t add = 1) const {
        check(brigade_window_signal(rank, signal, add, get()));
    }
    // Wait for a counter of this rank; what it is then.
    std::uint64_t wait(std::size_t signal, std::uint64_t at_least) const {
        std::uint64_t value = 0;
        check(brigade_window_wait(signal, at_least, -1, &value, get()));
        return value;
    }
    // Whether the counter has come to that within this time.
    bool wait_for(std::size_t signal, std::uint64_t at_least, std::int64_t ms) const {
        const brigade_result_t result =
            brigade_window_wait(signal, at_least, ms < 0 ? 0 : ms, nullptr, get());
        if (result != BRIGADE_IN_PROGRESS) check(result);
        return result == BRIGADE_SUCCESS;
    }
    // Bytes and counters of a rank.
    std::pair<std::size_t, std::size_t> size(int rank) const {
        std::pair<std::size_t, std::size_t> size(0, 0);
        check(brigade_window_size(rank, &size.first, &size.second, get()));
        return size;
    }

private:
    static brigade_window_t make(const Communicator &comm, std::size_t bytes, std::size_t signals) {
        brigade_window_t handle = nullptr;
        check(brigade_window_create(&handle, bytes, signals, comm.get()));
        return handle;
    }
};

// The ranks of a communicator on devices: calls on memory that lies there, enqueued in a stream
// (CUstream or cudaStream_t). What brigade.h says of brigade_device_group_t holds here.
class DeviceGroup : public Owned<brigade_device_group_t, brigade_device_group_destroy> {
public:
    // Every rank makes one; `device` is a number as CUDA counts them, and calls of so many
    // `groups`, this one among them, may be on it at once.
    explicit DeviceGroup(const Communicator &comm, int device = BRIGADE_CURRENT_DEVICE,
                         int groups = 1)
        : Owned(make(comm, device, groups)) {}

    brigade_device_info_t info() const {
        brigade_device_info_t info = BRIGADE_DEVICE_INFO_INIT;
        check(brigade_device_group_info(get(), &info));
        return info;
    }
    // Throws why nothing can be called any more.
    void check_health() const { check(brigade_device_group_check(get())); }
    // Wait until no other process has memory of this one open; every rank calls it.
    void close() const { check(brigade_device_group_close(get())); }
    // Something to wait for what the stream has by now.
    Work mark(void *stream) const {
        Work work;
        check(brigade_device_mark(get(), stream, work.put()));
        return work;
    }

    template <typename T>
    void all_reduce(const T *send, T *recv, std::size_t count, void *stream,
                    brigade_op_t op = BRIGADE_SUM) const {
        check(brigade_device_all_reduce(send, recv, count, Dtype<T>::value, op, get(), stream));
    }
    template <typename T>
    void reduce_scatter(const T *send, T *recv, std::size_t recvcount, void *stream,
                        brigade_op_t op = BRIGADE_SUM) const {
        check(brigade_device_reduce_scatter(send, recv, recvcount, Dtype<T>::value, op, get(),
                                            stream));
    }
    template <typename T>
    void all_gather(const T *send, T *recv, std::size_t sendcount, void *stream) const {
        check(brigade_device_all_gather(send, recv, sendcount, Dtype<T>::value, get(), stream));
    }
    template <typename T>
    void broadcast(T *data, std::size_t count, int root, void *stream) const {
        check(brigade_device_broadcast(data, data, count, Dtype<T>::value, root, get(), stream));
    }

private:
    static brigade_device_group_t make(const Communicator &comm, int device, int groups) {
        brigade_device_group_t handle = nullptr;
        check(brigade_device_group_create_among(&handle, device, groups, comm.get()));
        return handle;
    }
};

}  // namespace brigade

#endif  // BRIGADE_HPP
