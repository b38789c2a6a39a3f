// What torch waits for: one call, or all that was begun between startCoalescing and endCoalescing.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "ending.hpp"
#include "listener.hpp"
#include "pool.hpp"

namespace brigade {

class Operation;

// Calls that end as one. It counts those that go on, and itself as long as calls are added. It has
// none of their tensors: torch may leave one open for good, and calls go on to join it.
class Batch {
public:
    explicit Batch(c10::intrusive_ptr<Operation> whole) : whole_(std::move(whole)) {}

    void add();
    void ended(const std::exception_ptr &error);
    c10::intrusive_ptr<Operation> close();

private:
    std::mutex mutex_;
    size_t going_on_ = 1;
    std::exception_ptr first_;
    c10::intrusive_ptr<Operation> whole_;
};

class Operation final : public c10d::Work {
public:
    Operation(int rank, c10d::OpType type, const char *title, std::vector<at::Tensor> outputs,
              uint64_t sequence)
        : Work(rank, type, title), outputs_(std::move(outputs)), sequence_(sequence) {}

    // Its end is also that of a part of the batch.
    void join(std::shared_ptr<Batch> batch) {
        batch->add();
        batch_ = std::move(batch);
    }

    // Somebody hears of its end.
    void tells(std::shared_ptr<Listener> listener) {
        listener->expect();
        listener_ = std::move(listener);
        since_ = active_since_ = Pool::Clock::now();
    }

    // Run the body; whatever it throws is how the operation ends.
    template <typename Body>
    void carry_out(Body &body) {
        std::exception_ptr error;
        if (listener_) active_since_ = Pool::Clock::now();
        try {
            body();
        } catch (...) {
            error = std::current_exception();
        }
        settle(error);
    }

    void settle(std::exception_ptr error) {
        const Ending::Passage passage;
        if (listener_) std::exchange(listener_, nullptr)->tell(info());
        c10::intrusive_ptr<c10::ivalue::Future> future;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            // Whoever asks for the future from here on completes it: behind the wait, as others do.
            settled_ = true;
            exception_ = error;
            future = future_;
        }
        finish(error);
        if (future) {
            auto task = [future, error, outputs = outputs_] { complete(*future, error, outputs); };
            Pool::the().post(std::move(task));
        }
        if (batch_) std::exchange(batch_, nullptr)->ended(error);
    }

    // Another thread completes the future. Who has asked for it finds it so behind this, as with
    // gloo, but not what hangs on it: that may itself wait for this work.
    bool wait(std::chrono::milliseconds timeout) override {
        c10::intrusive_ptr<c10::ivalue::Future> future;
        {
            std::unique_lock<std::mutex> lock(mutex_);
            const auto has_ended = [this] { return completed_; };
            if (timeout == kNoTimeout) {
                cv_.wait(lock, has_ended);
            } else {
                TORCH_CHECK(cv_.wait_for(lock, timeout, has_ended), "Operation timed out!");
            }
            future = future_;
        }
        if (future) future->wait();
        if (exception_) std::rethrow_exception(exception_);
        return true;
    }

    // Who sent what was received from anybody.
    void came_from(int rank) { source_ = rank; }
    int sourceRank() const override { return source_; }

    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
        // Made when it is asked for: most calls never are.
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!future_) {
            future_ = c10::make_intrusive<c10::ivalue::Future>(
                c10::ListType::create(c10::TensorType::get()));
            // Nothing can hang on it yet.
            if (settled_) complete(*future_, exception_, outputs_);
        }
        return future_;
    }

    std::vector<at::Tensor> result() override { return outputs_; }
    uint64_t getSequencenumber() const override { return sequence_; }

private:
    Listener::Info info() const {
        const auto now = Pool::Clock::now();
        return std::make_shared<c10d::WorkInfo>(opType_, sequence_, since_, now,
                                                now - active_since_);
    }

    static void complete(c10::ivalue::Future &future, const std::exception_ptr &error,
                         const std::vector<at::Tensor> &outputs) {
        if (error) {
            future.setError(error);
        } else {
            future.markCompleted(c10::IValue(outputs));
        }
    }

    const std::vector<at::Tensor> outputs_;
    const uint64_t sequence_;
    // Who hears of its end, and since when it has been there, and been carried out.
    std::shared_ptr<Listener> listener_;
    Pool::Clock::time_point since_, active_since_;
    bool settled_ = false;
    std::atomic<int> source_{-1};
    c10::intrusive_ptr<c10::ivalue::Future> future_;
    std::shared_ptr<Batch> batch_;
};

inline void Batch::add() {
    const std::lock_guard<std::mutex> lock(mutex_);
    going_on_++;
}

inline void Batch::ended(const std::exception_ptr &error) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (error && !first_) first_ = error;
        if (--going_on_ > 0) return;
    }
    whole_->settle(first_);
}

inline c10::intrusive_ptr<Operation> Batch::close() {
    auto whole = whole_;
    ended(nullptr);
    return whole;
}

}  // namespace brigade
