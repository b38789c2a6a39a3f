// Messages between pairs: the sender leaves a letter with its address, the receiver takes the bytes
// from there and answers. Pairs count their letters, so other ranks need not take part. Compiled
// with the kernels that fold nothing.

#if !defined(ONLY) || ONLY == 255
struct Letter {
    u32 sends;
    u32 peer;
    u64 at;
    u64 bytes;
    u32 signature;
    u32 spare;
};

struct Messages {
    Group group;
    u32 count;
    // Which call of this rank's it is, for whoever must say where it stands.
    u32 call;
    // At most one to each rank and one from each.
    Letter letter[2 * RANKS];
};

DEVICE void post(const Messages& call, const Letter& letter) {
    const Group& g = call.group;
    Greeting* there = &g.board[letter.peer]->letters[g.rank];
    there->in = letter.at;
    there->bytes = letter.bytes;
    there->signature = letter.signature;
    store_flag(&there->flag, g.board[g.rank]->sent[letter.peer] + 1);
}

// False where the bytes do not come.
DEVICE bool take_letter(const Messages& call, const Letter& letter, u32 number, u32* stop) {
    const Group& g = call.group;
    Board* own = g.board[g.rank];
    u32 want = own->received[letter.peer] + 1;
    const Greeting* here = &own->letters[letter.peer];
    if (threadIdx.x == 0) {
        Place place = {LETTER, letter.peer, call.call, number, letter.signature};
        if (!await_flag(g, &here->flag, want, place)) {
            *stop = 1;
        } else if (here->signature != letter.signature || here->bytes != letter.bytes) {
            fault(g, FAULT_MISMATCH, letter.peer, letter.signature, here->signature, want);
            *stop = 1;
        }
    }
    __syncthreads();
    if (*stop) return false;
    u64 begin, end;
    share_of_block(letter.bytes, begin, end);
    copy(letter.at + begin, here->in + begin, end - begin);
    __syncthreads();
    // The last block of this rank answers.
    if (threadIdx.x == 0 && take_ticket(&own->tickets[letter.peer]) + 1 == gridDim.x) {
        own->tickets[letter.peer] = 0;
        own->received[letter.peer] = want;
        store_flag(&g.board[letter.peer]->taken[g.rank], want);
    }
    return true;
}

KERNEL messages(Messages call) {
    __shared__ u32 stop;
    const Group& g = call.group;
    Board* own = g.board[g.rank];
    if (threadIdx.x == 0) stop = 0;
    if (blockIdx.x == 0) {
        for (u32 at = threadIdx.x; at < call.count; at += blockDim.x) {
            if (call.letter[at].sends) post(call, call.letter[at]);
        }
    }
    __syncthreads();
    for (u32 at = 0; at < call.count; at++) {
        if (!call.letter[at].sends && !take_letter(call, call.letter[at], at, &stop)) return;
    }
    if (blockIdx.x != 0) return;
    for (u32 at = threadIdx.x; at < call.count; at += blockDim.x) {
        const Letter& letter = call.letter[at];
        if (!letter.sends) continue;
        u32 want = own->sent[letter.peer] + 1;
        Place place = {ANSWER, letter.peer, call.call, at, letter.signature};
        if (await_flag(g, &own->taken[letter.peer], want, place)) own->sent[letter.peer] = want;
    }
}

static_assert(sizeof(Messages) == 2328, "the host has the same layout");
#endif
