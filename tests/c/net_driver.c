/* What NCCL asks of a network plugin, asked of any: net_driver LIBRARY VERSION [bench|short].
 *
 * One process holds both ends, as NCCL's own tests of plugins do; only the peer that dies is a
 * process of its own. It ends with «all as it should be», or with the line that was not. */
#define _GNU_SOURCE
#include "net_pair.h"

#include <sys/wait.h>
#include <unistd.h>

static void sizes_arrive_and_nothing_beside_them(struct net *net, size_t largest) {
    static const size_t sizes[] = {0,    1,    7,     8,       63,      64,    65,      4079, 4080,
                                   4081, 4096, 65536, 100003,  1 << 20, 262143, 4 << 20, 0,
                                   31337, 12345, 999999, LARGEST, LARGEST};
    struct pair pair;
    unsigned seed = 1;
    size_t index, at;
    meet(&pair, net);
    for (index = 0; index < sizeof sizes / sizeof *sizes; index++) {
        size_t bytes = sizes[index] < largest ? sizes[index] : largest;
        size_t room = bytes + (index % 3 == 2 && bytes + 32 < LARGEST ? 32 : 0);
        void *in;
        int got = -1;
        for (at = 0; at < bytes; at++)
            pair.out[GUARD + at] = (unsigned char)next_random(&seed);
        memset(pair.in, 0xee, room + 2 * GUARD);
        in = post(&pair, GUARD, room, 5);
        finish(&pair, begin(&pair, GUARD, bytes, 5), (int)bytes, in, &got);
        CHECK(got == (int)bytes);
        CHECK(!memcmp(pair.in + GUARD, pair.out + GUARD, bytes));
        for (at = 0; at < GUARD; at++)
            CHECK(pair.in[at] == 0xee && pair.in[GUARD + bytes + at] == 0xee);
    }
    part(&pair, "lsr");
}

/* Groups of receives, sent in an order of tags that is not theirs. */
static void groups_take_tags_in_any_order(struct net *net, int most) {
    enum { GROUPS = 20, PIECE = 5000 };
    struct pair pair;
    unsigned seed = 2;
    int round, index;
    meet(&pair, net);
    for (index = 0; index < NET_GROUP_MAX * PIECE; index++)
        pair.out[index] = (unsigned char)next_random(&seed);
    for (round = 0; round < GROUPS; round++) {
        int count = 1 + round % most, order[NET_GROUP_MAX], got[NET_GROUP_MAX];
        void *data[NET_GROUP_MAX], *memories[NET_GROUP_MAX], *in = NULL, *out[NET_GROUP_MAX];
        size_t bytes[NET_GROUP_MAX];
        int tags[NET_GROUP_MAX];
        double until = now() + 20;
        memset(pair.in, 0xee, NET_GROUP_MAX * PIECE);
        for (index = 0; index < count; index++) {
            data[index] = pair.in + index * PIECE;
            bytes[index] = PIECE - 1;
            tags[index] = 100 * index - 150;
            memories[index] = pair.in_memory;
            order[index] = index;
        }
        while (!in) {
            CHECK(net_irecv(net, pair.receiver, count, data, bytes, tags, memories, &in) == NET_OK);
            CHECK(now() < until);
        }
        for (index = count - 1; index > 0; index--) {
            int other = (int)(next_random(&seed) % (unsigned)(index + 1)), kept = order[index];
            order[index] = order[other];
            order[other] = kept;
        }
        for (index = 0; index < count; index++) {
            int which = order[index];
            out[which] = begin(&pair, (size_t)which * PIECE, (size_t)(which * 700), tags[which]);
        }
        for (index = 0; index < count; index++)
            finish(&pair, out[index], index * 700, index == count - 1 ? in : NULL, got);
        for (index = 0; index < count; index++) {
            CHECK(got[index] == index * 700);
            CHECK(!memcmp(data[index], pair.out + index * PIECE, (size_t)(index * 700)));
            CHECK(((unsigned char *)data[index])[index * 700] == 0xee);
        }
    }
    part(&pair, "rsl");
}

/* Several groups at a time: what is for a later one may be sent first. */
static void a_later_group_may_be_served_first(struct net *net) {
    struct pair pair;
    void *in[2], *out[4], *data[2][2], *memories[2];
    size_t bytes[2] = {8, 8};
    int tags[2] = {1, 2}, round, got[2], index;
    meet(&pair, net);
    memories[0] = memories[1] = pair.in_memory;
    for (round = 0; round < 2; round++) {
        double until = now() + 20;
        data[round][0] = pair.in + 16 * round;
        data[round][1] = pair.in + 16 * round + 8;
        in[round] = NULL;
        while (!in[round]) {
            CHECK(net_irecv(net, pair.receiver, 2, data[round], bytes, tags, memories,
                            &in[round]) == NET_OK);
            CHECK(now() < until);
        }
    }
    for (index = 0; index < 32; index++)
        pair.out[index] = (unsigned char)index;
    out[0] = begin(&pair, 0, 8, 1);
    out[1] = begin(&pair, 16, 8, 1); /* of the second group, while the first one waits for tag 2 */
    out[2] = begin(&pair, 8, 8, 2);
    out[3] = begin(&pair, 24, 8, 2);
    for (index = 0; index < 4; index++)
        finish(&pair, out[index], 8, NULL, NULL);
    finish(&pair, NULL, 0, in[1], got);
    finish(&pair, NULL, 0, in[0], got);
    CHECK(!memcmp(pair.in, pair.out, 32));
    part(&pair, "lrs");
}

/* Nothing is posted: not now. Many are posted: in order, and as many as there were. */
static void what_cannot_be_now_is_asked_again(struct net *net) {
    enum { ROUNDS = 3, EACH = 40000 };
    struct pair pair;
    void *in[4 * REQUESTS], *out[8 * REQUESTS];
    int round, index, posted, sent, got, refused = 0;
    meet(&pair, net);
    for (round = 0; round < ROUNDS; round++) {
        for (posted = 0; posted < 4 * REQUESTS; posted++) {
            void *data = pair.in + posted * EACH, *request = NULL;
            size_t bytes = EACH;
            int tag = 0;
            CHECK(net_irecv(net, pair.receiver, 1, &data, &bytes, &tag, &pair.in_memory,
                            &request) == NET_OK);
            if (!request)
                break;
            in[posted] = request;
        }
        CHECK(posted >= REQUESTS);
        memset(pair.in, 0, (size_t)posted * EACH);
        for (sent = 0; sent < 8 * REQUESTS;) {
            void *request = NULL;
            double until = now() + 0.2;
            pair.out[sent * EACH] = (unsigned char)(sent + round);
            while (!request && now() < until)
                CHECK(net_isend(net, pair.sender, pair.out + sent * EACH, EACH, 0, pair.out_memory,
                                &request) == NET_OK);
            if (!request)
                break;
            out[sent++] = request;
        }
        refused += sent < 8 * REQUESTS;
        CHECK(sent >= REQUESTS);
        for (index = 0; index < posted || index < sent; index++)
            finish(&pair, index < sent ? out[index] : NULL, EACH, index < posted ? in[index] : NULL,
                   &got);
        CHECK(sent == posted);
        for (index = 0; index < posted; index++)
            CHECK(pair.in[index * EACH] == (unsigned char)(index + round));
    }
    CHECK(refused == ROUNDS);
    part(&pair, "srl");
}

static void ends_may_close_in_every_order(struct net *net) {
    static const char *const orders[] = {"lsr", "lrs", "slr", "srl", "rls", "rsl"};
    size_t index;
    int got;
    for (index = 0; index < sizeof orders / sizeof *orders; index++) {
        struct pair pair;
        void *in, *left_over;
        meet(&pair, net);
        in = post(&pair, 0, 100, 0);
        left_over = post(&pair, 200, 100, 0); /* closed over, as in a job that is aborted */
        finish(&pair, begin(&pair, 0, 100, 0), 100, in, &got);
        CHECK(got == 100 && left_over);
        part(&pair, orders[index]);
    }
}

/* What was sent arrives although its sender has closed. */
static void a_message_outlives_its_sender(struct net *net) {
    struct pair pair;
    void *in[3];
    int index, got;
    meet(&pair, net);
    for (index = 0; index < 3; index++)
        in[index] = post(&pair, (size_t)index * 100000, 100000, 0);
    memset(pair.out, 7, 100000);
    memset(pair.in, 0, 300000);
    finish(&pair, begin(&pair, 0, 100000, 0), 100000, NULL, NULL);
    CHECK(net_close(net->table->close_send, pair.sender) == NET_OK);
    finish(&pair, NULL, 0, in[0], &got);
    CHECK(got == 100000 && !memcmp(pair.in, pair.out, 100000));
    CHECK(net_dereg(net, pair.receiver, pair.in_memory) == NET_OK);
    CHECK(net_close(net->table->close_recv, pair.receiver) == NET_OK);
    CHECK(net_close(net->table->close_listen, pair.listener) == NET_OK);
    free(pair.out);
    free(pair.in);
}

/* The child that was forked before the plugin was loaded: sends a part of its message, and dies. */
static void die_in_the_middle(const char *library, int version, int from_parent) {
    struct net net;
    struct pair pair = {0};
    char handle[NET_HANDLE_BYTES];
    void *request = NULL;
    double until = now() + 20;
    if (read(from_parent, handle, sizeof handle) != (ssize_t)sizeof handle)
        _exit(3);
    if (net_open(&net, library, version) || net_init(&net) != NET_OK)
        _exit(4);
    while (!pair.sender && now() < until)
        if (net_connect(&net, 0, handle, &pair.sender) != NET_OK)
            _exit(5);
    pair.out = calloc(1, LARGEST);
    if (!pair.out || net_reg(&net, pair.sender, pair.out, LARGEST, NET_HOST, &pair.out_memory))
        _exit(6);
    while (!request && now() < until)
        if (net_isend(&net, pair.sender, pair.out, LARGEST, 0, pair.out_memory, &request))
            _exit(7);
    _exit(0);
}

static void a_peer_that_dies_is_an_error_soon(struct net *net, int to_child, pid_t child) {
    char handle[NET_HANDLE_BYTES];
    struct pair pair = {0};
    size_t bytes = LARGEST;
    int tag = 0, done = 0, status, result = NET_OK;
    void *request = NULL, *data;
    double until = now() + 30, died;
    pair.net = net;
    CHECK(net_listen(net, 0, handle, &pair.listener) == NET_OK);
    CHECK(write(to_child, handle, sizeof handle) == (ssize_t)sizeof handle);
    while (!pair.receiver) {
        CHECK(net_accept(net, pair.listener, &pair.receiver) == NET_OK);
        CHECK(now() < until);
    }
    data = pair.in = malloc(LARGEST);
    CHECK(pair.in && net_reg(net, pair.receiver, pair.in, LARGEST, NET_HOST, &pair.in_memory) ==
                         NET_OK);
    while (!request)
        CHECK(net_irecv(net, pair.receiver, 1, &data, &bytes, &tag, &pair.in_memory, &request) ==
              NET_OK);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    died = now();
    while (result == NET_OK && !done && now() < until)
        result = net_test(net, request, &done, NULL);
    CHECK(result != NET_OK && now() - died < 5);
    CHECK(net_close(net->table->close_recv, pair.receiver) == NET_OK);
    CHECK(net_close(net->table->close_listen, pair.listener) == NET_OK);
    free(pair.in);
}

/* Only for plugins that look their handles up: ours. */
static void what_makes_no_sense_is_refused(struct net *net) {
    struct pair pair;
    char handle[NET_HANDLE_BYTES];
    void *strange[] = {NULL, (void *)1, (void *)0x12345678, (void *)-1}, *none = NULL, *request;
    void *data, *memory;
    size_t bytes = 100;
    int tag = 0, done, index;
    meet(&pair, net);
    CHECK(net_reg(net, pair.sender, pair.out, 100, 2, &memory) != NET_OK && net_said[0]);
    for (index = 0; index < 4; index++) {
        request = strange[index];
        CHECK(net_test(net, strange[index], &done, NULL) != NET_OK);
        CHECK(net_close(net->table->close_send, strange[index]) != NET_OK);
        CHECK(net_dereg(net, pair.sender, strange[index]) != NET_OK);
        CHECK(net_accept(net, strange[index], &request) != NET_OK);
        CHECK(net_isend(net, strange[index], pair.out, 8, 0, pair.out_memory, &request) != NET_OK);
    }
    CHECK(net_close(net->table->close_recv, pair.sender) != NET_OK);
    CHECK(net_isend(net, pair.receiver, pair.in, 8, 0, pair.in_memory, &request) != NET_OK);
    data = pair.in;
    for (index = -1; index <= NET_GROUP_MAX + 1; index += NET_GROUP_MAX + 2) {
        void *all[NET_GROUP_MAX + 1] = {0};
        size_t rooms[NET_GROUP_MAX + 1] = {0};
        int tags[NET_GROUP_MAX + 1] = {0};
        CHECK(net_irecv(net, pair.receiver, index, all, rooms, tags, all, &request) != NET_OK);
    }
    CHECK(net_irecv(net, pair.receiver, 1, &data, &bytes, &tag, &none, &request) != NET_OK);
    data = pair.in + LARGEST + 2 * GUARD - 99;
    CHECK(net_irecv(net, pair.receiver, 1, &data, &bytes, &tag, &pair.in_memory, &request) !=
          NET_OK);
    CHECK(post(&pair, 0, 8, 3));
    request = NULL;
    index = NET_OK;
    while (index == NET_OK) /* the note of the receive may be on its way */
        index = net_isend(net, pair.sender, pair.out, 9, 3, pair.out_memory, &request);
    CHECK(request == NULL && strstr(net_said, "room"));
    memset(handle, 0x5a, sizeof handle);
    CHECK(net_connect(net, 0, handle, &none) != NET_OK && none == NULL);
    CHECK(net_connect(net, 99, handle, &none) != NET_OK);
    part(&pair, "lsr");
    CHECK(net_close(net->table->close_send, pair.sender) != NET_OK);
}

static void measure(struct net *net) {
    enum { ROUNDS = 9, PINGS = 5000, STREAM = 4 << 20, PIECES = 100 };
    struct pair pair;
    double latency = 1e9, bandwidth = 0;
    int round, index, got;
    meet(&pair, net);
    memset(pair.out, 1, LARGEST);
    memset(pair.in, 1, LARGEST);
    for (round = 0; round < ROUNDS; round++) {
        double begun = now(), took;
        for (index = 0; index < PINGS; index++) {
            void *in = post(&pair, 0, 8, 0);
            finish(&pair, begin(&pair, 0, 8, 0), 8, in, &got);
        }
        took = (now() - begun) / PINGS * 1e6;
        latency = took < latency ? took : latency;
        begun = now();
        for (index = 0; index < PIECES; index++) {
            void *in = post(&pair, 0, STREAM, 0);
            finish(&pair, begin(&pair, 0, STREAM, 0), STREAM, in, &got);
        }
        took = (double)STREAM * PIECES / (now() - begun) * 1e-9;
        bandwidth = took > bandwidth ? took : bandwidth;
    }
    printf("8 B %.2f us, 4 MiB %.2f GB/s\n", latency, bandwidth);
    part(&pair, "lsr");
}

int main(int argc, char **argv) {
    struct net net;
    struct net_properties properties;
    int devices = 0, version, most, pipes[2], ours;
    const char *how = argc > 3 ? argv[3] : "";
    pid_t child;
    CHECK(argc > 2);
    version = atoi(argv[2]);
    CHECK(pipe(pipes) == 0 && (child = fork()) >= 0);
    if (child == 0) {
        /* Else it would wait for a parent that has failed. */
        close(pipes[1]);
        die_in_the_middle(argv[1], version, pipes[0]);
    }
    CHECK(net_open(&net, argv[1], version) == 0);
    CHECK(net_init(&net) == NET_OK);
    CHECK(net_devices(&net, &devices) == NET_OK && devices > 0);
    CHECK(net_get_properties(&net, 0, &properties) == NET_OK);
    CHECK(properties.name && properties.ptr_support & NET_HOST);
    most = net_max_receives(&net, &properties);
    CHECK(most >= 1);
    most = most < NET_GROUP_MAX ? most : NET_GROUP_MAX;
    ours = !strcmp(net.table->name, "Brigade");
    a_peer_that_dies_is_an_error_soon(&net, pipes[1], child);
    sizes_arrive_and_nothing_beside_them(&net, strcmp(how, "short") ? LARGEST : 100000);
    groups_take_tags_in_any_order(&net, most);
    if (most > 1)
        a_later_group_may_be_served_first(&net);
    what_cannot_be_now_is_asked_again(&net);
    ends_may_close_in_every_order(&net);
    a_message_outlives_its_sender(&net);
    if (ours)
        what_makes_no_sense_is_refused(&net);
    if (!strcmp(how, "bench"))
        measure(&net);
    printf("version %d of %s (%s): all as it should be\n", version, net.table->name,
           properties.name);
    return 0;
}
