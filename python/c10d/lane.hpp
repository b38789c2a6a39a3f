// Jobs that are done one after the other: on a thread of their own, or by who waits for them anyway
// and finds nothing in front of it.
#pragma once

#include <sched.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "pool.hpp"

namespace brigade {

class Lane {
public:
    using Job = std::function<void()>;

    Lane() = default;
    Lane(const Lane &) = delete;
    Lane &operator=(const Lane &) = delete;
    ~Lane() { close(); }

    // The caller's turn to do its job itself, now, if nothing is in front of it.
    class Turn {
    public:
        explicit Turn(Lane &lane) : lane_(lane) {
            const std::lock_guard<std::mutex> lock(lane.mutex_);
            has_come_ = !lane.busy_ && lane.jobs_.empty();
            lane.busy_ |= has_come_;
        }
        Turn(const Turn &) = delete;
        Turn &operator=(const Turn &) = delete;
        ~Turn() {
            if (!has_come_) return;
            {
                const std::lock_guard<std::mutex> lock(lane_.mutex_);
                lane_.busy_ = false;
            }
            lane_.changed_.notify_all();
        }

        bool has_come() const { return has_come_; }

    private:
        Lane &lane_;
        bool has_come_;
    };

    // Queue a job, which must not throw.
    void post(Job job) {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            // First: where there is no thread to be had nothing is queued.
            if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
            jobs_.push_back(std::move(job));
        }
        changed_.notify_all();
    }

    // Wait until nothing is queued or being done; false if that is not so at the deadline.
    bool drain(Pool::Clock::time_point deadline) {
        std::unique_lock<std::mutex> lock(mutex_);
        return changed_.wait_until(lock, deadline, [this] { return !busy_ && jobs_.empty(); });
    }

    // Do what is queued and end the thread.
    void close() {
        std::thread thread;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            closed_ = true;
            thread.swap(thread_);
        }
        changed_.notify_all();
        if (!thread.joinable()) return;
        if (born_ == forks.load() && thread.get_id() != std::this_thread::get_id()) {
            thread.join();
        } else {
            thread.detach();
        }
    }

private:
    // When this thread is woken it does not interrupt who computes on the core, and libbrigade does
    // not look on in it where cores are scarce. Where it cannot be had the thread runs as it did.
    static void run_behind() {
        const sched_param parameter = {};
        if (sched_getscheduler(0) == SCHED_OTHER) sched_setscheduler(0, SCHED_BATCH, &parameter);
    }

    void serve() {
        run_behind();
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            changed_.wait(lock, [this] { return !busy_ && (closed_ || !jobs_.empty()); });
            if (jobs_.empty()) return;
            Job job = std::move(jobs_.front());
            jobs_.pop_front();
            busy_ = true;
            lock.unlock();
            job();
            job = nullptr;
            lock.lock();
            busy_ = false;
            changed_.notify_all();
        }
    }

    const unsigned born_ = forks.load();
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Job> jobs_;
    bool busy_ = false, closed_ = false;
    std::thread thread_;
};

}  // namespace brigade
