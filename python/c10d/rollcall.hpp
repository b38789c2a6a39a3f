// A barrier with a timeout of its own, after which all who have come hear from rank 0 who has not.
// It is held at the store, so it ends nothing, and can be held where calls do not go on any more.
#pragma once

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "world.hpp"

namespace brigade {

class RollCall {
    using Clock = std::chrono::steady_clock;

public:
    // `key` is this roll call's own; `comm` hears of deaths.
    RollCall(c10d::Store &store, std::string key, std::string who, brigade_comm_t comm, int rank,
             int size, Millis timeout)
        : store_(store),
          key_(std::move(key)),
          who_(std::move(who)),
          comm_(comm),
          rank_(rank),
          size_(size),
          timeout_(timeout) {}

    // Returns when all have come; throws on all who have if others have not. One that is known not
    // to come any more ends it at once, unless `wait_all` of the others.
    void hold(bool wait_all) {
        store_.set(there(rank_), std::vector<uint8_t>{1});
        if (rank_ > 0) return answer();
        const std::string absent = call(wait_all);
        store_.set(key_ + "/verdict", std::vector<uint8_t>(absent.begin(), absent.end()));
        if (dismiss()) clean_up();
        if (!absent.empty()) fail(absent);
    }

private:
    std::string there(int rank) const { return key_ + "/there/" + std::to_string(rank); }
    std::string heard(int rank) const { return key_ + "/heard/" + std::to_string(rank); }

    [[noreturn]] void fail(const std::string &what) const {
        TORCH_CHECK_WITH(DistBackendError, false, "brigade, ", who_, ", monitored_barrier: ", what);
    }

    // Whether this is so within `limit`.
    template <typename Holds>
    static bool await(Clock::duration limit, Holds holds) {
        const auto began = Clock::now();
        while (!holds()) {
            const auto waited = Clock::now() - began;
            if (waited >= limit) return false;
            // No wait becomes much longer by it, and a long one costs the store little.
            const auto pause = std::chrono::duration_cast<std::chrono::microseconds>(waited / 32);
            std::this_thread::sleep_for(std::clamp(pause, std::chrono::microseconds(300),
                                                   std::chrono::microseconds(50000)));
        }
        return true;
    }

    // Rank 0: wait for the others. Who has not come, in words.
    std::string call(bool wait_all) {
        std::string told;
        std::vector<int> awaited;
        for (int rank = 1; rank < size_; rank++) awaited.push_back(rank);
        const bool all_came = await(timeout_, [&] {
            std::erase_if(awaited, [&](int rank) {
                const auto fate = fate_of(comm_, rank);
                // It may have come before it went.
                if (fate == BRIGADE_SUCCESS || store_.check({there(rank)})) return false;
                told += (told.empty() ? "rank " : "; rank ") + std::to_string(rank) + " " +
                        in_words(fate);
                return true;
            });
            std::vector<std::string> keys;
            for (const int rank : awaited) keys.push_back(there(rank));
            return (!told.empty() && !wait_all) || keys.empty() || store_.check(keys);
        });
        if (all_came) return told;
        std::erase_if(awaited, [&](int rank) { return store_.check({there(rank)}); });
        if (awaited.empty()) return told;
        if (!told.empty()) told += "; ";
        told += awaited.size() == 1 ? "rank " : "ranks ";
        for (size_t at = 0; at < awaited.size(); at++) {
            told += (at > 0 ? ", " : "") + std::to_string(awaited[at]);
        }
        return told + " did not come within " + std::to_string(timeout_.count()) +
               " ms: look at the missing processes' own output";
    }

    // Rank 0 may serve the store: it goes on when all who have come know how this ended, or after
    // some time. Whether all ranks do.
    bool dismiss() {
        std::vector<std::string> keys;
        for (int rank = 1; rank < size_; rank++) {
            if (store_.check({there(rank)})) keys.push_back(heard(rank));
        }
        const auto all_heard = [&] { return keys.empty() || store_.check(keys); };
        return await(std::min(timeout_, GRACE), all_heard) && keys.size() + 1 == size_t(size_);
    }

    void clean_up() {
        for (int rank = 0; rank < size_; rank++) {
            store_.deleteKey(there(rank));
            if (rank > 0) store_.deleteKey(heard(rank));
        }
        store_.deleteKey(key_ + "/verdict");
    }

    // The others: wait for rank 0, then for what it finds, which takes it as long again at most.
    void answer() {
        const auto known = [this](const std::string &key) {
            if (store_.check({key})) return true;
            const auto fate = fate_of(comm_, 0);
            if (fate != BRIGADE_SUCCESS && !store_.check({key})) {
                fail(std::string("rank 0 ") + in_words(fate));
            }
            return false;
        };
        const auto limit = " within " + std::to_string(timeout_.count()) + " ms";
        if (!await(timeout_, [&] { return known(there(0)); })) {
            // If it comes now it shall not find one who has gone on.
            store_.deleteKey(there(rank_));
            fail("rank 0 did not come" + limit);
        }
        if (!await(timeout_ + GRACE, [&] { return known(key_ + "/verdict"); })) {
            fail("rank 0 came, and did not say who else has" + limit);
        }
        const auto verdict = store_.get(key_ + "/verdict");
        store_.set(heard(rank_), std::vector<uint8_t>{1});
        if (!verdict.empty()) fail("rank 0 says: " + std::string(verdict.begin(), verdict.end()));
    }

    // What may pass between ranks that are both there.
    static constexpr Millis GRACE{5000};

    c10d::Store &store_;
    const std::string key_, who_;
    const brigade_comm_t comm_;
    const int rank_, size_;
    const Millis timeout_;
};

}  // namespace brigade
