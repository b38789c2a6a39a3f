// What ThreadSanitizer is told when it looks on: which thread of a kernel runs, and what puts two
// of them in order. It sees loads, stores and atomics of kernels by itself, of this header's
// neighbours nothing (`BRIGADE_UNSEEN`): there threads of a block take turns on one thread of the
// system, which is no order that a device has.
#pragma once

#ifdef BRIGADE_CPU_RACES
#define BRIGADE_UNSEEN __attribute__((no_sanitize("thread")))
extern "C" {
void *__tsan_get_current_fiber();
void *__tsan_create_fiber(unsigned);
void __tsan_switch_to_fiber(void *, unsigned);
void __tsan_acquire(void *);
void __tsan_release(void *);
void AnnotateIgnoreSyncBegin(const char *, int);
void AnnotateIgnoreSyncEnd(const char *, int);
}
#else
#define BRIGADE_UNSEEN
#endif

namespace brigade_cpu {

constexpr size_t STACK_BYTES = 128 * 1024;

static inline char *new_stack() {
    void *fresh = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fresh == MAP_FAILED) abort();
    return (char *)fresh;
}

// A thread as ThreadSanitizer knows it, with a stack that no other one has.
struct Identity {
    void *name;
    char *stack;
    Identity *next;
};

#ifdef BRIGADE_CPU_RACES

constexpr unsigned WITHOUT_ORDER = 1;

// Making one takes a millisecond, so those of blocks that have ended are taken again: of the same
// stream, whose kernels come one behind the other anyway. What one has seen it brings along.
constexpr unsigned long STREAMS = 1024;
inline pthread_mutex_t spare_identities_lock = PTHREAD_MUTEX_INITIALIZER;
inline Identity *spare_identities[STREAMS] = {};

// A lock that puts nobody in order.
struct IdentitiesGuard {
    BRIGADE_UNSEEN IdentitiesGuard() {
        AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
        pthread_mutex_lock(&spare_identities_lock);
    }
    BRIGADE_UNSEEN ~IdentitiesGuard() {
        pthread_mutex_unlock(&spare_identities_lock);
        AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
    }
};

BRIGADE_UNSEEN static inline Identity own_identity() {
    return {__tsan_get_current_fiber(), nullptr, nullptr};
}
BRIGADE_UNSEEN static inline Identity *take_identity(unsigned long stream) {
    IdentitiesGuard guard;
    Identity *&spare = spare_identities[stream % STREAMS];
    Identity *one = spare;
    if (one) spare = one->next;
    else one = new Identity{__tsan_create_fiber(0), new_stack(), nullptr};
    return one;
}
BRIGADE_UNSEEN static inline void give_identity(Identity *one, unsigned long stream) {
    IdentitiesGuard guard;
    Identity *&spare = spare_identities[stream % STREAMS];
    one->next = spare;
    spare = one;
}
BRIGADE_UNSEEN static inline void become(const Identity *other) {
    __tsan_switch_to_fiber(other->name, WITHOUT_ORDER);
}
// Whatever was done before this comes before what is done after `come_behind` of the same place.
BRIGADE_UNSEEN static inline void go_before(void *place) { __tsan_release(place); }
BRIGADE_UNSEEN static inline void come_behind(void *place) { __tsan_acquire(place); }

#else

static inline Identity own_identity() { return {}; }
static inline Identity *take_identity(unsigned long) { return nullptr; }
static inline void give_identity(Identity *, unsigned long) {}
static inline void become(const Identity *) {}
static inline void go_before(void *) {}
static inline void come_behind(void *) {}

#endif

}  // namespace brigade_cpu
