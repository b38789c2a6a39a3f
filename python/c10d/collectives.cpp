// Collectives that reduce, copy and gather. What torch passes is checked and laid out on the
// caller's thread, and carried out there or on the lane.
#include <numeric>

#include "checks.hpp"
#include "group.hpp"

namespace brigade {
namespace {

// Where a rank's own part of a list begins.
ptrdiff_t bytes_before(const Tensors &list, int rank) {
    return std::accumulate(
        list.begin(), list.begin() + rank, ptrdiff_t{0},
        [](ptrdiff_t sum, const at::Tensor &tensor) { return sum + tensor.nbytes(); });
}

}  // namespace

void Group::all_reduce(const Run &run, const Op &op, Element element) const {
    check(brigade_all_reduce(run.data(), run.data(), run.count() * element.per_element,
                             element.dtype, op.get(), comm_, nullptr),
          who_);
    run.bring_back();
}

Group::Work Group::allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts) {
    const Call call(who_, "all_reduce");
    if (single(tensors).is_sparse()) return sum_sparse(tensors[0], opts);
    auto run = Run::in_place(single(tensors));
    const Element element = folded(run.type(), opts.reduceOp);
    auto body = [this, run = std::move(run), op = Op(opts.reduceOp, who_), element] {
        all_reduce(run, op, element);
    };
    return submit(c10d::OpType::ALLREDUCE, "brigade:all_reduce", opts.asyncOp, opts.timeout,
                  tensors, std::move(body));
}

Group::Work Group::allreduce_coalesced(Tensors &tensors,
                                       const c10d::AllreduceCoalescedOptions &opts) {
    const Call call(who_, "all_reduce");
    std::vector<Run> runs;
    for (const auto &tensor : tensors) {
        runs.push_back(Run::in_place(tensor));
        folded(runs.back().type(), opts.reduceOp);
    }
    auto body = [this, runs = std::move(runs), op = Op(opts.reduceOp, who_)] {
        for (const auto &run : runs) all_reduce(run, op, moved(run.type()));
    };
    return submit(c10d::OpType::ALLREDUCE_COALESCED, "brigade:all_reduce", opts.asyncOp,
                  opts.timeout, tensors, std::move(body));
}

Group::Work Group::reduce(Tensors &tensors, const c10d::ReduceOptions &opts) {
    const Call call(who_, "reduce");
    check_peer(opts.rootRank);
    const bool is_root = rank_ == opts.rootRank;
    auto run = is_root ? Run::in_place(single(tensors)) : Run::input({single(tensors)});
    const Element element = folded(run.type(), opts.reduceOp);
    auto body = [this, run = std::move(run), op = Op(opts.reduceOp, who_), element,
                 root = static_cast<int>(opts.rootRank)] {
        void *to = rank_ == root ? run.data() : nullptr;
        check(brigade_reduce(run.data(), to, run.count() * element.per_element, element.dtype,
                             op.get(), root, comm_, nullptr),
              who_);
        if (rank_ == root) run.bring_back();
    };
    return submit(c10d::OpType::REDUCE, "brigade:reduce", opts.asyncOp, opts.timeout, tensors,
                  std::move(body));
}

Group::Work Group::broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts) {
    const Call call(who_, "broadcast");
    check_peer(opts.rootRank);
    const bool is_root = rank_ == opts.rootRank;
    auto run = is_root ? Run::input({single(tensors)}) : Run::output({single(tensors)});
    auto body = [this, run = std::move(run), root = static_cast<int>(opts.rootRank)] {
        const Element element = moved(run.type());
        check(brigade_broadcast(run.data(), run.data(), run.count() * element.per_element,
                                element.dtype, root, comm_, nullptr),
              who_);
        if (rank_ != root) run.bring_back();
    };
    return submit(c10d::OpType::BROADCAST, "brigade:broadcast", opts.asyncOp, opts.timeout,
                  tensors, std::move(body));
}

void Group::all_gather(const Run &input, const Run &output) const {
    const Element element = moved(input.type());
    if (output.tensors().size() == 1 || output.is_even()) {
        check(brigade_all_gather(input.data(), output.data(), input.count() * element.per_element,
                                 element.dtype, comm_, nullptr),
              who_);
    } else {
        const auto counts = output.counts(element.per_element);
        check(brigade_all_gather_v(input.data(), output.data(), counts.data(), element.dtype,
                                   comm_, nullptr),
              who_);
    }
    output.bring_back();
}

Group::Work Group::allgather(TensorLists &outputs, Tensors &inputs,
                             const c10d::AllgatherOptions &opts) {
    const Call call(who_, "all_gather");
    const Tensors &list = single(outputs);
    check_list(list, size_);
    auto input = Run::input({single(inputs)});
    auto output = Run::output(list);
    check_same_type(input, output);
    check_length(input.count(), output.count_of(rank_), "an input");
    input.keep_apart(output, bytes_before(list, rank_));
    auto body = [this, input = std::move(input), output = std::move(output)] {
        all_gather(input, output);
    };
    return submit(c10d::OpType::ALLGATHER, "brigade:all_gather", opts.asyncOp, opts.timeout, list,
                  std::move(body));
}

Group::Work Group::allgather_coalesced(TensorLists &outputs, Tensors &inputs,
                                       const c10d::AllgatherOptions &opts) {
    const Call call(who_, "all_gather");
    BRIGADE_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_), "a list of ", outputs.size(),
                        " lists for ", size_, " ranks");
    std::vector<std::pair<Run, Run>> parts;
    Tensors all;
    for (size_t at = 0; at < inputs.size(); at++) {
        Tensors list;
        for (const auto &of_rank : outputs) {
            check_length(of_rank.size(), inputs.size(), "a list");
            list.push_back(of_rank[at]);
        }
        all.insert(all.end(), list.begin(), list.end());
        parts.emplace_back(Run::input({inputs[at]}), Run::output(list));
        auto &[input, output] = parts.back();
        check_same_type(input, output);
        check_length(input.count(), output.count_of(rank_), "an input");
        input.keep_apart(output, bytes_before(list, rank_));
    }
    auto body = [this, parts = std::move(parts)] {
        for (const auto &[input, output] : parts) all_gather(input, output);
    };
    return submit(c10d::OpType::ALLGATHER_COALESCED, "brigade:all_gather", opts.asyncOp,
                  opts.timeout, all, std::move(body));
}

Group::Work Group::all_gather_single(at::Tensor &output, at::Tensor &input,
                                     const c10d::AllgatherOptions &opts) {
    Tensors outputs = {output}, inputs = {input};
    return all_gather_single_coalesced(outputs, inputs, opts);
}

Group::Work Group::all_gather_single_coalesced(Tensors &outputs, Tensors &inputs,
                                               const c10d::AllgatherOptions &opts) {
    const Call call(who_, "all_gather");
    auto parts = paired(inputs, outputs);
    for (auto &[input, output] : parts) {
        check_length(output.count(), input.count() * size_, "an output");
        input.keep_apart(output, rank_ * input.bytes());
    }
    auto body = [this, parts = std::move(parts)] {
        for (const auto &[input, output] : parts) all_gather(input, output);
    };
    return submit(c10d::OpType::_ALLGATHER_BASE, "brigade:all_gather", opts.asyncOp, opts.timeout,
                  outputs, std::move(body));
}

// With a count for every rank, as the others do not know how even the root's list is.
Group::Work Group::gather(TensorLists &outputs, Tensors &inputs, const c10d::GatherOptions &opts) {
    const Call call(who_, "gather");
    check_peer(opts.rootRank);
    const int root = static_cast<int>(opts.rootRank);
    auto input = Run::input({single(inputs)});
    const size_t each = moved(input.type()).per_element;
    std::vector<size_t> counts(size_, input.count() * each);
    std::vector<Run> output;
    if (rank_ == root) {
        check_list(single(outputs), size_);
        output.push_back(Run::output(single(outputs)));
        check_same_type(input, output[0]);
        check_length(input.count(), output[0].count_of(rank_), "an input");
        counts = output[0].counts(each);
        const auto before = std::accumulate(counts.begin(), counts.begin() + rank_, size_t{0});
        input.keep_apart(output[0], before / each * c10::elementSize(input.type()));
    }
    auto body = [this, input = std::move(input), output = std::move(output), counts, root] {
        void *to = output.empty() ? nullptr : output[0].data();
        check(brigade_gather_v(input.data(), to, counts.data(), moved(input.type()).dtype, root,
                               comm_, nullptr),
              who_);
        for (const auto &run : output) run.bring_back();
    };
    return submit(c10d::OpType::GATHER, "brigade:gather", opts.asyncOp, opts.timeout,
                  rank_ == root ? single(outputs) : Tensors(), std::move(body));
}

Group::Work Group::gather_single(at::Tensor &output, at::Tensor &input,
                                 const c10d::GatherOptions &opts) {
    const Call call(who_, "gather");
    check_peer(opts.rootRank);
    TensorLists outputs;
    if (rank_ == opts.rootRank) {
        BRIGADE_CHECK_VALUE(output.numel() == input.numel() * size_, "an output of ",
                            output.numel(), " elements for ", size_, " times ", input.numel());
        outputs.push_back(output.reshape({size_, -1}).unbind(0));
        BRIGADE_CHECK_VALUE(is_plain(output), "gather_single needs a contiguous output");
    }
    Tensors inputs = {input};
    return gather(outputs, inputs, opts);
}

}  // namespace brigade
