// Messages from one rank to another: a communicator of the two, made when the first message is
// sent, and a thread that sends or receives. So messages wait neither for collectives nor for those
// of other peers, nor for those that go the other way.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "inbox.hpp"
#include "lane.hpp"
#include "watchdog.hpp"
#include "world.hpp"

namespace brigade {

// Where and how two ranks meet.
struct Meeting {
    // The group's: looking for a key there keeps nobody from it for long.
    OwnStore *store;
    std::string key;
    // The group's own, which hears of deaths.
    brigade_comm_t world;
    std::string who;
    int rank, size;
    Millis timeout;
};

class Channel {
public:
    using Work = c10::intrusive_ptr<Operation>;

    Channel(Meeting meeting, int peer, bool sends)
        : meeting_(std::move(meeting)), peer_(peer), sends_(sends), inbox_(meeting_.timeout) {}
    ~Channel() { close(); }

    void send(Work work, Run run, int tag) {
        lane_.post([this, work = std::move(work), run = std::move(run), tag] {
            const auto body = [&] {
                meet();
                const Element element = moved(run.type());
                const Header header = {tag, run.bytes(), static_cast<uint32_t>(element.dtype),
                                       static_cast<uint32_t>(element.per_element)};
                check_call(brigade_send(&header, sizeof header, BRIGADE_UINT8, 1, comm_, nullptr));
                check_call(
                    brigade_send(run.data(), run.bytes(), BRIGADE_UINT8, 1, comm_, nullptr));
            };
            work->carry_out(body);
        });
    }

    // Receive it, unless another channel does first.
    void receive(std::shared_ptr<Posted> posted) {
        // What has come already waits for nothing else, which the lane may.
        for (const auto &delivery : inbox_.post(std::move(posted))) hand_over(delivery);
        lane_.post([this] { serve(); });
    }

    // Wait until nothing is on its way; false if that is not so at the deadline. Whoever does no
    // more than listen is waited for until `patience` only.
    bool drain(Pool::Clock::time_point patience, Pool::Clock::time_point deadline) {
        auto until = sends_ ? deadline : patience;
        while (!lane_.drain(until)) {
            if (is_listening_ || until >= deadline) return false;
            until = std::min(deadline, Pool::Clock::now() + Millis(50));
        }
        return true;
    }

    // Make everything that waits fail.
    void abort(const char *reason) {
        const std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
        if (comm_ != nullptr) brigade_comm_abort(comm_, reason);
    }

    // Do what is queued, and no more.
    void stop() { lane_.close(); }

    void close() {
        stop();
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
    // Fail with a sentence about the peer.
    template <typename... What>
    [[noreturn]] void fail(const What &...what) const {
        TORCH_CHECK_WITH(DistBackendError, false, "brigade, ", meeting_.who, ": a message ",
                         sends_ ? "to" : "from", " rank ", peer_, ": ", what...);
    }

    // Within brigade.h the sender is rank 0 and the receiver rank 1, whoever they are in the group:
    // what it says of ranks is not for those who know the group's.
    void check_call(brigade_result_t result) const {
        Ending::stay();
        if (result == BRIGADE_ABORTED && is_late_) result = BRIGADE_TIMEOUT;
        switch (result) {
            case BRIGADE_SUCCESS: return;
            case BRIGADE_PEER_LOST: fail("rank ", peer_, " ", in_words(result));
            case BRIGADE_PEER_LEFT: fail("rank ", peer_, " has left: did its group end early?");
            case BRIGADE_TIMEOUT:
                fail("rank ", peer_, sends_ ? " took" : " sent", " nothing within ",
                     meeting_.timeout.count(), " ms: does it make the matching call?");
            default:
                fail(brigade_last_error(), " (said of these two alone: its rank 0 is rank ",
                     sends_ ? meeting_.rank : peer_, ", who sends, its rank 1 is rank ",
                     sends_ ? peer_ : meeting_.rank, ", who receives)");
        }
    }

    // Fail if the peer will not come any more.
    void check_world() const {
        check_call(fate_of(meeting_.world, peer_));
        const auto end = end_of_world(meeting_.world, meeting_.size);
        if (!end.empty()) fail("the group has ended: ", end);
    }

    // Wait for a key; false if there is no need for it any more.
    bool await(c10d::Store &store, const std::string &key) {
        const auto deadline = Pool::Clock::now() + meeting_.timeout;
        auto pause = std::chrono::microseconds(100);
        while (!store.check({key})) {
            if (!sends_ && !is_awaited()) return false;
            if (stop_) fail("the group ended before the two met");
            if (sends_ && Pool::Clock::now() >= deadline) check_call(BRIGADE_TIMEOUT);
            check_world();
            std::this_thread::sleep_for(pause);
            pause = std::min(2 * pause, std::chrono::microseconds(5000));
        }
        return true;
    }

    bool meet() {
        if (comm_ != nullptr) return true;
        // The store may have gone with the peer, and does not know that.
        check_world();
        return at_store(meeting_.who, [&] { return meet_at(meeting_.store->get()); });
    }

    // The receiver says that it is there, then the sender draws an id: nobody waits within
    // brigade.h for a rank that may never come. Nor does a receiver there for a sender that is
    // silent, perhaps because others send meanwhile: how long that may be the inbox knows.
    bool meet_at(c10d::Store &store) {
        const std::string ready = meeting_.key + "/ready", id = meeting_.key + "/id";
        std::vector<uint8_t> bytes;
        if (sends_) {
            await(store, ready);
            bytes = draw_id(meeting_.who);
            store.set(id, bytes);
        } else {
            store.set(ready, std::vector<uint8_t>{1});
            is_listening_ = true;
            const bool has_come = await(store, id);
            is_listening_ = false;
            if (!has_come) return false;
            bytes = store.get(id);
        }
        brigade_comm_t comm = nullptr;
        const Millis stand = sends_ ? meeting_.timeout : std::chrono::years(1);
        check_call(join(bytes, sends_ ? 0 : 1, 2, Limits(meeting_.timeout, stand), comm));
        const std::lock_guard<std::mutex> lock(mutex_);
        comm_ = comm;
        if (stop_) brigade_comm_abort(comm_, "the group has ended");
        return true;
    }

    // Receive until nothing is waited for any more.
    void serve() {
        try {
            while (is_awaited()) {
                if (!meet() || deliver_kept()) continue;
                is_listening_ = true;
                const bool has_come = next_header();
                is_listening_ = false;
                if (!has_come) continue;
                has_header_ = false;
                if (const auto posted = inbox_.claim(header_.tag)) {
                    finish(*posted);
                } else {
                    inbox_.keep(header_, fetch(header_.bytes));
                }
            }
        } catch (...) {
            for (const auto &posted : inbox_.close()) posted->give_up(std::current_exception());
        }
    }

    bool is_awaited() {
        for (const auto &posted : inbox_.late()) {
            try {
                check_call(BRIGADE_TIMEOUT);
            } catch (...) {
                posted->give_up(std::current_exception());
            }
        }
        return inbox_.is_awaited();
    }

    // Whether the next header has come. Where another channel may bring what is waited for it is
    // looked for a moment only. One that has not come is still waited for: nothing is lost.
    bool next_header() {
        if (has_header_) return true;
        if (stop_) fail("the group ended before it came");
        const Millis patience = inbox_.patience();
        if (coming_ == nullptr && !inbox_.is_shared()) {
            receive_bytes(&header_, sizeof header_, patience);
            return has_header_ = true;
        }
        if (coming_ == nullptr) {
            check_call(brigade_recv(&header_, sizeof header_, BRIGADE_UINT8, 0, comm_, &coming_));
        }
        const Millis moment = std::min(patience, Millis(5));
        const auto result = brigade_work_wait(coming_, std::max<int64_t>(moment.count(), 0));
        if (result == BRIGADE_IN_PROGRESS) return false;
        brigade_work_free(std::exchange(coming_, nullptr));
        check_call(result);
        return has_header_ = true;
    }

    void receive_bytes(void *data, size_t bytes, Millis limit) {
        const Watchdog::Watch watch(comm_, limit);
        const auto result = brigade_recv(data, bytes, BRIGADE_UINT8, 0, comm_, nullptr);
        is_late_ |= watch.has_ended_it();
        check_call(result);
    }

    // The rest of a message that has begun to come: a second for every megabyte is enough anywhere.
    void receive_rest(void *data, size_t bytes) {
        receive_bytes(data, bytes, meeting_.timeout + Millis(bytes / 1000));
    }

    Inbox::Bytes fetch(size_t size) {
        Inbox::Bytes bytes(size);
        receive_rest(bytes.data(), size);
        return bytes;
    }

    void finish(const Posted &posted) {
        posted.work->came_from(peer_);
        const auto body = [&] {
            if (fits(header_, posted.run)) {
                receive_rest(posted.run.data(), header_.bytes);
                return posted.run.bring_back();
            }
            fetch(header_.bytes);
            fail_to_fit(header_, posted.run);
        };
        posted.work->carry_out(body);
    }

    // Whether a message that had come earlier was one of those that are waited for now.
    bool deliver_kept() {
        const auto delivery = inbox_.claim_kept();
        if (delivery) hand_over(*delivery);
        return delivery.has_value();
    }

    void hand_over(const Inbox::Delivery &delivery) const {
        const auto &posted = *delivery.first;
        const auto &[header, bytes] = delivery.second;
        posted.work->came_from(peer_);
        const auto body = [&, &header = header, &bytes = bytes] {
            if (!fits(header, posted.run)) fail_to_fit(header, posted.run);
            if (!bytes.empty()) std::memcpy(posted.run.data(), bytes.data(), bytes.size());
            posted.run.bring_back();
        };
        posted.work->carry_out(body);
    }

    static bool has_type_of(const Header &header, const Run &run) {
        const Element element = moved(run.type());
        return header.dtype == static_cast<uint32_t>(element.dtype) &&
               header.per_element == element.per_element;
    }

    static bool fits(const Header &header, const Run &run) {
        return header.bytes == run.bytes() && has_type_of(header, run);
    }

    [[noreturn]] void fail_to_fit(const Header &header, const Run &run) const {
        if (has_type_of(header, run)) {
            fail("one of ", header.bytes, " bytes came for a tensor of ", run.bytes());
        }
        const Element element = {static_cast<brigade_dtype_t>(header.dtype), header.per_element};
        fail("one of ", name_of(element), " came for a tensor of ", run.type());
    }

    const Meeting meeting_;
    const int peer_;
    const bool sends_;
    std::atomic<bool> stop_{false};
    std::mutex mutex_;
    brigade_comm_t comm_ = nullptr;
    // What the watchdog has ended, because it took too long.
    bool is_late_ = false;
    Inbox inbox_;
    // Whether it waits for the sender to begin.
    std::atomic<bool> is_listening_{false};
    // The header at hand, and one on its way to there.
    Header header_;
    bool has_header_ = false;
    brigade_work_t coming_ = nullptr;
    Lane lane_;
};

}  // namespace brigade
