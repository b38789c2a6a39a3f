// What a rank waits for from another one, and what has come before anybody wanted it. It has never
// seen a wire: channel.hpp has.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "operation.hpp"
#include "tensors.hpp"
#include "world.hpp"

namespace brigade {

// What goes in front of every message. Of elements it tells as brigade.h does, how many of which
// type make one of torch's.
struct Header {
    int64_t tag;
    uint64_t bytes;
    uint32_t dtype, per_element;
};

// A receive that has been posted to a channel, or to several: the first one that has a message for
// it takes it.
struct Posted {
    Posted(c10::intrusive_ptr<Operation> work, Run run, int64_t tag, int channels)
        : work(std::move(work)),
          run(std::move(run)),
          tag(tag),
          is_shared(channels > 1),
          looking(channels) {}

    // Whether nobody else has it.
    bool take() { return !taken.exchange(true); }

    // One of its channels will not bring it; others may.
    void give_up(const std::exception_ptr &error) {
        if (--looking == 0 && take()) work->settle(error);
    }

    const c10::intrusive_ptr<Operation> work;
    const Run run;
    const int64_t tag;
    const bool is_shared;
    const Pool::Clock::time_point since = Pool::Clock::now();
    std::atomic<bool> taken{false};
    // Channels that may still bring it.
    std::atomic<int> looking;
};

class Inbox {
public:
    using Bytes = std::vector<uint8_t>;
    using Kept = std::pair<Header, Bytes>;
    using Wanted = std::shared_ptr<Posted>;
    // Who gets a message that was kept, and that.
    using Delivery = std::pair<Wanted, Kept>;

    explicit Inbox(Millis timeout) : timeout_(timeout) {}

    // Wait for it; or what has come already, and who gets that. Both at once: whoever waits for
    // what comes next must not do so for one that is had.
    std::vector<Delivery> post(Wanted wanted) {
        const std::lock_guard<std::mutex> lock(mutex_);
        posted_.push_back(std::move(wanted));
        std::vector<Delivery> had;
        while (auto delivery = take_kept()) had.push_back(std::move(*delivery));
        return had;
    }

    // What has been waited for too long, which is waited for no more. Nothing has for as long as
    // messages come: those in front may have kept it waiting.
    std::list<Wanted> late() {
        std::list<Wanted> late;
        const auto now = Pool::Clock::now();
        const std::lock_guard<std::mutex> lock(mutex_);
        drop_taken();
        for (auto one = posted_.begin(); one != posted_.end();) {
            const auto next = std::next(one);
            if (now >= deadline(**one)) late.splice(late.end(), posted_, one);
            one = next;
        }
        return late;
    }

    bool is_awaited() {
        const std::lock_guard<std::mutex> lock(mutex_);
        drop_taken();
        return !posted_.empty();
    }

    // How long to wait for the next message before having another look, at most.
    Millis patience() {
        auto until = Pool::Clock::now() + timeout_;
        const std::lock_guard<std::mutex> lock(mutex_);
        for (const auto &one : posted_) until = std::min(until, deadline(*one));
        return std::chrono::ceil<Millis>(until - Pool::Clock::now());
    }

    // Whether other channels may bring some of it.
    bool is_shared() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return std::any_of(posted_.begin(), posted_.end(),
                           [](const Wanted &one) { return one->is_shared; });
    }

    // Who gets the message with this tag that is there now; nobody yet, perhaps: one with the same
    // tag that was kept goes first, to whoever wants it by now.
    Wanted claim(int64_t tag) {
        const std::lock_guard<std::mutex> lock(mutex_);
        moved_ = Pool::Clock::now();
        if (kept_.count(tag) > 0) return nullptr;
        return claim_if([tag](const Posted &one) { return one.tag == tag; });
    }

    // Somebody may want it later.
    void keep(const Header &header, Bytes bytes) {
        const std::lock_guard<std::mutex> lock(mutex_);
        kept_[header.tag].emplace_back(header, std::move(bytes));
    }

    // A message that was kept and is wanted by now.
    std::optional<Delivery> claim_kept() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return take_kept();
    }

    // All that is waited for: nothing more will come.
    std::list<Wanted> close() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return std::exchange(posted_, {});
    }

private:
    Pool::Clock::time_point deadline(const Posted &one) const {
        return std::max(one.since, moved_) + timeout_;
    }

    std::optional<Delivery> take_kept() {
        auto wanted = claim_if([this](const Posted &one) { return kept_.count(one.tag) > 0; });
        if (!wanted) return std::nullopt;
        const auto kept = kept_.find(wanted->tag);
        Delivery delivery(std::move(wanted), std::move(kept->second.front()));
        kept->second.pop_front();
        if (kept->second.empty()) kept_.erase(kept);
        return delivery;
    }

    void drop_taken() {
        posted_.remove_if([](const Wanted &one) { return one->taken.load(); });
    }

    // In the order in which they were posted.
    template <typename Fits>
    Wanted claim_if(Fits fits) {
        for (auto one = posted_.begin(); one != posted_.end();) {
            if (!fits(**one)) {
                ++one;
                continue;
            }
            Wanted wanted = std::move(*one);
            one = posted_.erase(one);
            // Else another channel has brought it meanwhile.
            if (wanted->take()) return wanted;
        }
        return nullptr;
    }

    const Millis timeout_;
    std::mutex mutex_;
    std::list<Wanted> posted_;
    std::map<int64_t, std::deque<Kept>> kept_;
    // When the last message came.
    Pool::Clock::time_point moved_;
};

}  // namespace brigade
