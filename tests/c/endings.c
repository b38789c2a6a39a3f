/*
 * A rank that has finalized may end as it likes: the others, which may not be as far, lose nothing.
 */
#include "check.h"

#include <string.h>

int main(void) {
    brigade_comm_t comm;
    int rank, size, one = 1, sum = 0;
    CHECK(brigade_comm_init_from_env(&comm, NULL));
    CHECK(brigade_comm_rank(comm, &rank));
    CHECK(brigade_comm_size(comm, &size));
    CHECK(brigade_all_reduce(&one, &sum, 1, BRIGADE_INT32, BRIGADE_SUM, comm, NULL));
    REQUIRE(sum == size);
    CHECK(brigade_comm_finalize(comm));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_barrier(comm, NULL));
    REQUIRE(strstr(brigade_last_error(), "finalized") != NULL);
    printf("rank %d of %d: all as it should be\n", rank, size);
    if (rank % 2 == 0) {
        CHECK(brigade_comm_destroy(comm));
        RESULT(BRIGADE_INVALID_ARGUMENT, brigade_comm_destroy(comm));
    }
    return 0;
}
