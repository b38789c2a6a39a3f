// Who hears of every call that ends: torch's hook on completion.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "pool.hpp"

namespace brigade {

// It hears in the order in which calls end, of one at a time, on some thread of the pool: the hook
// may take Python's lock, and wait for other calls.
class Listener : public std::enable_shared_from_this<Listener> {
public:
    using Info = std::shared_ptr<c10d::WorkInfo>;
    using Hook = std::function<void(Info)>;

    explicit Listener(Hook hook) : hook_(std::move(hook)) {}

    // Of a call that it will hear of.
    void expect() {
        const std::lock_guard<std::mutex> lock(mutex_);
        expected_++;
    }

    void tell(Info info) {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            told_.push_back(std::move(info));
            if (std::exchange(listens_, true)) return;
        }
        Pool::the().post([self = shared_from_this()] { self->listen(); });
    }

    // Wait until it has heard of all that was begun.
    void wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return expected_ == 0; });
    }

private:
    void listen() {
        std::unique_lock<std::mutex> lock(mutex_);
        while (!told_.empty()) {
            const Info info = std::move(told_.front());
            told_.pop_front();
            lock.unlock();
            try {
                hook_(info);
            } catch (const std::exception &error) {
                // The call has ended as it has, and nobody waits here.
                std::fprintf(stderr, "brigade: the hook on completion failed: %s\n", error.what());
            }
            lock.lock();
            expected_--;
        }
        listens_ = false;
        changed_.notify_all();
    }

    const Hook hook_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Info> told_;
    size_t expected_ = 0;
    bool listens_ = false;
};

}  // namespace brigade
