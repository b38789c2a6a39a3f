/* A network plugin of NCCL as its loader sees it: versions 8 to 12 behind one set of functions. */
#ifndef NET_PLUGIN_H
#define NET_PLUGIN_H

#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NET_OK = 0, NET_HANDLE_BYTES = 128, NET_HOST = 1, NET_GROUP_MAX = 8 };

typedef void (*net_logger)(int level, unsigned long flags, const char *file, int line,
                           const char *format, ...);
typedef void (*net_any)(void); /* any function: compilers let it become any other */

/* What every version has, in this order; in between, other forms of the same function. */
struct net_table {
    const char *name;
    net_any init, devices, properties, listen, connect, accept, reg, reg_dma_buf, dereg, isend,
        irecv, iflush, test, close_send, close_recv, close_listen, get_device_mr, consumed;
    net_any make_vdevice, finalize, set_attr; /* from version 9; from 11; from 11 */
};

struct net {
    const struct net_table *table;
    int version;
    void *context;
};

/* The beginning of the properties, which is the same in all versions. */
struct net_properties {
    const char *name, *pci_path;
    uint64_t guid;
    int ptr_support, reg_is_global;
    unsigned char rest[256];
};

static char net_said[512];

static void net_log(int level, unsigned long flags, const char *file, int line, const char *format,
                    ...) {
    va_list arguments;
    (void)level, (void)flags, (void)file, (void)line;
    va_start(arguments, format);
    vsnprintf(net_said, sizeof net_said, format, arguments);
    va_end(arguments);
}

static int net_open(struct net *net, const char *path, int version) {
    char symbol[32];
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return -1;
    }
    snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
    net->table = (const struct net_table *)dlsym(library, symbol);
    net->version = version;
    net->context = NULL;
    return net->table ? 0 : -1;
}

static int net_init(struct net *net) {
    int config = -1;
    if (net->version <= 9)
        return ((int (*)(net_logger))net->table->init)(net_log);
    if (net->version == 10)
        return ((int (*)(net_logger, void *))net->table->init)(net_log, NULL);
    return ((int (*)(void **, uint64_t, int *, net_logger, void *))net->table->init)(
        &net->context, 7, &config, net_log, NULL);
}

static int net_devices(struct net *net, int *count) {
    return ((int (*)(int *))net->table->devices)(count);
}

static int net_get_properties(struct net *net, int device, struct net_properties *properties) {
    return ((int (*)(int, void *))net->table->properties)(device, properties);
}

/* The most receives of a group: behind speed, port, latency and the number of connections. */
static int net_max_receives(const struct net *net, const struct net_properties *properties) {
    int value;
    size_t at = net->version == 8 ? 16 : 20;
    memcpy(&value, properties->rest + at, sizeof value);
    return value;
}

static int net_listen(struct net *net, int device, void *handle, void **listener) {
    if (net->version <= 10)
        return ((int (*)(int, void *, void **))net->table->listen)(device, handle, listener);
    return ((int (*)(void *, int, void *, void **))net->table->listen)(net->context, device, handle,
                                                                       listener);
}

static int net_connect(struct net *net, int device, void *handle, void **sender) {
    void *on_device = NULL;
    int config = -1;
    if (net->version <= 9)
        return ((int (*)(int, void *, void **, void **))net->table->connect)(device, handle, sender,
                                                                             &on_device);
    if (net->version == 10)
        return ((int (*)(int, int *, void *, void **, void **))net->table->connect)(
            device, &config, handle, sender, &on_device);
    return ((int (*)(void *, int, void *, void **, void **))net->table->connect)(
        net->context, device, handle, sender, &on_device);
}

static int net_accept(struct net *net, void *listener, void **receiver) {
    void *on_device = NULL;
    return ((int (*)(void *, void **, void **))net->table->accept)(listener, receiver, &on_device);
}

static int net_reg(struct net *net, void *end, void *data, size_t bytes, int kind, void **memory) {
    return ((int (*)(void *, void *, size_t, int, void **))net->table->reg)(end, data, bytes, kind,
                                                                           memory);
}

static int net_dereg(struct net *net, void *end, void *memory) {
    return ((int (*)(void *, void *))net->table->dereg)(end, memory);
}

static int net_isend(struct net *net, void *sender, void *data, size_t bytes, int tag, void *memory,
                     void **request) {
    if (net->version == 8)
        return ((int (*)(void *, void *, int, int, void *, void **))net->table->isend)(
            sender, data, (int)bytes, tag, memory, request);
    if (net->version == 9)
        return ((int (*)(void *, void *, size_t, int, void *, void **))net->table->isend)(
            sender, data, bytes, tag, memory, request);
    return ((int (*)(void *, void *, size_t, int, void *, void *, void **))net->table->isend)(
        sender, data, bytes, tag, memory, NULL, request);
}

static int net_irecv(struct net *net, void *receiver, int count, void **data, size_t *bytes,
                     int *tags, void **memories, void **request) {
    int index, narrow[NET_GROUP_MAX + 1];
    void *profiles[NET_GROUP_MAX + 1] = {NULL};
    for (index = 0; index < count && index <= NET_GROUP_MAX; index++)
        narrow[index] = (int)bytes[index];
    if (net->version == 8)
        return ((int (*)(void *, int, void **, int *, int *, void **, void **))net->table->irecv)(
            receiver, count, data, narrow, tags, memories, request);
    if (net->version == 9)
        return (
            (int (*)(void *, int, void **, size_t *, int *, void **, void **))net->table->irecv)(
            receiver, count, data, bytes, tags, memories, request);
    return ((int (*)(void *, int, void **, size_t *, int *, void **, void **, void **))
                net->table->irecv)(receiver, count, data, bytes, tags, memories, profiles, request);
}

static int net_test(struct net *net, void *request, int *done, int *bytes) {
    return ((int (*)(void *, int *, int *))net->table->test)(request, done, bytes);
}

static int net_close(net_any close, void *what) {
    return ((int (*)(void *))close)(what);
}

#endif
