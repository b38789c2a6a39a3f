// How ranks that share a c10d::Store become a communicator.
#pragma once

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "brigade.h"
#include "result.hpp"

namespace brigade {

using Millis = std::chrono::milliseconds;

inline std::vector<uint8_t> draw_id(const std::string &who) {
    brigade_unique_id_t id;
    check(brigade_get_unique_id(&id), who);
    return std::vector<uint8_t>(id.bytes, id.bytes + sizeof id.bytes);
}

// What is done at a store that others serve. One that is gone says so, and what to do about it.
template <typename Body>
auto at_store(const std::string &who, Body body) -> decltype(body()) {
    try {
        return body();
    } catch (const c10::DistNetworkError &error) {
        TORCH_CHECK_WITH(DistBackendError, false, "brigade, ", who,
                         ": the store at which ranks meet does not answer: its process has to stay "
                         "until all have ended (rank 0, unless torchrun serves it): ",
                         error.what_without_backtrace());
    }
}

// A connection of our own to a store: who waits at one that others use makes them wait too, and is
// made to wait by them. It is made when it is first needed, and once: a host's name is looked up,
// which may take seconds. One that cannot be made is not tried again by all who need it.
class OwnStore {
public:
    using Ptr = c10::intrusive_ptr<c10d::Store>;

    explicit OwnStore(Ptr shared) : shared_(std::move(shared)) {}

    c10d::Store &get() {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (failure_) std::rethrow_exception(failure_);
        try {
            if (!own_) own_ = shared_->clone();
        } catch (...) {
            failure_ = std::current_exception();
            throw;
        }
        return *own_;
    }

private:
    const Ptr shared_;
    std::mutex mutex_;
    Ptr own_;
    std::exception_ptr failure_;
};

// What is known to have become of a rank of `comm`: BRIGADE_PEER_LOST, BRIGADE_PEER_LEFT, or
// BRIGADE_SUCCESS if nothing is.
inline brigade_result_t fate_of(brigade_comm_t comm, int rank) {
    brigade_result_t gone = BRIGADE_SUCCESS;
    // The communicator may have ended meanwhile: then nothing is known any more.
    const auto known = brigade_comm_get_rank_error(comm, rank, &gone);
    return known == BRIGADE_SUCCESS ? gone : BRIGADE_SUCCESS;
}

inline const char *in_words(brigade_result_t fate) {
    return fate == BRIGADE_PEER_LOST ? "is lost, its process ended" : "has left";
}

// What ended the world of `comm`, with the rank that did where one is known to have gone; empty as
// long as it goes on.
inline std::string end_of_world(brigade_comm_t comm, int size) {
    brigade_result_t result = BRIGADE_SUCCESS;
    const auto known = brigade_comm_get_async_error(comm, &result);
    if (known != BRIGADE_SUCCESS) return brigade_last_error();
    if (result == BRIGADE_SUCCESS) return "";
    for (int rank = 0; rank < size; rank++) {
        const auto fate = fate_of(comm, rank);
        if (fate == result) return "rank " + std::to_string(rank) + " " + in_words(fate);
    }
    return brigade_error_string(result);
}

// How long ranks may take to come together, and how long calls may stand still after that.
class Limits {
public:
    // Nobody may join for longer than a day.
    Limits(Millis come, Millis stand)
        : joining_(text(std::clamp(come, Millis(1), Millis(std::chrono::days(1))))),
          standing_(text(std::max(stand, Millis(1)))) {}
    Limits(const Limits &) = delete;
    Limits &operator=(const Limits &) = delete;

    const brigade_config_t *config() const { return &config_; }

private:
    static std::string text(Millis time) { return std::to_string(time.count()); }

    const std::string joining_, standing_;
    const brigade_setting_t settings_[2] = {{"BRIGADE_JOIN_TIMEOUT_MS", joining_.c_str()},
                                            {"BRIGADE_TIMEOUT_MS", standing_.c_str()}};
    const brigade_config_t config_ = [this] {
        brigade_config_t config = BRIGADE_CONFIG_INIT;
        config.settings = settings_;
        config.setting_count = std::size(settings_);
        return config;
    }();
};

// What ranks have in common that have come together.
struct Joined {
    // Of the group, in its store.
    std::string key;
    brigade_comm_t comm;
};

// Join as `rank` of `size`.
inline brigade_result_t join(const std::vector<uint8_t> &bytes, int rank, int size,
                             const Limits &limits, brigade_comm_t &comm) {
    brigade_unique_id_t id;
    TORCH_CHECK_WITH(DistBackendError, bytes.size() == sizeof id.bytes, "brigade: the store holds ",
                     bytes.size(), " bytes where a unique id should be");
    std::memcpy(id.bytes, bytes.data(), sizeof id.bytes);
    return brigade_comm_init_rank_config(&comm, size, id, rank, limits.config());
}

}  // namespace brigade
