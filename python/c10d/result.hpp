// What brigade.h returns, as torch's exceptions.
#pragma once

#include <c10/util/Exception.h>

#include "brigade.h"

namespace brigade {

// torch.distributed.DistBackendError with the sentence of the call that failed on this thread.
inline void check(brigade_result_t result, int rank) {
    TORCH_CHECK_WITH(DistBackendError, result == BRIGADE_SUCCESS, "brigade, rank ", rank, ": ",
                     brigade_last_error());
}

}  // namespace brigade
