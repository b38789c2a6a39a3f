// The end of a process that an exception ends. The others end as soon as they hear of it, and a
// launcher takes for the cause whoever ended first; so they hear of it last of all, when the
// interpreter has gone, which takes seconds, and with it most of what calls would go on to. Nobody
// waits for these: a thread that comes back from one stays where it is, and ends with the process.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace brigade {

class Ending {
public:
    using Clock = std::chrono::steady_clock;

    // From now on other threads stay. Whether all that were on their way to what hangs on a call
    // have come there by the deadline.
    static bool begin(Clock::time_point deadline) {
        ender_ = std::this_thread::get_id();
        has_begun_ = true;
        while (passing_ > 0) {
            if (Clock::now() >= deadline) return false;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return true;
    }

    // Who stays goes on.
    static void call_off() {
        has_begun_ = false;
        has_begun_.notify_all();
    }

    // Where a thread comes back from a call.
    static void stay() {
        if (!has_begun_ || std::this_thread::get_id() == ender_.load()) return;
        has_begun_.wait(true);
    }

    // The way from the end of a call to what hangs on it, which `begin` waits for.
    class Passage {
    public:
        Passage() {
            if (depth_++ > 0) return;
            for (;;) {
                passing_++;
                if (!has_begun_ || std::this_thread::get_id() == ender_.load()) return;
                passing_--;
                stay();
            }
        }
        Passage(const Passage &) = delete;
        Passage &operator=(const Passage &) = delete;
        ~Passage() {
            if (--depth_ == 0) passing_--;
        }

    private:
        inline static thread_local unsigned depth_ = 0;
    };

private:
    inline static std::atomic<bool> has_begun_{false};
    inline static std::atomic<std::thread::id> ender_{};
    inline static std::atomic<unsigned> passing_{0};
};

}  // namespace brigade
