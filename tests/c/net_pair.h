/* Both ends of a connection of a network plugin, in one process, and what is done with them. */
#ifndef NET_PAIR_H
#define NET_PAIR_H

#include "net_plugin.h"

#include <time.h>

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "%s:%d: not so: %s (the plugin said: %s)\n", __FILE__, __LINE__, #what, \
                    net_said);                                                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { GUARD = 64, LARGEST = 16 << 20, REQUESTS = 32 };

struct pair {
    struct net *net;
    void *listener, *sender, *receiver, *out_memory, *in_memory;
    unsigned char *out, *in;
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static unsigned next_random(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void meet(struct pair *pair, struct net *net) {
    char handle[NET_HANDLE_BYTES];
    double until = now() + 20;
    memset(pair, 0, sizeof *pair);
    pair->net = net;
    CHECK(net_listen(net, 0, handle, &pair->listener) == NET_OK && pair->listener);
    while (!pair->sender || !pair->receiver) {
        double begun = now();
        CHECK(begun < until);
        if (!pair->sender)
            CHECK(net_connect(net, 0, handle, &pair->sender) == NET_OK);
        if (!pair->receiver)
            CHECK(net_accept(net, pair->listener, &pair->receiver) == NET_OK);
        CHECK(now() - begun < 2); /* neither may wait */
    }
    pair->out = calloc(1, LARGEST + 2 * GUARD);
    pair->in = malloc(LARGEST + 2 * GUARD);
    CHECK(pair->out && pair->in);
    CHECK(net_reg(net, pair->sender, pair->out, LARGEST + 2 * GUARD, NET_HOST,
                  &pair->out_memory) == NET_OK);
    CHECK(net_reg(net, pair->receiver, pair->in, LARGEST + 2 * GUARD, NET_HOST, &pair->in_memory) ==
          NET_OK);
}

static void part(struct pair *pair, const char *order) {
    struct net *net = pair->net;
    CHECK(net_dereg(net, pair->sender, pair->out_memory) == NET_OK);
    CHECK(net_dereg(net, pair->receiver, pair->in_memory) == NET_OK);
    for (; *order; order++) {
        if (*order == 'l')
            CHECK(net_close(net->table->close_listen, pair->listener) == NET_OK);
        if (*order == 's')
            CHECK(net_close(net->table->close_send, pair->sender) == NET_OK);
        if (*order == 'r')
            CHECK(net_close(net->table->close_recv, pair->receiver) == NET_OK);
    }
    free(pair->out);
    free(pair->in);
}

static void *post(struct pair *pair, size_t at, size_t bytes, int tag) {
    void *data = pair->in + at, *request = NULL;
    double until = now() + 20;
    while (!request) {
        CHECK(net_irecv(pair->net, pair->receiver, 1, &data, &bytes, &tag, &pair->in_memory,
                        &request) == NET_OK);
        CHECK(now() < until);
    }
    return request;
}

/* Send, asking again while it cannot be. */
static void *begin(struct pair *pair, size_t at, size_t bytes, int tag) {
    void *request = NULL;
    double until = now() + 20;
    while (!request) {
        CHECK(net_isend(pair->net, pair->sender, pair->out + at, bytes, tag, pair->out_memory,
                        &request) == NET_OK);
        CHECK(now() < until);
    }
    return request;
}

static void finish(struct pair *pair, void *out, int out_bytes, void *in, int *in_bytes) {
    double until = now() + 60;
    int done, bytes;
    while (out || in) {
        if (out) {
            CHECK(net_test(pair->net, out, &done, &bytes) == NET_OK);
            if (done) {
                CHECK(bytes == out_bytes);
                out = NULL;
            }
        }
        if (in) {
            CHECK(net_test(pair->net, in, &done, in_bytes) == NET_OK);
            if (done)
                in = NULL;
        }
        CHECK(now() < until);
    }
}

#endif
