/*
 * The smallest program in C: every rank brings a vector, every rank ends with the sum.
 *
 * cc examples/hello.c -o hello $(pkg-config --cflags --libs brigade) && brigade run -n 4 -- ./hello
 */
#include <brigade.h>
#include <stdio.h>

/* Ends main with the whole sentence if a call fails. */
#define TRY(call)                                     \
    if ((call) != BRIGADE_SUCCESS) {                  \
        fprintf(stderr, "%s\n", brigade_last_error()); \
        return 1;                                     \
    }

int main(void) {
    brigade_comm_t comm;
    float numbers[1000];
    int rank, size, at;

    TRY(brigade_comm_init_from_env(&comm, NULL));
    TRY(brigade_comm_rank(comm, &rank));
    TRY(brigade_comm_size(comm, &size));

    for (at = 0; at < 1000; at++)
        numbers[at] = (float)(rank + 1);
    TRY(brigade_all_reduce(numbers, numbers, 1000, BRIGADE_FLOAT32, BRIGADE_SUM, comm, NULL));

    printf("rank %d of %d: every number is now %g\n", rank, size, numbers[0]);
    TRY(brigade_comm_destroy(comm));
    return 0;
}
