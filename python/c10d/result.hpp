// What brigade.h returns, and what is wrong with arguments, as torch's exceptions.
#pragma once

#include <c10/util/Exception.h>

#include <string>

#include "brigade.h"

namespace brigade {

// The call that a thread makes, from here to the end of the scope: what is wrong with its arguments
// is told with its name.
class Call {
public:
    Call(int rank, const char *name) : rank_(rank), name_(name), outer_(current) { current = this; }
    Call(const Call &) = delete;
    Call &operator=(const Call &) = delete;
    ~Call() { current = outer_; }

    static std::string place() {
        if (current == nullptr) return "";
        return "brigade, rank " + std::to_string(current->rank_) + ", " + current->name_ + ": ";
    }

private:
    inline static thread_local const Call *current = nullptr;
    const int rank_;
    const char *const name_;
    const Call *const outer_;
};

#define BRIGADE_CHECK_VALUE(holds, ...) \
    TORCH_CHECK_VALUE(holds, ::brigade::Call::place(), __VA_ARGS__)
#define BRIGADE_CHECK_TYPE(holds, ...) \
    TORCH_CHECK_TYPE(holds, ::brigade::Call::place(), __VA_ARGS__)

// torch.distributed.DistBackendError with the sentence of the call that failed on this thread.
inline void check(brigade_result_t result, int rank) {
    TORCH_CHECK_WITH(DistBackendError, result == BRIGADE_SUCCESS, "brigade, rank ", rank, ": ",
                     brigade_last_error());
}

}  // namespace brigade
