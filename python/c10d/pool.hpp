// Threads for what hangs on futures. A callback may wait for another collective, and what hangs on
// that one must then run beside it: so whoever finds no idle thread gets a new one, which ends when
// there has been nothing for it for a while.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>

namespace brigade {

// How often this process has come out of fork. What has threads belongs to the process that made
// it; in a child they are missing.
inline std::atomic<unsigned> forks{0};

class Pool {
public:
    using Task = std::function<void()>;
    using Clock = std::chrono::steady_clock;

    // Never destroyed: its threads may outlive everything that is.
    static Pool &the() {
        static std::mutex mutex;
        static Pool *pool = nullptr;
        const std::lock_guard<std::mutex> lock(mutex);
        if (pool == nullptr || pool->born_ != forks.load()) pool = new Pool;
        return *pool;
    }

    void post(Task task) {
        std::unique_lock<std::mutex> lock(mutex_);
        tasks_.push_back(std::move(task));
        if (idle_ >= tasks_.size()) {
            changed_.notify_one();
            return;
        }
        threads_++;
        try {
            std::thread([this] { serve(); }).detach();
        } catch (const std::system_error &) {
            // Whoever is here does it, then, as another thread would.
            threads_--;
            task = std::move(tasks_.back());
            tasks_.pop_back();
            lock.unlock();
            task();
        }
    }

    // Wait until nothing is queued or running; false if that is not so at the deadline.
    bool drain(Clock::time_point deadline) {
        if (inside_) return true;
        std::unique_lock<std::mutex> lock(mutex_);
        return quiet_.wait_until(lock, deadline,
                                 [this] { return tasks_.empty() && idle_ == threads_; });
    }

private:
    void serve() {
        inside_ = true;
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            while (!tasks_.empty()) {
                Task task = std::move(tasks_.front());
                tasks_.pop_front();
                lock.unlock();
                task();
                task = nullptr;
                lock.lock();
            }
            idle_++;
            quiet_.notify_all();
            const bool is_wanted =
                changed_.wait_for(lock, PATIENCE, [this] { return !tasks_.empty(); });
            idle_--;
            if (!is_wanted) break;
        }
        threads_--;
        quiet_.notify_all();
    }

    static constexpr std::chrono::seconds PATIENCE{2};

    inline static thread_local bool inside_ = false;
    const unsigned born_ = forks.load();
    std::mutex mutex_;
    std::condition_variable changed_, quiet_;
    std::deque<Task> tasks_;
    size_t idle_ = 0, threads_ = 0;
};

}  // namespace brigade
