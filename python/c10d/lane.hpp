// Jobs that are done one after the other: on a thread of their own, or by who waits for them anyway
// and finds nothing in front of it.
#pragma once

#include <sched.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "pool.hpp"

namespace brigade {

class Lane {
    using Job = std::function<void()>;
    // Where jobs lie.
    struct Desk {
        std::mutex mutex;
        std::condition_variable changed;
        std::deque<Job> jobs;
        bool is_busy = false, is_closed = false;
        std::thread thread;
    };

public:
    Lane() = default;
    Lane(const Lane &) = delete;
    Lane &operator=(const Lane &) = delete;
    ~Lane() { close(); }

    // The caller's turn to do its job itself, now, if nothing is in front of it.
    class Turn {
    public:
        explicit Turn(Lane &lane) : desk_(*lane.desk_) {
            const std::lock_guard<std::mutex> lock(desk_.mutex);
            has_come_ = !desk_.is_busy && desk_.jobs.empty();
            desk_.is_busy |= has_come_;
        }
        Turn(const Turn &) = delete;
        Turn &operator=(const Turn &) = delete;
        ~Turn() {
            if (!has_come_) return;
            {
                const std::lock_guard<std::mutex> lock(desk_.mutex);
                desk_.is_busy = false;
            }
            desk_.changed.notify_all();
        }

        bool has_come() const { return has_come_; }

    private:
        Desk &desk_;
        bool has_come_;
    };

    // Queue a job, which must not throw.
    void post(Job job) {
        {
            const std::lock_guard<std::mutex> lock(desk_->mutex);
            // First: where there is no thread to be had nothing is queued.
            if (!desk_->thread.joinable()) {
                desk_->thread = std::thread([desk = desk_] { serve(*desk); });
            }
            desk_->jobs.push_back(std::move(job));
        }
        desk_->changed.notify_all();
    }

    // Wait until nothing is queued or being done; false if that is not so at the deadline.
    bool drain(Pool::Clock::time_point deadline) {
        std::unique_lock<std::mutex> lock(desk_->mutex);
        return desk_->changed.wait_until(
            lock, deadline, [this] { return !desk_->is_busy && desk_->jobs.empty(); });
    }

    // Do what is queued and end the thread. In a child of fork there is none to be ended.
    void close() {
        if (born_ != forks.load()) return;
        std::thread thread;
        {
            const std::lock_guard<std::mutex> lock(desk_->mutex);
            desk_->is_closed = true;
            thread.swap(desk_->thread);
        }
        desk_->changed.notify_all();
        if (!thread.joinable()) return;
        if (thread.get_id() != std::this_thread::get_id()) {
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

    static void serve(Desk &desk) {
        run_behind();
        std::unique_lock<std::mutex> lock(desk.mutex);
        for (;;) {
            desk.changed.wait(
                lock, [&] { return !desk.is_busy && (desk.is_closed || !desk.jobs.empty()); });
            if (desk.jobs.empty()) return;
            Job job = std::move(desk.jobs.front());
            desk.jobs.pop_front();
            desk.is_busy = true;
            lock.unlock();
            job();
            job = nullptr;
            lock.lock();
            desk.is_busy = false;
            desk.changed.notify_all();
        }
    }

    const unsigned born_ = forks.load();
    // Also the thread's: in a child of fork, where that is missing, it never ends. Its end would
    // wait for who waits at it.
    const std::shared_ptr<Desk> desk_ = std::make_shared<Desk>();
};

}  // namespace brigade
