// Small calls: every rank puts what the others need into their boards, data and flag in one store,
// and reads what arrives in its own. One step, nothing waits for anybody to leave: a rank that is
// one call ahead writes to the other half of the board, and two ahead it cannot be.

// Bytes that one rank may send to another in such a call.
#define PACKET_BYTES 16384
#define PACKETS (PACKET_BYTES / 8 + 1)

// Eight bytes, each half beside the call's number, stored at once.
struct alignas(16) Packet {
    u32 low;
    u32 low_flag;
    u32 high;
    u32 high_flag;
};

struct Part {
    u32 send_at;
    u32 send_bytes;
    u32 take_at;
    u32 take_bytes;
};

struct Packets {
    Group group;
    // Behind the board of each rank.
    Packet* halves[RANKS];
    u64 in;
    u64 out;
    u32 signature;
    u32 op;
    u32 folds;
    // Whether what ranks did before the call comes before what they do behind it, on all devices:
    // packets alone put nothing but themselves in order.
    u32 orders;
    double factor;
    Part part[RANKS];
};

// Halves of eight bytes are whole in a device's model of memory: a vector of four words is four
// stores there, of which any may be seen first.
DEVICE void store_packet(Packet* at, u64 data, u32 flag) {
    u64 first = (u64)flag << 32 | (u32)data, second = (u64)flag << 32 | data >> 32;
#ifndef BRIGADE_CPU
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(first), "l"(second)
                 : "memory");
#else
    u64* words = (u64*)at;
    __atomic_store_n(words, first, __ATOMIC_RELEASE);
    __atomic_store_n(words + 1, second, __ATOMIC_RELEASE);
#endif
}

DEVICE bool load_packet(const Packet* at, u32 flag, u64& data) {
    u64 first, second;
#ifndef BRIGADE_CPU
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(first), "=l"(second)
                 : "l"(at)
                 : "memory");
#else
    const u64* words = (const u64*)at;
    first = __atomic_load_n(words, __ATOMIC_ACQUIRE);
    second = __atomic_load_n(words + 1, __ATOMIC_ACQUIRE);
#endif
    data = second << 32 | (u32)first;
    return (u32)(first >> 32) == flag && (u32)(second >> 32) == flag;
}

union Eight {
    u64 bits;
    Stored lane[8 / sizeof(Stored)];
};

// Up to eight bytes of whole elements; what is missing is zero.
DEVICE u64 load_eight(u64 at, u32 bytes) {
    if (bytes >= 8 && (at & 7) == 0) return *(const u64*)at;
    Eight eight;
    eight.bits = 0;
    UNROLL for (int lane = 0; lane < HALF_LANES; lane++) {
        if (lane * sizeof(Stored) < bytes) eight.lane[lane] = ((const Stored*)at)[lane];
    }
    return eight.bits;
}

DEVICE void store_eight(u64 at, u64 bits, u32 bytes) {
    if (bytes >= 8 && (at & 7) == 0) {
        *(u64*)at = bits;
        return;
    }
    Eight eight;
    eight.bits = bits;
    UNROLL for (int lane = 0; lane < HALF_LANES; lane++) {
        if (lane * sizeof(Stored) < bytes) ((Stored*)at)[lane] = eight.lane[lane];
    }
}

// Wait for a packet of this call.
DEVICE bool take(const Packets& call, u32 peer, u32 index, u32 sequence, u64& data) {
    const Group& g = call.group;
    u64 half = (u64)(sequence & 1) * g.ranks + peer;
    const Packet* at = call.halves[g.rank] + half * PACKETS + index;
    Wait wait = begin_wait();
    bool good = true;
    Place place = {PACKET, peer, sequence, index, call.signature};
    while (good && !load_packet(at, sequence, data)) good = go_on(g, wait, place);
    if (good) end_wait(g, wait);
    return good;
}

DEVICE void send_packets(const Packets& call, u32 sequence) {
    const Group& g = call.group;
    for (u32 step = 1; step < g.ranks; step++) {
        u32 peer = (g.rank + step) % g.ranks, bytes = call.part[peer].send_bytes;
        u64 half = (u64)(sequence & 1) * g.ranks + g.rank;
        Packet* to = call.halves[peer] + half * PACKETS;
        u64 from = call.in + call.part[peer].send_at;
        for (u32 index = threadIdx.x; index <= (bytes + 7) / 8; index += blockDim.x) {
            u64 data = (u64)bytes << 32 | call.signature;
            if (index > 0) data = load_eight(from + 8 * (index - 1), bytes - 8 * (index - 1));
            store_packet(to + index, data, sequence);
        }
    }
}

// The first packet of every rank says which call it is in.
DEVICE bool is_same_call(const Packets& call, u32 sequence) {
    const Group& g = call.group;
    bool good = true;
    for (u32 peer = threadIdx.x; peer < g.ranks; peer += blockDim.x) {
        if (peer == g.rank) continue;
        u64 head = 0;
        if (!take(call, peer, 0, sequence, head)) {
            good = false;
        } else if ((u32)head != call.signature || (u32)(head >> 32) != call.part[peer].take_bytes) {
            fault(g, FAULT_MISMATCH, peer, call.signature, (u32)head, sequence);
            good = false;
        }
    }
    return good;
}

template <class F>
DEVICE void fold_packets(const Packets& call, u32 sequence) {
    const Group& g = call.group;
    Scale scale = {call.factor, g.ranks};
    u32 own = call.part[g.rank].send_at, bytes = call.part[g.rank].take_bytes;
    for (u32 index = threadIdx.x; index < (bytes + 7) / 8; index += blockDim.x) {
        typename F::Held held[HALF_LANES];
        Eight eight;
        for (u32 rank = 0; rank < g.ranks; rank++) {
            if (rank == g.rank) {
                eight.bits = load_eight(call.in + own + 8 * index, bytes - 8 * index);
            } else if (!take(call, rank, index + 1, sequence, eight.bits)) {
                return;
            }
            UNROLL for (int lane = 0; lane < HALF_LANES; lane++) {
                Stored stored = eight.lane[lane];
                held[lane] = rank == 0 ? F::first(stored, scale)
                                       : F::more(held[lane], stored, scale);
            }
        }
        UNROLL for (int lane = 0; lane < HALF_LANES; lane++) {
            eight.lane[lane] = F::last(held[lane], scale);
        }
        store_eight(call.out + call.part[g.rank].take_at + 8 * index, eight.bits,
                    bytes - 8 * index);
    }
}

DEVICE void place_packets(const Packets& call, u32 sequence) {
    const Group& g = call.group;
    const Part& own = call.part[g.rank];
    copy(call.out + own.take_at, call.in + own.send_at, own.take_bytes);
    for (u32 step = 1; step < g.ranks; step++) {
        u32 peer = (g.rank + step) % g.ranks, bytes = call.part[peer].take_bytes;
        u64 to = call.out + call.part[peer].take_at;
        for (u32 index = threadIdx.x; index < (bytes + 7) / 8; index += blockDim.x) {
            u64 data = 0;
            if (!take(call, peer, index + 1, sequence, data)) return;
            store_eight(to + 8 * index, data, bytes - 8 * index);
        }
    }
}

KERNEL packets(Packets call) {
    const Group& g = call.group;
    u32 sequence = g.board[g.rank]->sequence[0] + 1;
    if (call.orders) fence_sys();
    send_packets(call, sequence);
    // All has been sent before anything is written to what may be the same buffer.
    bool is_same = is_same_call(call, sequence);
    if (call.orders) fence_sys();
    if (!__syncthreads_or(!is_same)) {
        if (call.folds) {
            WITH_OPERATOR(call.op, fold_packets, call, sequence)
        } else {
            place_packets(call, sequence);
        }
    }
    if (threadIdx.x == 0) g.board[g.rank]->sequence[0] = sequence;
}

static_assert(sizeof(Packets) == 1080, "the host has the same layout");
