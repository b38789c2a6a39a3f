// Messages between pairs through the slots of `linked.cu`. A message is shared by the first lanes;
// a block looks after its share of all messages of a call in turn, so that none of them waits for
// another one. Compiled with the kernels that fold nothing.

#if !defined(ONLY) || ONLY == 255
struct Parcel {
    u32 sends;
    u32 peer;
    u64 at;
    u64 bytes;
    u32 signature;
    u32 lanes;
};

struct Parcels {
    Group group;
    u64 inbox[RANKS];
    u32 lanes;
    u32 count;
    u32 call;
    u32 spare;
    // At most one to each rank and one from each.
    Parcel parcel[2 * RANKS];
};

// What this block has of a message.
struct Portion {
    u64 begin;
    u64 end;
    // In slots; at least one, which tells the peer that we came.
    u32 slots;
};

DEVICE Portion portion_of(const Parcel& parcel) {
    Portion portion = {0, 0, 0};
    if (blockIdx.x >= parcel.lanes) return portion;
    u64 vectors = (parcel.bytes + 15) / 16;
    portion.begin = vectors * blockIdx.x / parcel.lanes * 16;
    portion.end = vectors * (blockIdx.x + 1) / parcel.lanes * 16;
    if (portion.begin > parcel.bytes) portion.begin = parcel.bytes;
    if (portion.end > parcel.bytes) portion.end = parcel.bytes;
    u64 slots = (portion.end - portion.begin + SLOT_BYTES - 1) / SLOT_BYTES;
    portion.slots = slots > 0 ? (u32)slots : 1;
    return portion;
}

DEVICE bool is_ready(const Parcels& call, const Parcel& parcel, const Counts& counts) {
    const Lane* own = lane_of(call.inbox, call.lanes, call.group.rank, parcel.peer);
    if (parcel.sends) return is_due(load_flag(&own->taken), counts.sent[parcel.peer] + 1 - SLOTS);
    return is_due(load_flag(&own->posted), counts.received[parcel.peer] + 1);
}

// One slot of a message that is ready.
DEVICE void carry_parcel(const Parcels& call, const Parcel& parcel, u64 from, u64 bytes,
                         Counts& counts) {
    const Group& g = call.group;
    u64 slot = slot_of(call.inbox, call.lanes, g, parcel.peer, parcel.sends, counts);
    if (parcel.sends) {
        copy(slot, parcel.at + from, bytes);
    } else {
        copy(parcel.at + from, slot, bytes);
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    u32 peer = parcel.peer, signature = parcel.signature;
    if (parcel.sends) {
        post_slot(g, call.inbox, call.lanes, counts, peer, signature, bytes, parcel.bytes);
    } else if (!take_slot(g, call.inbox, call.lanes, counts, peer, signature, bytes,
                          parcel.bytes)) {
        counts.stop = 1;
    }
}

KERNEL parcels(Parcels call) {
    __shared__ Counts counts;
    __shared__ u32 done[2 * RANKS];
    __shared__ u32 ready;
    // Not `counts.stop`, which others may be looking at when the first thread waits in vain.
    __shared__ u32 gives_up;
    const Group& g = call.group;
    for (u32 at = threadIdx.x; at < call.count; at += blockDim.x) done[at] = 0;
    if (threadIdx.x == 0) gives_up = 0;
    load_counts(g, call.inbox, call.lanes, counts);
    Wait wait = begin_wait();
    Place place = {DRAIN, 0, call.call, 0, 0};
    for (bool is_open = true; is_open;) {
        bool moved = false;
        is_open = false;
        for (u32 at = 0; at < call.count; at++) {
            const Parcel& parcel = call.parcel[at];
            Portion portion = portion_of(parcel);
            if (done[at] == portion.slots) continue;
            is_open = true;
            if (threadIdx.x == 0) {
                ready = is_ready(call, parcel, counts);
                place.phase = parcel.sends ? DRAIN : PART;
                place.peer = parcel.peer;
                place.step = at;
                place.signature = parcel.signature;
                place.turn = counts.moved;
            }
            __syncthreads();
            if (ready) {
                u64 from = portion.begin + (u64)done[at] * SLOT_BYTES;
                u64 rest = portion.end - from;
                carry_parcel(call, parcel, from, rest < SLOT_BYTES ? rest : SLOT_BYTES, counts);
                moved = true;
                if (threadIdx.x == 0) done[at]++;
            }
            __syncthreads();
            if (counts.stop) return;
        }
        if (threadIdx.x == 0 && is_open) {
            if (moved) {
                end_wait(g, wait);
                wait = begin_wait();
            } else if (!go_on(g, wait, place)) {
                gives_up = 1;
            }
        }
        __syncthreads();
        if (gives_up) return;
    }
    if (threadIdx.x == 0) end_wait(g, wait);
    store_counts(g, call.inbox, call.lanes, counts, place);
}

static_assert(sizeof(Parcels) == 2592, "the host has the same layout");
#endif
