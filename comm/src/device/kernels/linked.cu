// Calls by their schedules, between devices whose kernels run at the same time: what one rank sends
// another goes through slots in the other's memory, so nobody need know where buffers lie, and
// nothing meets on the host.
//
// A call is cut into windows. Block b carries out windows b, b + lanes and so on, each from its
// first hop to its last, over slots of its own: a lane. Schedules that come here end so, with room
// for one move on each wire.

#define HOPS 80
#define SLOTS 2
#define SLOT_BYTES 65536

// What this rank and one peer count on one lane. The first two are the peer's to write.
struct Lane {
    u32 posted;
    u32 taken;
    u32 sent;
    u32 received;
    u32 spare[28];
};

// The bytes follow.
struct Slot {
    u32 signature;
    u32 bytes;
    // Of the message that this is a part of.
    u64 whole;
    u32 spare[28];
};

#define SLOT_STRIDE (sizeof(Slot) + SLOT_BYTES)
#define LANE_BYTES (sizeof(Lane) + SLOTS * SLOT_STRIDE)

enum { SEND = 0, RECV = 1, FOLD = 2, MERGE = 3, COPY = 4 };

struct Hop {
    u8 kind;
    u8 peer;
    u8 ends;
    // Of a whole move that is received: one more than the rank that it is passed on to, or none.
    u8 next;
    u16 from;
    u16 to;
    u64 elems;
    u64 source;
    u64 target;
    u64 other;
};

struct Linked {
    Group group;
    u64 inbox[RANKS];
    u64 in;
    u64 out;
    u64 scratch;
    u64 scratch_bytes;
    u64 window;
    u64 windows;
    u32 lanes;
    u32 pieces;
    u32 elem_bytes;
    u32 signature;
    u32 op;
    u32 hops;
    u32 call;
    u32 spare;
    Hop hop[HOPS];
};

// The counters of one block with each peer, and where it is in the call.
struct Counts {
    u32 sent[RANKS];
    u32 received[RANKS];
    // Slots of all peers so far: another number for each wait, in replays of a graph too.
    u32 moved;
    u32 stop;
};

DEVICE Lane* lane_of(const u64* inbox, u32 lanes, u32 owner, u32 peer) {
    return (Lane*)(inbox[owner] + ((u64)peer * lanes + blockIdx.x) * LANE_BYTES);
}

DEVICE u64 slot_at(Lane* lane, u32 number) {
    return (u64)lane + sizeof(Lane) + (u64)(number % SLOTS) * SLOT_STRIDE;
}

DEVICE void load_counts(const Group& g, const u64* inbox, u32 lanes, Counts& counts) {
    for (u32 peer = threadIdx.x; peer < g.ranks; peer += blockDim.x) {
        const Lane* lane = lane_of(inbox, lanes, g.rank, peer);
        counts.sent[peer] = lane->sent;
        counts.received[peer] = lane->received;
    }
    if (threadIdx.x == 0) counts.stop = counts.moved = 0;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (u32 peer = 0; peer < g.ranks; peer++) {
        counts.moved += counts.sent[peer] + counts.received[peer];
    }
}

// Wait until all that was sent is taken, so that nobody writes to this rank's counters for the sake
// of this call when its kernel has ended; and keep the counters.
DEVICE void store_counts(const Group& g, const u64* inbox, u32 lanes, Counts& counts, Place place) {
    __syncthreads();
    if (counts.stop) return;
    place.phase = DRAIN;
    place.turn = counts.moved;
    for (u32 peer = threadIdx.x; peer < g.ranks; peer += blockDim.x) {
        Lane* lane = lane_of(inbox, lanes, g.rank, peer);
        place.peer = peer;
        if (!await_flag(g, &lane->taken, counts.sent[peer], place)) continue;
        lane->sent = counts.sent[peer];
        lane->received = counts.received[peer];
    }
}

// One thread: tell the peer that a slot is full, of the bytes of one move.
DEVICE void post_slot(const Group& g, const u64* inbox, u32 lanes, Counts& counts, u32 peer,
                      u32 signature, u64 bytes, u64 whole) {
    Lane* there = lane_of(inbox, lanes, peer, g.rank);
    Slot* slot = (Slot*)slot_at(there, counts.sent[peer]);
    slot->signature = signature;
    slot->bytes = (u32)bytes;
    slot->whole = whole;
    counts.moved++;
    store_flag(&there->posted, ++counts.sent[peer]);
}

// One thread: whether the slot at hand is of this call and has so many bytes, and then give it back.
DEVICE bool take_slot(const Group& g, const u64* inbox, u32 lanes, Counts& counts, u32 peer,
                      u32 signature, u64 bytes, u64 whole) {
    u32 number = counts.received[peer] + 1;
    const Slot* slot = (const Slot*)slot_at(lane_of(inbox, lanes, g.rank, peer), number - 1);
    if (slot->signature != signature || slot->bytes != bytes || slot->whole != whole) {
        fault(g, FAULT_MISMATCH, peer, signature, slot->signature, number);
        return false;
    }
    counts.received[peer] = number;
    counts.moved++;
    store_flag(&lane_of(inbox, lanes, peer, g.rank)->taken, number);
    return true;
}

// `to = one + two`, or whatever else is folded, and `also = to` where there is such a place. Both
// operands are read before anything is written to the same place.
template <class F>
DEVICE void fold_pair(u64 to, u64 also, u64 one, u64 two, u64 bytes, const Scale& scale) {
    u64 done = 0;
    if (((to | also | one | two) & 15) == 0) {
        u64 vectors = bytes / 16, lanes = blockDim.x, first = threadIdx.x;
        for (; first + 3 * lanes < vectors; first += 4 * lanes) {
            Vector flying[4][2];
            UNROLL for (int k = 0; k < 4; k++) {
                flying[k][0] = load_vector(one + 16 * (first + k * lanes));
                flying[k][1] = load_vector(two + 16 * (first + k * lanes));
            }
            UNROLL for (int k = 0; k < 4; k++) {
                Vector result = fold_vector<F, 2>(flying[k], scale);
                store_vector(to + 16 * (first + k * lanes), result);
                if (also) store_vector(also + 16 * (first + k * lanes), result);
            }
        }
        for (; first < vectors; first += lanes) {
            Vector pair[2] = {load_vector(one + 16 * first), load_vector(two + 16 * first)};
            Vector result = fold_vector<F, 2>(pair, scale);
            store_vector(to + 16 * first, result);
            if (also) store_vector(also + 16 * first, result);
        }
        done = vectors * 16 / sizeof(Stored);
    }
    for (u64 at = done + threadIdx.x; at < bytes / sizeof(Stored); at += blockDim.x) {
        typename F::Held held = F::first(((const Stored*)one)[at], scale);
        held = F::more(held, ((const Stored*)two)[at], scale);
        Stored result = F::last(held, scale);
        ((Stored*)to)[at] = result;
        if (also) ((Stored*)also)[at] = result;
    }
}

// Averages are divided, and factors multiplied, by a kernel of their own: here both are sums.
#if defined(ONLY) && (ONLY == AVG || ONLY == PREMULSUM)
#define WITH_PAIR(OPERATOR, RUN, ...) RUN<Fold<SUM>>(__VA_ARGS__);
#else
#define WITH_PAIR(OPERATOR, RUN, ...) WITH_OPERATOR(OPERATOR, RUN, __VA_ARGS__)
#endif

DEVICE u64 address_of(const Linked& call, u64 place, u64 first) {
    u64 at = place & (~0ull >> 2);
    switch (place >> 62) {
        case 0: return call.in + at + first * call.elem_bytes;
        case 1: return call.out + at + first * call.elem_bytes;
    }
    return call.scratch + blockIdx.x * call.scratch_bytes + at;
}

// One thread: wait for room with a peer, or for what it sends.
DEVICE bool await_slot(const Linked& call, u32 peer, bool sends, const Counts& counts, u32 number) {
    const Lane* own = lane_of(call.inbox, call.lanes, call.group.rank, peer);
    u32 want = sends ? counts.sent[peer] + 1 - SLOTS : counts.received[peer] + 1;
    Place place = {(u32)(sends ? DRAIN : PART), peer, call.call, number, call.signature};
    place.turn = counts.moved;
    return await_flag(call.group, sends ? &own->taken : &own->posted, want, place);
}

DEVICE void begin_move(const Linked& call, const Hop& hop, Counts& counts, u32 number) {
    if (threadIdx.x == 0) {
        bool goes = await_slot(call, hop.peer, hop.kind == SEND, counts, number);
        if (goes && hop.next) goes = await_slot(call, hop.next - 1, true, counts, number);
        if (!goes) counts.stop = 1;
    }
    __syncthreads();
}

DEVICE void end_move(const Linked& call, const Hop& hop, Counts& counts, u64 bytes) {
    const Group& g = call.group;
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (hop.kind == SEND) {
        post_slot(g, call.inbox, call.lanes, counts, hop.peer, call.signature, bytes, 0);
    } else if (!take_slot(g, call.inbox, call.lanes, counts, hop.peer, call.signature, bytes, 0)) {
        counts.stop = 1;
    } else if (hop.next) {
        post_slot(g, call.inbox, call.lanes, counts, hop.next - 1, call.signature, bytes, 0);
    }
}

// Where the bytes begin of the slot at hand: in our inbox, or in that of a peer we send to.
DEVICE u64 slot_of(const u64* inbox, u32 lanes, const Group& g, u32 peer, bool sends,
                   const Counts& counts) {
    Lane* lane = sends ? lane_of(inbox, lanes, peer, g.rank) : lane_of(inbox, lanes, g.rank, peer);
    return slot_at(lane, sends ? counts.sent[peer] : counts.received[peer]) + sizeof(Slot);
}

// What no move has carried.
#define STOPPED (~0ull)

// The part of one hop in one window. `filled` is what its move has carried before; what it has
// then, or that all is over.
DEVICE u64 carry_hop(const Linked& call, u32 number, u64 window, u64 filled, Counts& counts) {
    const Hop& hop = call.hop[number];
    u64 low = window * call.window, high = low + call.window;
    if (low > hop.elems) low = hop.elems;
    if (high > hop.elems) high = hop.elems;
    u64 first = low + (high - low) * hop.from / call.pieces;
    u64 last = low + (high - low) * hop.to / call.pieces;
    u64 bytes = (last - first) * call.elem_bytes;
    u64 source = address_of(call, hop.source, first), target = address_of(call, hop.target, first);
    u64 other = source, also = 0;
    bool is_local = hop.kind >= MERGE;
    if (is_local) {
        if (hop.kind == MERGE) other = address_of(call, hop.other, first);
    } else if (bytes > 0) {
        if (filled == 0) begin_move(call, hop, counts, number);
        if (counts.stop) return STOPPED;
        const Group& g = call.group;
        u64 slot = slot_of(call.inbox, call.lanes, g, hop.peer, hop.kind == SEND, counts) + filled;
        if (hop.next) also = slot_of(call.inbox, call.lanes, g, hop.next - 1, true, counts);
        if (hop.kind == SEND) target = slot;
        else source = slot;
    }
    // In one place: each one more would be compiled once more, for every type and operator.
    if (hop.kind == MERGE || hop.kind == FOLD) {
        Scale scale = {1.0, call.group.ranks};
        (void)scale, (void)other;
        WITH_PAIR(call.op, fold_pair, target, also, other, source, bytes, scale)
    } else {
        copy(target, source, bytes);
        if (also) copy(also, source, bytes);
    }
    if (is_local) {
        __syncthreads();
        return 0;
    }
    filled += bytes;
    if (!hop.ends) return filled;
    if (filled > 0) end_move(call, hop, counts, filled);
    return 0;
}

KERNEL linked(Linked call) {
    __shared__ Counts counts;
    load_counts(call.group, call.inbox, call.lanes, counts);
    for (u64 window = blockIdx.x; window < call.windows; window += call.lanes) {
        u64 filled = 0;
        for (u32 number = 0; number < call.hops; number++) {
            filled = carry_hop(call, number, window, filled, counts);
            if (filled == STOPPED) return;
        }
    }
    Place place = {DRAIN, 0, call.call, call.hops, call.signature};
    store_counts(call.group, call.inbox, call.lanes, counts, place);
}

// Every element once more: what is before or behind the sum.
struct Scaling {
    u64 to;
    u64 from;
    u64 elems;
    double factor;
    u32 ranks;
    u32 op;
};

template <class F>
DEVICE void scale_all(const Scaling& call) {
    Scale scale = {call.factor, call.ranks};
    u64 lanes = (u64)gridDim.x * blockDim.x, first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u64 at = first;
    if (((call.to | call.from) & 15) == 0) {
        u64 vectors = call.elems / LANES;
        for (u64 one = first; one < vectors; one += lanes) {
            Vector vector = load_vector(call.from + 16 * one);
            store_vector(call.to + 16 * one, fold_vector<F, 1>(&vector, scale));
        }
        at += vectors * LANES;
    }
    for (; at < call.elems; at += lanes) {
        Stored stored = ((const Stored*)call.from)[at];
        ((Stored*)call.to)[at] = F::last(F::first(stored, scale), scale);
    }
}

KERNEL scale(Scaling call) {
    (void)call;
    WITH_OPERATOR(call.op, scale_all, call)
}

static_assert(sizeof(Linked) == 3808 && sizeof(Scaling) == 40 && LANE_BYTES == 131456,
              "the host has the same layout");
