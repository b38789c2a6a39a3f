// Ends worlds whose calls take longer than they may. brigade.h has one timeout for a communicator,
// torch one for every call and one that changes; this is for those that are shorter.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "brigade.h"
#include "ending.hpp"
#include "pool.hpp"

namespace brigade {

class Watchdog {
    using Clock = std::chrono::steady_clock;
    struct Watched {
        Clock::time_point deadline;
        brigade_comm_t comm;
        std::chrono::milliseconds timeout;
        bool has_ended_it = false;
    };

public:
    // Watches from here to the end of the scope.
    class Watch {
    public:
        Watch(brigade_comm_t comm, std::chrono::milliseconds timeout) : dog_(&the()) {
            const std::lock_guard<std::mutex> lock(dog_->mutex_);
            const auto deadline = Clock::now() + timeout;
            place_ = dog_->watched_.insert(dog_->watched_.end(), {deadline, comm, timeout});
            // It looks again before that anyway, most of the time: then nobody need wake it.
            if (deadline >= dog_->wakes_) return;
            dog_->wakes_ = deadline;
            dog_->changed_.notify_one();
        }

        Watch(const Watch &) = delete;
        Watch &operator=(const Watch &) = delete;
        ~Watch() {
            const std::lock_guard<std::mutex> lock(dog_->mutex_);
            dog_->watched_.erase(place_);
        }

        // Whether that took too long, and the world has ended by it.
        bool has_ended_it() const {
            const std::lock_guard<std::mutex> lock(dog_->mutex_);
            return place_->has_ended_it;
        }

    private:
        Watchdog *const dog_;
        std::list<Watched>::iterator place_;
    };

private:
    static Watchdog &the() {
        static std::mutex mutex;
        static Watchdog *dog = nullptr;
        const std::lock_guard<std::mutex> lock(mutex);
        if (dog == nullptr || dog->born_ != forks.load()) dog = new Watchdog;
        return *dog;
    }

    Watchdog() {
        std::thread([this] { serve(); }).detach();
    }

    void serve() {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            auto next = Clock::time_point::max();
            const auto now = Clock::now();
            const auto late = std::find_if(
                watched_.begin(), watched_.end(),
                [now](const Watched &watched) { return watched.deadline <= now; });
            if (late != watched_.end()) {
                // Its call ends now, and leaves the list.
                const auto reason = "a call took longer than its timeout of " +
                                    std::to_string(late->timeout.count()) + " ms";
                late->deadline = Clock::time_point::max();
                late->has_ended_it = true;
                const brigade_comm_t comm = late->comm;
                // Others begin and end their calls meanwhile; a handle that has ended is refused.
                lock.unlock();
                Ending::stay();
                brigade_comm_abort(comm, reason.c_str());
                lock.lock();
                continue;
            }
            for (const auto &watched : watched_) next = std::min(next, watched.deadline);
            wakes_ = next;
            if (next == Clock::time_point::max()) {
                changed_.wait(lock);
            } else {
                changed_.wait_until(lock, next);
            }
        }
    }

    const unsigned born_ = forks.load();
    std::mutex mutex_;
    std::condition_variable changed_;
    std::list<Watched> watched_;
    // When it has its next look.
    Clock::time_point wakes_ = Clock::time_point::max();
};

}  // namespace brigade
