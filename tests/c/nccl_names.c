/*
 * A tool that takes the place of two of NCCL's functions, counts their calls, and hands them on to
 * the second names of these; and names that do nothing but say why.
 */
#include "nccl_check.h"

#include <string.h>

static int reductions, joined;

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t datatype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    reductions++;
    return pncclAllReduce(in, out, count, datatype, op, comm, stream);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) {
    joined++;
    return pncclCommInitRank(comm, ranks, id, rank);
}

/* The id is passed by value and the sum has seven arguments: both go through as they are. */
static ncclComm_t counted(void) {
    float one = 1, sum = 0;
    ncclUniqueId id;
    ncclComm_t comm;
    int version;
    CHECK(ncclGetUniqueId(&id));
    CHECK(ncclCommInitRank(&comm, 1, id, 0));
    CHECK(ncclAllReduce(&one, &sum, 1, ncclFloat32, ncclSum, comm, NULL));
    REQUIRE(sum == 1 && reductions == 1 && joined == 1);
    CHECK(pncclGetVersion(&version));
    REQUIRE(version == 23007);
    REQUIRE(pncclGetErrorString(ncclSuccess) == ncclGetErrorString(ncclSuccess));
    return comm;
}

static void absent(ncclComm_t comm) {
    ncclParamHandle_t handle;
    int32_t number;
    MISUSED(ncclParamBind(&handle, "NCCL_DEBUG"));
    REQUIRE(strstr(ncclGetLastError(NULL), "ncclParamBind: no parameters of NCCL's") != NULL);
    MISUSED(pncclParamBind(&handle, "NCCL_DEBUG"));
    MISUSED(ncclParamGetI32(NULL, &number));
    ncclParamDumpAll();
    REQUIRE(strstr(ncclGetLastError(NULL), "ncclParamDumpAll: ") != NULL);
    REQUIRE(ncclTeamWorld(comm).nRanks == 0);
    REQUIRE(strstr(ncclGetLastError(NULL), "ncclTeamWorld: ") != NULL);
}

int main(void) {
    ncclComm_t comm = counted();
    absent(comm);
    CHECK(ncclCommDestroy(comm));
    printf("NCCL's names did what they should\n");
    return 0;
}
