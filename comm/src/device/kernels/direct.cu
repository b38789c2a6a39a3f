// Ranks read and write one another's buffers where they lie: every byte is moved once.
//
// Block b of every rank greets block b of the others with its addresses, does its share of the
// steps, and leaves when all others have. A rank's kernel has begun, so its input is there; a
// rank's kernel has ended, so nobody uses its buffers any more. When addresses are given by the
// host, ranks have met there, and nothing here waits.

enum { PULL = 0, PUSH = 1, FOLD_TO = 2, FOLD_ALL = 3 };

struct Step {
    u32 kind;
    u32 peer;
    u64 source;
    u64 target;
    u64 bytes;
};

// What is known of the ranks: they have met, or all of them are on one device.
enum { MET = 1, HERE = 2 };

struct Direct {
    Group group;
    u32 how;
    u32 signature;
    u32 op;
    u32 steps;
    double factor;
    // For each rank: what it is told of this rank's buffers; when met, what it told.
    u64 in[RANKS];
    u64 out[RANKS];
    Step step[RANKS];
};

// Fold one vector of every rank, in their order; `AHEAD` loads are on their way at a time. None of
// them has a condition, or the compiler waits for some before it asks for the rest: behind the last
// rank there is that one again, which its neighbour brings.
template <class F, int AHEAD>
DEVICE Vector fold_ranks(const u64* in, u64 at, const Scale& scale) {
    typename F::Held held[LANES];
    Lanes flying[AHEAD];
    for (u32 base = 0; base < scale.ranks; base += AHEAD) {
        UNROLL for (int k = 0; k < AHEAD; k++) {
            u32 rank = base + k < scale.ranks ? base + k : scale.ranks - 1;
            flying[k].vector = load_vector(in[rank] + at);
        }
        UNROLL for (int k = 0; k < AHEAD; k++) {
            if (base + k >= scale.ranks) continue;
            UNROLL for (int lane = 0; lane < LANES; lane++) {
                Stored stored = flying[k].lane[lane];
                bool is_first = k == 0 && base == 0;
                held[lane] = is_first ? F::first(stored, scale)
                                      : F::more(held[lane], stored, scale);
            }
        }
    }
    Lanes result;
    UNROLL for (int lane = 0; lane < LANES; lane++) {
        result.lane[lane] = F::last(held[lane], scale);
    }
    return result.vector;
}

// Where every rank's vectors are read, and whose are written.
struct Places {
    const u64* in;
    const u64* out;
    u64 from;
    u64 into;
    u32 to_first;
    u32 to_last;
};

// Vectors of a few ranks: of each rank, `AHEAD` are on their way at a time. What is left over.
template <class F, int FEW, int AHEAD>
DEVICE u64 fold_few(const Places& places, u64 vectors, const Scale& scale) {
    u64 lanes = blockDim.x, first = threadIdx.x;
    // Here they stay in registers, whatever is stored meanwhile.
    u64 source[FEW], target[FEW];
    UNROLL for (int rank = 0; rank < FEW; rank++) {
        source[rank] = places.in[rank] + places.from;
        target[rank] = places.out[rank] + places.into;
    }
    for (; first + (AHEAD - 1) * lanes < vectors; first += AHEAD * lanes) {
        Vector flying[AHEAD][FEW];
        UNROLL for (int k = 0; k < AHEAD; k++) {
            UNROLL for (int rank = 0; rank < FEW; rank++) {
                flying[k][rank] = load_vector(source[rank] + 16 * (first + k * lanes));
            }
        }
        UNROLL for (int k = 0; k < AHEAD; k++) {
            Vector result = fold_vector<F, FEW>(flying[k], scale);
            UNROLL for (u32 to = 0; to < FEW; to++) {
                if (to < places.to_first || to >= places.to_last) continue;
                store_vector(target[to] + 16 * (first + k * lanes), result);
            }
        }
    }
    return first;
}

// As many vectors as `fold_few` takes, where it has the number of ranks; the first that is left.
template <class F>
DEVICE u64 fold_many(const Places& places, u64 vectors, const Scale& scale) {
    // Lanes of one byte are too many to have so many vectors of them on their way.
    switch (sizeof(Stored) > 1 ? scale.ranks : 0) {
        case 2: return fold_few<F, 2, 4>(places, vectors, scale);
        case 3: return fold_few<F, 3, 2>(places, vectors, scale);
        case 4: return fold_few<F, 4, 2>(places, vectors, scale);
        case 8: return fold_few<F, 8, 1>(places, vectors, scale);
    }
    return threadIdx.x;
}

// What does not lie as vectors do: elements from `first` on, `AHEAD` of each rank's on their way in
// each thread; the first that is left.
template <class F, int AHEAD>
DEVICE u64 fold_elements(const Places& places, u64 first, u64 count, const Scale& scale) {
    u64 lanes = blockDim.x;
    for (; first + (AHEAD - 1) * lanes < count; first += AHEAD * lanes) {
        typename F::Held held[AHEAD];
        ONE_BY_ONE for (u32 rank = 0; rank < scale.ranks; rank++) {
            const Stored* from = (const Stored*)(places.in[rank] + places.from) + first;
            Stored flying[AHEAD];
            UNROLL for (int k = 0; k < AHEAD; k++) flying[k] = from[k * lanes];
            UNROLL for (int k = 0; k < AHEAD; k++) {
                held[k] = rank == 0 ? F::first(flying[k], scale)
                                    : F::more(held[k], flying[k], scale);
            }
        }
        Stored result[AHEAD];
        UNROLL for (int k = 0; k < AHEAD; k++) result[k] = F::last(held[k], scale);
        ONE_BY_ONE for (u32 to = places.to_first; to < places.to_last; to++) {
            Stored* into = (Stored*)(places.out[to] + places.into) + first;
            UNROLL for (int k = 0; k < AHEAD; k++) into[k * lanes] = result[k];
        }
    }
    return first;
}

template <class F>
DEVICE void fold_step(const u64* in, const u64* out, u32 to_first, u32 to_last, const Step& step,
                      const Scale& scale) {
    u64 begin, end;
    share_of_block(step.bytes, begin, end);
    u64 from = step.source + begin, into = step.target + begin, done = 0;
    Places places = {in, out, from, into, to_first, to_last};
    u64 bits = 0;
    for (u32 rank = 0; rank < scale.ranks; rank++) bits |= in[rank] + from;
    for (u32 to = to_first; to < to_last; to++) bits |= out[to] + into;
    if ((bits & 15) == 0) {
        u64 vectors = (end - begin) / 16;
        u64 first = fold_many<F>(places, vectors, scale);
        for (; first < vectors; first += blockDim.x) {
            Vector result = fold_ranks<F, WIDTH>(in, from + 16 * first, scale);
            for (u32 to = to_first; to < to_last; to++) {
                store_vector(out[to] + into + 16 * first, result);
            }
        }
        done = vectors * 16 / sizeof(Stored);
    }
    u64 count = (end - begin) / sizeof(Stored);
    u64 first = fold_elements<F, 8>(places, done + threadIdx.x, count, scale);
    fold_elements<F, 1>(places, first, count, scale);
}

// Tell a rank that all that this block has written is there.
DEVICE void tell(const Direct& call, u32* at, u32 sequence) {
    if (call.how & HERE) {
        store_flag_here(at, sequence);
    } else {
        store_flag(at, sequence);
    }
}

// Tell every rank our addresses for it, and hear theirs for us; false for a thread that hears in
// vain.
DEVICE bool greet(const Direct& call, u32 sequence, u64* in, u64* out) {
    const Group& g = call.group;
    bool good = true;
    for (u32 peer = threadIdx.x; peer < g.ranks; peer += blockDim.x) {
        Greeting* there = &g.board[peer]->greetings[blockIdx.x][g.rank];
        there->in = call.in[peer];
        there->out = call.out[peer];
        there->signature = call.signature;
        tell(call, &there->flag, sequence);
    }
    for (u32 peer = threadIdx.x; peer < g.ranks; peer += blockDim.x) {
        const Greeting* here = &g.board[g.rank]->greetings[blockIdx.x][peer];
        Place place = {GREET, peer, sequence, 0, call.signature};
        if (!await_flag(g, &here->flag, sequence, place)) {
            good = false;
        } else if (here->signature != call.signature) {
            fault(g, FAULT_MISMATCH, peer, call.signature, here->signature, sequence);
            good = false;
        } else {
            in[peer] = here->in;
            out[peer] = here->out;
        }
    }
    return good;
}

DEVICE void leave(const Direct& call, u32 sequence) {
    const Group& g = call.group;
    for (u32 peer = threadIdx.x; peer < g.ranks; peer += blockDim.x) {
        tell(call, &g.board[peer]->left[blockIdx.x][g.rank], sequence);
    }
    for (u32 peer = threadIdx.x; peer < g.ranks; peer += blockDim.x) {
        Place place = {LEAVE, peer, sequence, call.steps, call.signature};
        await_flag(g, &g.board[g.rank]->left[blockIdx.x][peer], sequence, place);
    }
}

DEVICE void carry_out(const Direct& call, const Step& step, const u64* in, const u64* out) {
    const Group& g = call.group;
    Scale scale = {call.factor, g.ranks};
    u64 begin, end;
    share_of_block(step.bytes, begin, end);
    u32 to_first = step.peer, to_last = step.peer + 1;
    switch (step.kind) {
        case PULL:
            copy(out[g.rank] + step.target + begin, in[step.peer] + step.source + begin,
                 end - begin);
            return;
        case PUSH:
            copy(out[step.peer] + step.target + begin, in[g.rank] + step.source + begin,
                 end - begin);
            return;
        case FOLD_ALL:
            to_first = 0;
            to_last = g.ranks;
            break;
    }
    (void)scale, (void)to_first, (void)to_last;
    WITH_OPERATOR(call.op, fold_step, in, out, to_first, to_last, step, scale)
}

KERNEL direct(Direct call) {
    __shared__ u64 in[RANKS];
    __shared__ u64 out[RANKS];
    const Group& g = call.group;
    u32 sequence = 0;
    bool good = true;
    if (call.how & MET) {
        for (u32 peer = threadIdx.x; peer < g.ranks; peer += blockDim.x) {
            in[peer] = call.in[peer];
            out[peer] = call.out[peer];
        }
    } else {
        sequence = g.board[g.rank]->sequence[blockIdx.x] + 1;
        good = greet(call, sequence, in, out);
    }
    if (__syncthreads_or(!good)) return;
    for (u32 step = 0; step < call.steps; step++) carry_out(call, call.step[step], in, out);
    if (call.how & MET) return;
    __syncthreads();
    leave(call, sequence);
    if (threadIdx.x == 0) g.board[g.rank]->sequence[blockIdx.x] = sequence;
}

static_assert(sizeof(Direct) == 1832, "the host has the same layout");
