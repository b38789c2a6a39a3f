/*
 * Worlds from a unique id: ranks as threads of one process, and as processes that were forked
 * after the id was drawn. The parent is no rank; its root serves them.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3 };

struct seat {
    brigade_unique_id_t id;
    int rank;
};

static void *take_part(void *argument) {
    const struct seat *seat = (const struct seat *)argument;
    brigade_comm_t comm;
    int value = seat->rank + 1, rank, size;
    CHECK(brigade_comm_init_rank(&comm, RANKS, seat->id, seat->rank));
    CHECK(brigade_comm_rank(comm, &rank));
    CHECK(brigade_comm_size(comm, &size));
    REQUIRE(rank == seat->rank && size == RANKS);
    CHECK(brigade_all_reduce(&value, &value, 1, BRIGADE_INT32, BRIGADE_SUM, comm, NULL));
    REQUIRE(value == RANKS * (RANKS + 1) / 2);
    CHECK(brigade_barrier(comm, NULL));
    CHECK(brigade_comm_destroy(comm));
    return NULL;
}

static void as_threads(void) {
    struct seat seats[RANKS];
    pthread_t threads[RANKS];
    brigade_unique_id_t id;
    int rank;
    CHECK(brigade_get_unique_id(&id));
    for (rank = 0; rank < RANKS; rank++) {
        seats[rank].id = id;
        seats[rank].rank = rank;
        REQUIRE(pthread_create(&threads[rank], NULL, take_part, &seats[rank]) == 0);
    }
    for (rank = 0; rank < RANKS; rank++)
        REQUIRE(pthread_join(threads[rank], NULL) == 0);
}

static void as_processes(void) {
    struct seat seat;
    pid_t children[RANKS];
    int status;
    CHECK(brigade_get_unique_id(&seat.id));
    for (seat.rank = 0; seat.rank < RANKS; seat.rank++) {
        children[seat.rank] = fork();
        REQUIRE(children[seat.rank] >= 0);
        if (children[seat.rank] == 0) {
            take_part(&seat);
            exit(0);
        }
    }
    for (seat.rank = 0; seat.rank < RANKS; seat.rank++) {
        REQUIRE(waitpid(children[seat.rank], &status, 0) == children[seat.rank]);
        REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

int main(void) {
    as_processes();
    as_threads();
    as_threads();
    as_processes();
    printf("ids led where they should\n");
    return 0;
}
