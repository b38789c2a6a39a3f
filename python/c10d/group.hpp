// A process group of torch over a communicator of Brigade.
//
// Collectives of a group are carried out in their order: those that their caller waits for on its
// own thread, if nothing is in front of them, others on the group's lane. Messages have channels.
#pragma once

#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "channel.hpp"
#include "lane.hpp"
#include "listener.hpp"
#include "operation.hpp"
#include "tensors.hpp"
#include "watchdog.hpp"
#include "world.hpp"

namespace brigade {

class Group final : public c10d::Backend {
    template <typename T>
    using Ptr = c10::intrusive_ptr<T>;
    using Work = Ptr<c10d::Work>;
    using Tensors = std::vector<at::Tensor>;
    using TensorLists = std::vector<Tensors>;
    using Store = c10d::Store;

public:
    // One by a constructor, and those who end all groups find it.
    template <typename... Arguments>
    static Ptr<Group> make(Arguments &&...arguments) {
        auto group = c10::make_intrusive<Group>(std::forward<Arguments>(arguments)...);
        group->note();
        return group;
    }
    // Meet the others in the store. Returns when all have come, or one of them is known never to.
    // `ranks` are theirs in the default group, where they are known; that is the `first`.
    Group(Ptr<Store> store, int rank, int size, Millis timeout, std::vector<int> ranks,
          bool is_first = false);
    // Of ranks that have come together.
    Group(Ptr<Store> store, Joined joined, int rank, int size, Millis timeout,
          std::vector<int> ranks, bool is_first);
    ~Group() override;
    // When the last reference has gone, while who looks for groups may still look at it.
    void release_resources() override { shutdown(); }

    const std::vector<int> &ranks() const { return ranks_; }
    // Of groups with the same one ranks() are of the same default group.
    int era() const { return era_; }
    brigade_comm_t comm() const { return comm_; }

    // End all groups of this process: for its end, while threads may still run callbacks. Others
    // hear of it, and of a reason: at the exit as C has it, if the process `has_exit`.
    static void end_all(const std::string &why, bool has_exit);

    Work allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts) override;
    Work allreduce_coalesced(Tensors &tensors,
                             const c10d::AllreduceCoalescedOptions &opts) override;
    Work reduce(Tensors &tensors, const c10d::ReduceOptions &opts) override;
    Work broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts) override;
    Work allgather(TensorLists &outputs, Tensors &inputs,
                   const c10d::AllgatherOptions &opts) override;
    Work allgather_coalesced(TensorLists &outputs, Tensors &inputs,
                             const c10d::AllgatherOptions &opts) override;
    Work all_gather_single(at::Tensor &output, at::Tensor &input,
                           const c10d::AllgatherOptions &opts) override;
    Work all_gather_single_coalesced(Tensors &outputs, Tensors &inputs,
                                     const c10d::AllgatherOptions &opts) override;
    Work gather(TensorLists &outputs, Tensors &inputs, const c10d::GatherOptions &opts) override;
    Work gather_single(at::Tensor &output, at::Tensor &input,
                       const c10d::GatherOptions &opts) override;
    Work scatter(Tensors &outputs, TensorLists &inputs, const c10d::ScatterOptions &opts) override;
    Work reduce_scatter(Tensors &outputs, TensorLists &inputs,
                        const c10d::ReduceScatterOptions &opts) override;
    Work reduce_scatter_single(at::Tensor &output, at::Tensor &input,
                               const c10d::ReduceScatterOptions &opts) override;
    Work reduce_scatter_single_coalesced(Tensors &outputs, Tensors &inputs,
                                         const c10d::ReduceScatterOptions &opts) override;
    Work all_to_all_single(at::Tensor &output, at::Tensor &input,
                           std::vector<int64_t> &output_splits, std::vector<int64_t> &input_splits,
                           const c10d::AllToAllOptions &opts) override;
    Work alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &opts) override;
    Work barrier(const c10d::BarrierOptions &opts) override;
    void monitoredBarrier(const c10d::BarrierOptions &opts, bool wait_all) override;
    Work send(Tensors &tensors, int peer, int tag) override;
    Work recv(Tensors &tensors, int peer, int tag) override;
    Work recvAnysource(Tensors &tensors, int tag) override;

    // What torch keeps of calls that it coalesces is not per thread: those that another thread
    // makes meanwhile would only be noted. Who asks for it by device has it all the same.
    bool supportsCoalescing() const override { return false; }
    void startCoalescing() override;
    Work endCoalescing() override;

    bool supportsSplitting() const override { return true; }
    Ptr<Backend> split(const Ptr<Store> &store, const std::vector<int> &ranks,
                       const Ptr<Options> &opts) override;
    Ptr<Backend> merge(const Ptr<Store> &store, const Ptr<Options> &opts, const int &rank,
                       const int &size) override;

    bool supportsShrinking() const override { return true; }
    Ptr<Backend> shrink(const std::vector<int64_t> &excluded, int flags,
                        const Ptr<Options> &opts) override;

    const std::string getBackendName() const override { return "brigade"; }
    Ptr<Options> getBackendOptions() override { return options_; }
    uint64_t getSequenceNumberForGroup() override { return sequence_; }
    void setTimeout(Millis timeout) override {
        const Call call(who_, "set_timeout");
        options_->timeout = limit_of(timeout);
    }
    c10d::ErrorType getError() override;
    // To be told of every call that is made from then on, when it has ended.
    void registerOnCompletionHook(Listener::Hook &&hook) override;
    void waitForPendingWorks() override;
    void abort() override;
    // Make everything that waits fail, here and on the others, who hear why.
    void fail(const char *why);
    void shutdown() override;

private:
    using Title = const char *;
    using Counts = std::vector<size_t>;

    template <typename Body>
    Work submit(c10d::OpType type, Title title, bool is_async, Millis timeout,
                const Tensors &outputs, Body body);
    // Among the groups of this process, and all of these.
    void note();
    static std::vector<Ptr<Group>> all();
    static bool fail_at_exit(const std::string &why);
    // Leave the others: now, or at the exit if that has come.
    static void leave(std::function<void()> task);
    // Whether nobody else has: to be done once, by who ends it.
    bool strike_off();
    bool is_coalescing();
    Ptr<Operation> operation(c10d::OpType type, Title title, Tensors outputs);
    Channel &channel(int peer, bool sends);
    void check_alive() const;
    void check_peer(int64_t peer) const;
    Millis limit_of(Millis timeout) const;
    void all_reduce(const Run &run, const Op &op, Element element) const;
    void all_gather(const Run &input, const Run &output) const;
    void reduce_scatter(const Run &input, const Run &output, const Op &op, Element element) const;

    Work sum_sparse(const at::Tensor &tensor, const c10d::AllreduceOptions &opts);
    void add_up(const at::Tensor &mine, at::Tensor &sum) const;
    Work all_to_all(Run input, Run output, Counts sent, Counts received,
                    const c10d::AllToAllOptions &opts, Tensors outputs);

    const std::vector<int> ranks_;
    const std::string who_;
    const bool is_first_;
    const Ptr<Store> store_;
    // For who waits there while others call.
    OwnStore own_store_;
    const Ptr<Options> options_;
    // What the communicator was made with.
    const Millis timeout_;
    const unsigned born_ = forks.load();
    // How many default groups there had been, itself included.
    int era_ = 0;
    // Where its messages meet in the store.
    const std::string key_;
    const brigade_comm_t comm_;
    std::atomic<uint64_t> sequence_{0}, roll_calls_{0};
    // Channels by direction (those that send are first) and peer, what is being coalesced, and who
    // hears of calls.
    std::mutex mutex_;
    std::map<std::pair<bool, int>, std::unique_ptr<Channel>> channels_;
    std::shared_ptr<Batch> batch_;
    std::shared_ptr<Listener> listener_;
    std::atomic<bool> has_ended_{false};
    Lane lane_;
};

// A call that has been done when it returns needs no work, and torch takes none for one: what it
// throws is how it ended. While somebody profiles or listens it has one, which is what is recorded.
template <typename Body>
Group::Work Group::submit(c10d::OpType type, Title title, bool is_async, Millis timeout,
                          const Tensors &outputs, Body body) {
    const Millis limit = limit_of(timeout);
    auto whole = [this, limit, body = std::move(body)]() mutable {
        if (limit >= timeout_) return body();
        const Watchdog::Watch watch(comm_, limit);
        body();
    };
    if (!is_async && !is_coalescing()) {
        check_alive();
        const Lane::Turn turn(lane_);
        if (turn.has_come() && !at::hasCallbacks() && !hasHooks()) {
            ++sequence_;
            whole();
            return nullptr;
        }
        if (turn.has_come()) {
            auto work = operation(type, title, outputs);
            work->carry_out(whole);
            return work;
        }
    }
    auto work = operation(type, title, outputs);
    auto shared = std::make_shared<decltype(whole)>(std::move(whole));
    lane_.post([work, shared] { work->carry_out(*shared); });
    return work;
}

}  // namespace brigade
