// How the ranks of a new group get its unique id from the store, and hear who will not come.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "world.hpp"

namespace brigade {

// The ranks of a new group in one that exists, which hears of their deaths.
struct Acquaintance {
    brigade_comm_t comm = nullptr;
    std::vector<int> ranks;

    bool exists() const { return comm != nullptr; }

    // What is known to have become of a rank of the new group.
    brigade_result_t fate(int rank) const { return fate_of(comm, ranks[rank]); }
};

// One rank that meets the others. With an acquaintance rank 0 draws no id before all have said that
// they are there, so nobody waits within brigade.h for one that has gone. Without, it draws the id
// at once; then brigade.h tells who is late.
class Gathering {
    using Clock = std::chrono::steady_clock;

public:
    Gathering(c10d::Store &store, std::string key, std::string who, int rank, int size,
              Millis timeout, const Acquaintance &known)
        : store_(store),
          key_(std::move(key)),
          who_(std::move(who)),
          rank_(rank),
          size_(size),
          timeout_(timeout),
          known_(known) {}

    std::vector<uint8_t> id() {
        store_.set(there(rank_), std::vector<uint8_t>{1});
        if (rank_ == 0) {
            std::vector<std::string> all;
            for (int rank = 1; rank < size_; rank++) all.push_back(there(rank));
            if (known_.exists()) await(all);
            const auto drawn = draw_id(who_);
            store_.set(key_, drawn);
            return drawn;
        }
        await({key_});
        return store_.get(key_);
    }

private:
    std::string there(int rank) const { return key_ + "/there/" + std::to_string(rank); }

    void await(const std::vector<std::string> &keys) {
        const auto began = Clock::now();
        auto report_after = report_time();
        while (!store_.check(keys)) {
            const auto waited = Clock::now() - began;
            for (int rank = 0; known_.exists() && rank < size_; rank++) check_fate(rank);
            if (waited >= timeout_) {
                TORCH_CHECK_WITH(DistBackendError, false, "brigade, ", who_, ": waited ",
                                 seconds(waited), " s for ", missing(),
                                 " to come to this group: look at the missing processes' own "
                                 "output");
            }
            if (waited >= report_after) {
                report(waited);
                while (report_after <= waited) report_after *= 3;
            }
            // No wait becomes much longer by it, and a long one costs the store little.
            const auto pause = std::chrono::duration_cast<std::chrono::microseconds>(waited / 32);
            std::this_thread::sleep_for(std::clamp(pause, std::chrono::microseconds(300),
                                                   std::chrono::microseconds(50000)));
        }
    }

    void check_fate(int rank) const {
        const auto fate = known_.fate(rank);
        if (fate == BRIGADE_SUCCESS) return;
        const auto also = known_.ranks[rank] == rank
                              ? std::string()
                              : " (" + std::to_string(known_.ranks[rank]) + " of its elder group)";
        TORCH_CHECK_WITH(DistBackendError, false, "brigade, ", who_, ": rank ", rank, also,
                         " will not come to this group: it ", in_words(fate));
    }

    // Tell who is late, unless rank 0 is there and does.
    void report(Clock::duration waited) {
        if (rank_ > 0 && store_.check({there(0)})) return;
        std::fprintf(stderr, "brigade: %s has waited %s s for %s to come to a group of %d; "
                     "it gives up in %lld s\n", who_.c_str(), seconds(waited).c_str(), missing().c_str(),
                     size_, static_cast<long long>((timeout_ - waited) / std::chrono::seconds(1)));
    }

    // Who has not come yet: the first few.
    std::string missing() {
        std::vector<int> missing;
        for (int rank = 0; rank < size_; rank++) {
            if (!store_.check({there(rank)})) missing.push_back(rank);
        }
        if (missing.empty()) return "the others";
        std::string text = missing.size() == 1 ? "rank " : "ranks ";
        for (size_t at = 0; at < std::min<size_t>(missing.size(), 8); at++) {
            text += (at > 0 ? ", " : "") + std::to_string(missing[at]);
        }
        return missing.size() > 8 ? text + " and more" : text;
    }

    static std::string seconds(Clock::duration time) {
        char text[32];
        const auto tenths = std::chrono::duration_cast<Millis>(time).count() / 100;
        std::snprintf(text, sizeof text, "%lld.%lld", static_cast<long long>(tenths / 10),
                      static_cast<long long>(tenths % 10));
        return text;
    }

    // As brigade.h tells of a long join.
    static Clock::duration report_time() {
        const char *set = std::getenv("BRIGADE_REPORT_MS");
        const long long ms = set != nullptr && *set != 0 ? std::atoll(set) : 30000;
        return Millis(std::max(ms / 6, 1ll));
    }

    c10d::Store &store_;
    const std::string key_, who_;
    const int rank_, size_;
    const Millis timeout_;
    const Acquaintance &known_;
};

}  // namespace brigade
