// What brigade.h returns, and what is wrong with arguments, as torch's exceptions.
#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <vector>

#include "brigade.h"
#include "ending.hpp"

namespace brigade {

// What a rank calls itself: its number in its group and, where the default group numbers ranks
// otherwise, that list of theirs. Whatever else is said of ranks counts within the list, from 0.
inline std::string who_is(int rank, const std::vector<int> &ranks) {
    constexpr size_t TOLD = 16;
    const auto who = "rank " + std::to_string(rank);
    bool is_same = true, is_even = true;
    for (size_t at = 0; at < ranks.size(); at++) {
        is_same = is_same && ranks[at] == static_cast<int>(at);
        is_even = is_even && (at < 2 || ranks[at] - ranks[at - 1] == ranks[1] - ranks[0]);
    }
    if (is_same) return who;
    const size_t told = ranks.size() <= TOLD ? ranks.size() : is_even ? 2 : TOLD;
    std::string list;
    for (size_t at = 0; at < told; at++) {
        list += (at > 0 ? ", " : "") + std::to_string(ranks[at]);
    }
    if (told < ranks.size()) list += " .. " + std::to_string(ranks.back());
    return who + " of the group [" + list + "]";
}

// The call that a thread makes, from here to the end of the scope: what is wrong with its arguments
// is told with its name.
class Call {
public:
    Call(const std::string &who, const char *name) : who_(who), name_(name), outer_(current) {
        current = this;
    }
    Call(const Call &) = delete;
    Call &operator=(const Call &) = delete;
    ~Call() { current = outer_; }

    static std::string place() {
        if (current == nullptr) return "";
        return "brigade, " + current->who_ + ", " + current->name_ + ": ";
    }

private:
    inline static thread_local const Call *current = nullptr;
    const std::string &who_;
    const char *const name_;
    const Call *const outer_;
};

#define BRIGADE_CHECK_VALUE(holds, ...) \
    TORCH_CHECK_VALUE(holds, ::brigade::Call::place(), __VA_ARGS__)
#define BRIGADE_CHECK_TYPE(holds, ...) \
    TORCH_CHECK_TYPE(holds, ::brigade::Call::place(), __VA_ARGS__)

// torch.distributed.DistBackendError with the sentence of the call that failed on this thread.
inline void check(brigade_result_t result, const std::string &who) {
    Ending::stay();
    TORCH_CHECK_WITH(DistBackendError, result == BRIGADE_SUCCESS, "brigade, ", who, ": ",
                     brigade_last_error());
}

}  // namespace brigade
