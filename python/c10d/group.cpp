// How groups begin and end, how calls are carried out, and messages. The collectives themselves are
// in collectives.cpp.
#include "group.hpp"

#include <Python.h>
#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>

#include "gathering.hpp"
#include "rollcall.hpp"

namespace brigade {
namespace {

// How long calls that go on at the end of a group may take.
constexpr auto GRACE = std::chrono::seconds(10);
// And receives for which nothing has come yet: nobody knows whether it ever will.
constexpr auto PATIENCE = std::chrono::seconds(1);

// The groups of this process that have not ended, and how many default groups it has had. One whose
// last reference goes meanwhile is still among them, but there is no way to another reference.
std::mutex groups_mutex;
int eras = 0;
auto &groups() {
    static auto *groups = new std::map<const Group *, c10::weak_intrusive_ptr<Group>>;
    return *groups;
}

// A group of this process in which all of these ranks of the default group are; the largest one.
Acquaintance acquaintance(const std::vector<int> &ranks) {
    Acquaintance found;
    size_t size = 0;
    const std::lock_guard<std::mutex> lock(groups_mutex);
    for (const auto &[group, reference] : groups()) {
        if (group->era() != eras) continue;
        const auto &theirs = group->ranks();
        std::vector<int> there;
        for (const int rank : ranks) {
            const auto at = std::find(theirs.begin(), theirs.end(), rank);
            if (at != theirs.end()) there.push_back(static_cast<int>(at - theirs.begin()));
        }
        if (there.size() == ranks.size() && theirs.size() > size) {
            size = theirs.size();
            found = {group->comm(), std::move(there)};
        }
    }
    return found;
}

// Come together with the others, of whom some `ranks` of the default group may be known.
Joined meet(c10d::Store &store, int rank, int size, Millis timeout, const std::vector<int> &ranks) {
    // Groups that come one after the other may have the same store.
    const auto known = ranks.empty() ? Acquaintance() : acquaintance(ranks);
    const auto who = who_is(rank, ranks);
    Joined joined = {};
    const std::vector<uint8_t> id = at_store(who, [&] {
        const int64_t turn = store.add("brigade/turn/" + std::to_string(rank), 1);
        joined.key = "brigade/" + std::to_string(turn);
        return Gathering(store, joined.key, who, rank, size, timeout, known).id();
    });
    check(join(id, rank, size, Limits(timeout, timeout), joined.comm), who);
    return joined;
}

// A key below `elder` that nobody else has: the first of them draws it.
std::string drawn_key(const std::string &elder, const std::string &who, brigade_comm_t comm) {
    std::random_device draw;
    uint64_t number = uint64_t{draw()} << 32 | draw();
    check(brigade_broadcast(&number, &number, 1, BRIGADE_UINT64, 0, comm, nullptr), who);
    char text[32];
    std::snprintf(text, sizeof text, "/left/%016llx", static_cast<unsigned long long>(number));
    return elder + text;
}

// Callbacks need the interpreter's lock; who waits for them must not hold it.
class Unlocked {
public:
    Unlocked() {
        if (Py_IsInitialized() && PyGILState_Check()) state_ = PyEval_SaveThread();
    }
    ~Unlocked() {
        if (state_ != nullptr) PyEval_RestoreThread(state_);
    }

private:
    PyThreadState *state_ = nullptr;
};

}  // namespace

Group::Group(Ptr<Store> store, int rank, int size, Millis timeout, std::vector<int> ranks,
             bool is_first)
    : Group(store, meet(*store, rank, size, timeout, is_first ? std::vector<int>() : ranks), rank,
            size, timeout, ranks, is_first) {}

Group::Group(Ptr<Store> store, Joined joined, int rank, int size, Millis timeout,
             std::vector<int> ranks, bool is_first)
    : Backend(rank, size),
      ranks_(std::move(ranks)),
      who_(who_is(rank, ranks_)),
      is_first_(is_first),
      store_(std::move(store)),
      own_store_(store_),
      options_(c10::make_intrusive<Options>("brigade", timeout)),
      timeout_(timeout),
      key_(std::move(joined.key)),
      comm_(joined.comm) {
    static std::once_flag once;
    std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { forks++; }); });
    init();
}

Group::~Group() { shutdown(); }

// Not while it is constructed: it has no references then.
void Group::note() {
    const auto self = Ptr<Group>::unsafe_reclaim_from_nonowning(this);
    const std::lock_guard<std::mutex> lock(groups_mutex);
    eras += is_first_;
    era_ = eras;
    groups().emplace(this, self);
}

std::vector<Group::Ptr<Group>> Group::all() {
    const std::lock_guard<std::mutex> lock(groups_mutex);
    std::vector<Ptr<Group>> all;
    for (const auto &[group, reference] : groups()) {
        if (auto held = reference.lock()) all.push_back(std::move(held));
    }
    return all;
}

bool Group::strike_off() {
    const std::lock_guard<std::mutex> lock(groups_mutex);
    return groups().erase(this) > 0;
}

// Calls that were begun have some time to end; then whatever still waits is made to fail.
void Group::shutdown() {
    if (!strike_off()) return;
    decltype(channels_) channels;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        has_ended_ = true;
        channels.swap(channels_);
    }
    if (born_ != forks.load()) {
        // The threads are the parent's.
        for (auto &channel : channels) channel.second.release();
        return;
    }
    const Unlocked unlocked;
    const auto begin = Pool::Clock::now(), deadline = begin + GRACE;
    if (!lane_.drain(deadline)) {
        brigade_comm_abort(comm_, "the group ended while calls went on");
    }
    for (auto &channel : channels) {
        if (channel.second->drain(begin + PATIENCE, deadline)) continue;
        channel.second->abort("the group ended while messages were awaited");
    }
    lane_.close();
    for (auto &channel : channels) channel.second->stop();
    Pool::the().drain(deadline);
    leave([comm = comm_, rest = std::make_shared<decltype(channels)>(std::move(channels))] {
        rest->clear();
        brigade_comm_destroy(comm);
    });
}

void Group::abort() {
    check_alive();
    fail("torch aborted the group");
}

void Group::fail(const char *why) {
    brigade_comm_abort(comm_, why);
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto &channel : channels_) channel.second->abort(why);
}

void Group::registerOnCompletionHook(Listener::Hook &&hook) {
    TORCH_CHECK_WITH(DistBackendError, !hasHooks(), "this group has a hook on completion already");
    const auto listener = std::make_shared<Listener>(std::move(hook));
    const std::lock_guard<std::mutex> lock(mutex_);
    listener_ = listener;
    // By which torch knows that there is one.
    onCompletionHook_ = [listener](Listener::Info info) { listener->tell(std::move(info)); };
}

void Group::waitForPendingWorks() {
    if (hasHooks()) listener_->wait();
}

c10d::ErrorType Group::getError() {
    brigade_result_t result = BRIGADE_SUCCESS;
    if (brigade_comm_get_async_error(comm_, &result) != BRIGADE_SUCCESS) {
        return c10d::ErrorType::COMM_ERROR;
    }
    switch (result) {
        case BRIGADE_SUCCESS: return c10d::ErrorType::SUCCESS;
        case BRIGADE_TIMEOUT: return c10d::ErrorType::TIMEOUT;
        case BRIGADE_PEER_LOST:
        case BRIGADE_PEER_LEFT: return c10d::ErrorType::REMOTE_ERROR;
        default: return c10d::ErrorType::COMM_ERROR;
    }
}

void Group::check_alive() const {
    TORCH_CHECK_WITH(DistBackendError, born_ == forks.load(),
                     "this group belongs to the process that forked this one");
    TORCH_CHECK_WITH(DistBackendError, !has_ended_, "this group has been shut down");
}

void Group::check_peer(int64_t peer) const {
    BRIGADE_CHECK_VALUE(peer >= 0 && peer < size_, "rank ", peer, " of a group of ", size_);
}

// How long a call may take. The communicator has one timeout for good: it can be cut short, and
// what would go beyond it is refused, for nobody would wait so long.
Millis Group::limit_of(Millis timeout) const {
    const Millis limit = timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
    if (limit <= Millis(0)) return timeout_;
    // As torch keeps a group's timeout.
    using Seconds = std::chrono::duration<float>;
    BRIGADE_CHECK_VALUE(Seconds(limit) <= Seconds(timeout_), "a timeout of ", limit.count(),
                        " ms, but calls of this group wait for ", timeout_.count(),
                        " ms at most, the timeout it was made with: give init_process_group or "
                        "new_group the longest one that is needed, and set shorter ones later");
    return limit;
}

bool Group::is_coalescing() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return batch_ != nullptr;
}

Group::Ptr<Operation> Group::operation(c10d::OpType type, Title title, Tensors outputs) {
    check_alive();
    auto operation =
        c10::make_intrusive<Operation>(rank_, type, title, std::move(outputs), ++sequence_);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (batch_) operation->join(batch_);
    if (listener_) operation->tells(listener_);
    return operation;
}

void Group::startCoalescing() {
    check_alive();
    auto whole = c10::make_intrusive<Operation>(rank_, c10d::OpType::COALESCED, nullptr, Tensors(),
                                                sequence_);
    std::shared_ptr<Batch> abandoned = std::make_shared<Batch>(std::move(whole));
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        batch_.swap(abandoned);
    }
    // torch does not end one in which a call was refused.
    if (abandoned) abandoned->close();
}

Group::Work Group::endCoalescing() {
    std::shared_ptr<Batch> batch;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        batch.swap(batch_);
    }
    BRIGADE_CHECK_VALUE(batch != nullptr, "no calls of this group are being coalesced");
    return batch->close();
}

Channel &Group::channel(int peer, bool sends) {
    check_peer(peer);
    BRIGADE_CHECK_VALUE(peer != rank_, "rank ", peer, " cannot ",
                        sends ? "send to" : "receive from", " itself");
    const std::lock_guard<std::mutex> lock(mutex_);
    auto &channel = channels_[{!sends, peer}];
    if (!channel) {
        const int from = sends ? rank_ : peer, to = sends ? peer : rank_;
        const auto key = key_ + "/" + std::to_string(from) + "-" + std::to_string(to);
        const Meeting meeting = {&own_store_, key, comm_, who_, rank_, size_, timeout_};
        channel = std::make_unique<Channel>(meeting, peer, sends);
    }
    return *channel;
}

Group::Work Group::send(Tensors &tensors, int peer, int tag) {
    const Call call(who_, "send");
    auto run = Run::input(tensors);
    Channel &to = channel(peer, true);
    auto work = operation(c10d::OpType::SEND, "brigade:send", tensors);
    to.send(work, std::move(run), tag);
    return work;
}

Group::Work Group::recv(Tensors &tensors, int peer, int tag) {
    const Call call(who_, "recv");
    auto run = Run::output(tensors);
    Channel &from = channel(peer, false);
    auto work = operation(c10d::OpType::RECV, "brigade:recv", tensors);
    from.receive(std::make_shared<Posted>(work, std::move(run), tag, 1));
    return work;
}

// Every channel looks for it.
Group::Work Group::recvAnysource(Tensors &tensors, int tag) {
    const Call call(who_, "recv");
    BRIGADE_CHECK_VALUE(size_ > 1, "there is no other rank to receive from");
    auto run = Run::output(tensors);
    auto work = operation(c10d::OpType::RECVANYSOURCE, "brigade:recv", tensors);
    auto posted = std::make_shared<Posted>(work, std::move(run), tag, size_ - 1);
    for (int peer = 0; peer < size_; peer++) {
        if (peer != rank_) channel(peer, false).receive(posted);
    }
    return work;
}

// It may wait for longer than calls do: it is none of the communicator's.
void Group::monitoredBarrier(const c10d::BarrierOptions &opts, bool wait_all) {
    check_alive();
    const bool is_given = opts.timeout != c10d::kUnsetTimeout;
    const Millis timeout = is_given ? opts.timeout : options_->timeout;
    const auto key = key_ + "/roll-call/" + std::to_string(++roll_calls_);
    at_store(who_, [&] {
        RollCall(own_store_.get(), key, who_, comm_, rank_, size_, timeout).hold(wait_all);
    });
}

Group::Ptr<c10d::Backend> Group::split(const Ptr<Store> &store, const std::vector<int> &ranks,
                                       const Ptr<Options> &opts) {
    check_alive();
    const Call call(who_, "split_group");
    const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
    if (mine == ranks.end()) return nullptr;
    const int rank = static_cast<int>(mine - ranks.begin());
    std::vector<int> theirs;
    for (size_t at = 0; at < ranks.size() && !ranks_.empty(); at++) {
        check_peer(ranks[at]);
        theirs.push_back(ranks_[ranks[at]]);
    }
    auto own = at_store(who_is(rank, theirs), [&] { return store->clone(); });
    return make(std::move(own), rank, static_cast<int>(ranks.size()), opts->timeout,
                std::move(theirs));
}

Group::Ptr<c10d::Backend> Group::merge(const Ptr<Store> &store, const Ptr<Options> &opts,
                                       const int &rank, const int &size) {
    auto own = at_store(who_, [&] { return store->clone(); });
    return make(std::move(own), rank, size, opts->timeout, std::vector<int>());
}

// Whatever has become of this group. Who is left meets over the wires of this one, not in the
// store. If it is the default one, torch numbers the ranks of groups by the new one from then on.
Group::Ptr<c10d::Backend> Group::shrink(const std::vector<int64_t> &excluded, int flags,
                                        const Ptr<Options> &opts) {
    constexpr int SHRINK_ABORT = 1;
    check_alive();
    const Call call(who_, "shrink_group");
    std::vector<int> gone, ranks;
    for (const int64_t rank : excluded) {
        check_peer(rank);
        gone.push_back(static_cast<int>(rank));
    }
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); rank++) {
        if (std::count(gone.begin(), gone.end(), rank) > 0) continue;
        ranks.push_back(is_first_ ? static_cast<int>(ranks.size()) : ranks_[rank]);
    }
    const Unlocked unlocked;
    if ((flags & SHRINK_ABORT) != 0) abort();
    const Millis timeout = opts ? opts->timeout : timeout_;
    Joined joined = {};
    const Limits limits(timeout, timeout);
    check(brigade_comm_shrink(comm_, gone.data(), gone.size(), &joined.comm, limits.config()),
          who_);
    int rank = 0, size = 0;
    try {
        check(brigade_comm_rank(joined.comm, &rank), who_);
        check(brigade_comm_size(joined.comm, &size), who_);
        joined.key = drawn_key(key_, who_, joined.comm);
    } catch (...) {
        brigade_comm_destroy(joined.comm);
        throw;
    }
    auto left = make(store_, std::move(joined), rank, size, timeout, std::move(ranks), is_first_);
    if (!opts) left->options_->timeout = options_->timeout;
    return left;
}

}  // namespace brigade
