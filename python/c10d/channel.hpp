// Messages from one rank to another: a communicator of the two, made when the first message is
// sent, and a thread that sends or receives. So messages wait neither for collectives nor for those
// of other peers, nor for those that go the other way.
#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "lane.hpp"
#include "operation.hpp"
#include "tensors.hpp"
#include "world.hpp"

namespace brigade {

// Where and how two ranks meet.
struct Meeting {
    c10::intrusive_ptr<c10d::Store> store;
    std::string key;
    // The group's own, which hears of deaths.
    brigade_comm_t world;
    int rank, size;
    Millis timeout;
};

// A message that any of several channels may bring: the first one that has it takes it.
struct Anybody {
    Anybody(c10::intrusive_ptr<Operation> work, Run run, int tag, int channels)
        : work(std::move(work)), run(std::move(run)), tag(tag), looking(channels) {}

    // Whether nobody else has it.
    bool take() { return !taken.exchange(true); }

    const c10::intrusive_ptr<Operation> work;
    const Run run;
    const int tag;
    std::atomic<bool> taken{false};
    // Channels that may still bring it.
    std::atomic<int> looking;
};

class Channel {
public:
    using Work = c10::intrusive_ptr<Operation>;

    Channel(Meeting meeting, int peer, bool sends)
        : meeting_(std::move(meeting)), peer_(peer), sends_(sends) {}
    ~Channel() { close(); }

    void send(Work work, Run run, int tag) {
        lane_.post([this, work = std::move(work), run = std::move(run), tag] {
            const auto body = [&] {
                meet();
                const Header header = {tag, run.bytes()};
                check_call(brigade_send(&header, sizeof header, BRIGADE_UINT8, 1, comm_, nullptr));
                check_call(
                    brigade_send(run.data(), run.bytes(), BRIGADE_UINT8, 1, comm_, nullptr));
            };
            work->carry_out(body);
        });
    }

    void receive(Work work, Run run, int tag) {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            posted_.push_back({std::move(work), std::move(run), tag});
        }
        lane_.post([this] { take_one(); });
    }

    // Receive it, unless another channel does first.
    void receive_any(std::shared_ptr<Anybody> any) {
        lane_.post([this, any = std::move(any)] {
            try {
                look_for(*any);
            } catch (...) {
                // Others may still bring it.
                if (--any->looking == 0 && any->take()) any->work->settle(std::current_exception());
            }
        });
    }

    bool drain(Pool::Clock::time_point deadline) { return lane_.drain(deadline); }

    // Make everything that waits fail.
    void abort(const char *reason) {
        const std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
        if (comm_ != nullptr) brigade_comm_abort(comm_, reason);
    }

    void close() {
        lane_.close();
        const std::lock_guard<std::mutex> lock(mutex_);
        if (coming_ != nullptr) {
            // Nobody waits for it any more.
            brigade_comm_abort(comm_, "the group has ended");
            brigade_work_wait(coming_, -1);
            brigade_work_free(std::exchange(coming_, nullptr));
        }
        if (comm_ != nullptr) brigade_comm_destroy(std::exchange(comm_, nullptr));
    }

private:
    // What goes in front of every message.
    struct Header {
        int64_t tag;
        uint64_t bytes;
    };
    struct Posted {
        Work work;
        Run run;
        int tag;
    };

    // Fail with a sentence about the peer.
    template <typename... What>
    [[noreturn]] void fail(const What &...what) const {
        TORCH_CHECK_WITH(DistBackendError, false, "brigade, rank ", meeting_.rank, ": a message ",
                         sends_ ? "to" : "from", " rank ", peer_, ": ", what...);
    }

    // Within brigade.h the sender is rank 0 and the receiver rank 1, whoever they are in the group:
    // what it says of ranks is not for those who know the group's.
    void check_call(brigade_result_t result) const {
        switch (result) {
            case BRIGADE_SUCCESS: return;
            case BRIGADE_PEER_LOST: fail("rank ", peer_, " ", in_words(result));
            case BRIGADE_PEER_LEFT: fail("rank ", peer_, " has left: did its group end early?");
            case BRIGADE_TIMEOUT:
                fail("rank ", peer_, sends_ ? " took" : " sent", " nothing within ",
                     meeting_.timeout.count(), " ms: does it make the matching call?");
            default: fail_between(brigade_last_error());
        }
    }

    [[noreturn]] void fail_between(const char *sentence) const {
        fail("(of these two, the sender is rank 0 and the receiver rank 1) ", sentence);
    }

    // Fail if the peer will not come any more.
    void check_world() const {
        check_call(fate_of(meeting_.world, peer_));
        const auto end = end_of_world(meeting_.world, meeting_.size);
        if (!end.empty()) fail("the group has ended: ", end);
    }

    // Wait for a key; false if there is no need for it any more.
    bool await(c10d::Store &store, const std::string &key,
               const std::atomic<bool> *needless = nullptr) const {
        const auto deadline = Pool::Clock::now() + meeting_.timeout;
        auto pause = std::chrono::microseconds(100);
        while (!store.check({key})) {
            if (needless != nullptr && *needless) return false;
            if (stop_) fail("the group ended before the two met");
            if (Pool::Clock::now() >= deadline) check_call(BRIGADE_TIMEOUT);
            check_world();
            std::this_thread::sleep_for(pause);
            pause = std::min(2 * pause, std::chrono::microseconds(5000));
        }
        return true;
    }

    bool meet(const std::atomic<bool> *needless = nullptr) {
        if (comm_ != nullptr) return true;
        // The store may have gone with the peer, and does not know that.
        check_world();
        return at_store(meeting_.rank, [&] {
            // Waiting on a store that others use would make them wait too.
            return meet_at(*meeting_.store->clone(), needless);
        });
    }

    // The receiver says that it is there, then the sender draws an id: nobody waits within
    // brigade.h for a rank that may never come.
    bool meet_at(c10d::Store &store, const std::atomic<bool> *needless) {
        const std::string ready = meeting_.key + "/ready", id = meeting_.key + "/id";
        std::vector<uint8_t> bytes;
        if (sends_) {
            await(store, ready);
            bytes = draw_id(meeting_.rank);
            store.set(id, bytes);
        } else {
            store.set(ready, std::vector<uint8_t>{1});
            if (!await(store, id, needless)) return false;
            bytes = store.get(id);
        }
        brigade_comm_t comm = nullptr;
        try {
            comm = join(bytes, sends_ ? 0 : 1, 2, meeting_.timeout);
        } catch (const c10::DistBackendError &error) {
            fail_between(error.what_without_backtrace());
        }
        const std::lock_guard<std::mutex> lock(mutex_);
        comm_ = comm;
        if (stop_) brigade_comm_abort(comm_, "the group has ended");
        return true;
    }

    void receive_bytes(void *data, size_t bytes) const {
        check_call(brigade_recv(data, bytes, BRIGADE_UINT8, 0, comm_, nullptr));
    }

    // Receive until one of the posted messages is there. As often as it is called, messages have
    // been posted.
    void take_one() {
        try {
            meet();
            while (!deliver_kept()) {
                // With an earlier job that failed, all that was posted did.
                if (!is_awaited()) return;
                next_header(-1);
                const Header header = take_header();
                if (auto posted = find(header.tag)) return finish(*posted, header);
                keep(header);
            }
        } catch (...) {
            std::list<Posted> posted;
            {
                const std::lock_guard<std::mutex> lock(mutex_);
                posted.swap(posted_);
            }
            for (auto &one : posted) one.work->settle(std::current_exception());
        }
    }

    // As take_one, of a message that another channel may bring first.
    void look_for(Anybody &any) {
        if (!meet(&any.taken)) return;
        while (!any.taken) {
            if (const auto kept = kept_.find(any.tag); kept != kept_.end()) {
                if (!any.take()) return;
                any.work->came_from(peer_);
                return deliver(any, take_kept(kept));
            }
            if (stop_) fail("the group ended before it came");
            if (!next_header(5)) continue;
            if (header_.tag == any.tag) {
                if (!any.take()) return;
                any.work->came_from(peer_);
                return finish(any, take_header());
            }
            const Header header = take_header();
            if (auto posted = find(header.tag)) {
                finish(*posted, header);
            } else {
                keep(header);
            }
        }
    }

    // Whether the next header has come within so long, or at all if that is negative. One that has
    // not is still waited for: nothing is lost.
    bool next_header(int64_t timeout_ms) {
        if (has_header_) return true;
        if (coming_ == nullptr && timeout_ms < 0) {
            receive_bytes(&header_, sizeof header_);
            return has_header_ = true;
        }
        if (coming_ == nullptr) {
            check_call(brigade_recv(&header_, sizeof header_, BRIGADE_UINT8, 0, comm_, &coming_));
        }
        const brigade_result_t result = brigade_work_wait(coming_, timeout_ms);
        if (result == BRIGADE_IN_PROGRESS) return false;
        brigade_work_free(std::exchange(coming_, nullptr));
        check_call(result);
        return has_header_ = true;
    }

    Header take_header() {
        has_header_ = false;
        return header_;
    }

    // Somebody may want it later.
    void keep(const Header &header) {
        std::vector<uint8_t> bytes(header.bytes);
        receive_bytes(bytes.data(), bytes.size());
        const std::lock_guard<std::mutex> lock(mutex_);
        kept_[header.tag].push_back(std::move(bytes));
    }

    using Kept = std::map<int64_t, std::deque<std::vector<uint8_t>>>;

    std::vector<uint8_t> take_kept(Kept::iterator kept) {
        auto bytes = std::move(kept->second.front());
        kept->second.pop_front();
        if (kept->second.empty()) kept_.erase(kept);
        return bytes;
    }

    bool is_awaited() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return !posted_.empty();
    }

    std::unique_ptr<Posted> find(int64_t tag) {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (auto one = posted_.begin(); one != posted_.end(); ++one) {
            if (one->tag != tag) continue;
            auto found = std::make_unique<Posted>(std::move(*one));
            posted_.erase(one);
            return found;
        }
        return nullptr;
    }

    template <typename Wanted>
    void finish(const Wanted &posted, const Header &header) const {
        const auto body = [&] {
            if (header.bytes == posted.run.bytes()) {
                receive_bytes(posted.run.data(), header.bytes);
                return posted.run.bring_back();
            }
            std::vector<uint8_t> lost(header.bytes);
            receive_bytes(lost.data(), lost.size());
            check_size(posted, header.bytes);
        };
        posted.work->carry_out(body);
    }

    // Whether a message that had come earlier was one of those that are posted now.
    bool deliver_kept() {
        std::unique_ptr<Posted> posted;
        std::vector<uint8_t> bytes;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            for (auto one = posted_.begin(); one != posted_.end() && !posted; ++one) {
                const auto kept = kept_.find(one->tag);
                if (kept == kept_.end()) continue;
                bytes = take_kept(kept);
                posted = std::make_unique<Posted>(std::move(*one));
                posted_.erase(one);
                break;
            }
        }
        if (!posted) return false;
        deliver(*posted, bytes);
        return true;
    }

    template <typename Wanted>
    void deliver(const Wanted &posted, const std::vector<uint8_t> &bytes) const {
        const auto body = [&] {
            check_size(posted, bytes.size());
            if (!bytes.empty()) std::memcpy(posted.run.data(), bytes.data(), bytes.size());
            posted.run.bring_back();
        };
        posted.work->carry_out(body);
    }

    template <typename Wanted>
    void check_size(const Wanted &posted, uint64_t bytes) const {
        if (bytes == posted.run.bytes()) return;
        fail("one of ", bytes, " bytes came for a tensor of ", posted.run.bytes());
    }

    const Meeting meeting_;
    const int peer_;
    const bool sends_;
    std::atomic<bool> stop_{false};
    std::mutex mutex_;
    brigade_comm_t comm_ = nullptr;
    std::list<Posted> posted_;
    Kept kept_;
    // The header at hand, and one on its way to there.
    Header header_;
    bool has_header_ = false;
    brigade_work_t coming_ = nullptr;
    Lane lane_;
};

}  // namespace brigade
