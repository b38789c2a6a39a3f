/* What the C programs here say when something is not as it should be. */
#ifndef CHECK_H
#define CHECK_H

#include <brigade.h>

#include <stdio.h>
#include <stdlib.h>

#define CHECK(call) RESULT(BRIGADE_SUCCESS, call)

#define RESULT(wanted, call)                                                                \
    do {                                                                                    \
        brigade_result_t result_ = (call);                                                  \
        if (result_ != (wanted)) {                                                          \
            fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call,               \
                    brigade_error_string(result_), brigade_last_error());                   \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

#define REQUIRE(condition)                                                                  \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__,     \
                    #condition, brigade_last_error());                                      \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

#endif
