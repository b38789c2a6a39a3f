/*
 * A communicator of NCCL's that grows, by ranks of one thread in a group, which block or do not; and
 * what is wrong with a call.
 */
#define _POSIX_C_SOURCE 200809L
#include "nccl_check.h"

#include <string.h>
#include <time.h>

#define OLD 2
#define ALL 4

/* Done, or begun where nothing blocks. */
static void begun(ncclResult_t result, const ncclConfig_t *config) {
    REQUIRE(result == (config != NULL ? ncclInProgress : ncclSuccess));
}

/*
 * One joins by ncclCommGrow without a communicator, and one by ncclCommInitRank. Of the old ones
 * the first knows the id, and need not pass it.
 */
static void grow(ncclComm_t *old, ncclComm_t *all, ncclConfig_t *config) {
    ncclUniqueId id;
    ncclResult_t state;
    int rank;
    CHECK(ncclCommGetUniqueId(old[0], &id));
    CHECK(ncclGroupStart());
    for (rank = 0; rank < OLD; rank++)
        begun(ncclCommGrow(old[rank], ALL, config == NULL ? &id : NULL, -1, &all[rank], config),
              config);
    begun(ncclCommGrow(NULL, ALL, &id, 2, &all[2], config), config);
    begun(ncclCommInitRankConfig(&all[3], ALL, id, 3, config), config);
    state = ncclGroupEnd();
    REQUIRE(state == (config == NULL ? ncclSuccess : ncclInProgress));
    for (rank = 0; rank < ALL; rank++) {
        const struct timespec nap = {0, 1000000};
        do {
            nanosleep(&nap, NULL);
            CHECK(ncclCommGetAsyncError(all[rank], &state));
        } while (state == ncclInProgress);
        REQUIRE(state == ncclSuccess);
    }
}

static void use(ncclComm_t *comms, int ranks) {
    float ones[ALL] = {1, 1, 1, 1}, sums[ALL] = {0};
    int rank, count, own;
    for (rank = 0; rank < ranks; rank++) {
        CHECK(ncclCommCount(comms[rank], &count));
        CHECK(ncclCommUserRank(comms[rank], &own));
        REQUIRE(count == ranks && own == rank);
    }
    CHECK(ncclGroupStart());
    for (rank = 0; rank < ranks; rank++)
        CHECK(ncclAllReduce(&ones[rank], &sums[rank], 1, ncclFloat32, ncclSum, comms[rank], NULL));
    CHECK(ncclGroupEnd());
    for (rank = 0; rank < ranks; rank++)
        REQUIRE(sums[rank] == (float)ranks);
}

static void destroy(ncclComm_t *comms, int ranks) {
    int rank;
    for (rank = 0; rank < ranks; rank++)
        CHECK(ncclCommDestroy(comms[rank]));
}

int main(void) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t old[OLD], all[ALL], again[ALL];
    ncclUniqueId id;
    CHECK(ncclCommInitAll(old, OLD, NULL));
    grow(old, all, NULL);
    use(all, ALL);
    use(old, OLD);
    destroy(all, ALL);
    config.blocking = 0;
    grow(old, again, &config);
    destroy(old, OLD);
    destroy(again, ALL);
    CHECK(ncclCommInitAll(old, 1, NULL));
    REFUSED(ncclCommGrow(old[0], 2, NULL, -1, all, NULL));
    REQUIRE(strstr(ncclGetLastError(NULL), "no rank was given a unique id") != NULL);
    CHECK(ncclCommGetUniqueId(old[0], &id));
    REFUSED(ncclCommGrow(old[0], ALL, &id, 0, all, NULL));
    REQUIRE(strstr(ncclGetLastError(NULL), "pass -1") != NULL);
    REFUSED(ncclCommGrow(old[0], -3, &id, -1, all, NULL));
    id.internal[3] = 'x';
    REFUSED(ncclCommGrow(old[0], 2, &id, -1, all, NULL));
    REQUIRE(strstr(ncclGetLastError(NULL), "what rank 0 was given") != NULL);
    REFUSED(ncclCommGrow(NULL, ALL, NULL, 2, all, NULL));
    REFUSED(ncclCommGrow(NULL, ALL, &id, ALL, all, NULL));
    REFUSED(ncclCommGetUniqueId(NULL, &id));
    use(old, 1);
    destroy(old, 1);
    printf("communicators grew as they should\n");
    return 0;
}
