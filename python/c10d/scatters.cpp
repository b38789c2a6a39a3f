// Collectives that give every rank something else, and the barrier.
#include <numeric>

#include "checks.hpp"
#include "group.hpp"

namespace brigade {
namespace {

// Elements of brigade.h for every rank, from how torch splits the first dimension.
std::vector<size_t> split_counts(const at::Tensor &tensor, const std::vector<int64_t> &splits,
                                 int size, size_t per_element) {
    const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    const size_t row = rows == 0 ? 0 : tensor.numel() / rows * per_element;
    if (splits.empty()) {
        BRIGADE_CHECK_VALUE(rows % size == 0, rows, " rows cannot be split evenly among ", size,
                            " ranks");
        return std::vector<size_t>(size, rows / size * row);
    }
    BRIGADE_CHECK_VALUE(splits.size() == static_cast<size_t>(size), splits.size(), " splits for ",
                        size, " ranks");
    std::vector<size_t> counts;
    for (const int64_t split : splits) {
        BRIGADE_CHECK_VALUE(split >= 0, "a split of ", split, " rows");
        counts.push_back(split * row);
    }
    const int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
    BRIGADE_CHECK_VALUE(sum == rows, "splits of ", sum, " rows together for a tensor of ", rows);
    return counts;
}

}  // namespace

Group::Work Group::scatter(Tensors &outputs, TensorLists &inputs,
                           const c10d::ScatterOptions &opts) {
    const Call call(who_, "scatter");
    check_peer(opts.rootRank);
    const int root = static_cast<int>(opts.rootRank);
    auto output = Run::output({single(outputs)});
    const size_t each = moved(output.type()).per_element;
    std::vector<size_t> counts(size_, output.count() * each);
    std::vector<Run> input;
    if (rank_ == root) {
        check_list(single(inputs), size_);
        input.push_back(Run::input(single(inputs)));
        check_same_type(input[0], output);
        check_length(output.count(), input[0].count_of(rank_), "an output");
        counts = input[0].counts(each);
        const auto before = std::accumulate(counts.begin(), counts.begin() + rank_, size_t{0});
        const ptrdiff_t at = before / each * c10::elementSize(output.type());
        input[0].keep_apart(output, -at);
    }
    auto body = [this, input = std::move(input), output = std::move(output), counts, root] {
        const void *from = input.empty() ? nullptr : input[0].data();
        check(brigade_scatter_v(from, output.data(), counts.data(), moved(output.type()).dtype,
                                root, comm_, nullptr),
              who_);
        output.bring_back();
    };
    return submit(c10d::OpType::SCATTER, "brigade:scatter", opts.asyncOp, opts.timeout, outputs,
                  std::move(body));
}

void Group::reduce_scatter(const Run &input, const Run &output, const Op &op,
                           Element element) const {
    const size_t each = element.per_element;
    if (input.tensors().size() == 1 || input.is_even()) {
        check(brigade_reduce_scatter(input.data(), output.data(), output.count() * each,
                                     element.dtype, op.get(), comm_, nullptr),
              who_);
    } else {
        const auto counts = input.counts(each);
        check(brigade_reduce_scatter_v(input.data(), output.data(), counts.data(), element.dtype,
                                       op.get(), comm_, nullptr),
              who_);
    }
    output.bring_back();
}

Group::Work Group::reduce_scatter(Tensors &outputs, TensorLists &inputs,
                                  const c10d::ReduceScatterOptions &opts) {
    const Call call(who_, "reduce_scatter");
    const Tensors &list = single(inputs);
    check_list(list, size_);
    auto input = Run::input(list);
    auto output = Run::output({single(outputs)});
    check_same_type(input, output);
    check_length(output.count(), input.count_of(rank_), "an output");
    ptrdiff_t before = 0;
    for (int rank = 0; rank < rank_; rank++) before += list[rank].nbytes();
    input.keep_apart(output, -before);
    const Element element = folded(input.type(), opts.reduceOp);
    auto body = [this, input = std::move(input), output = std::move(output),
                 op = Op(opts.reduceOp, who_), element] {
        reduce_scatter(input, output, op, element);
    };
    return submit(c10d::OpType::REDUCE_SCATTER, "brigade:reduce_scatter", opts.asyncOp,
                  opts.timeout, outputs, std::move(body));
}

Group::Work Group::reduce_scatter_single(at::Tensor &output, at::Tensor &input,
                                         const c10d::ReduceScatterOptions &opts) {
    Tensors outputs = {output}, inputs = {input};
    return reduce_scatter_single_coalesced(outputs, inputs, opts);
}

Group::Work Group::reduce_scatter_single_coalesced(Tensors &outputs, Tensors &inputs,
                                                   const c10d::ReduceScatterOptions &opts) {
    const Call call(who_, "reduce_scatter");
    auto parts = paired(inputs, outputs);
    for (auto &[input, output] : parts) {
        check_length(input.count(), output.count() * size_, "an input");
        input.keep_apart(output, -static_cast<ptrdiff_t>(rank_ * output.bytes()));
        folded(input.type(), opts.reduceOp);
    }
    auto body = [this, parts = std::move(parts), op = Op(opts.reduceOp, who_)] {
        for (const auto &[input, output] : parts) {
            reduce_scatter(input, output, op, moved(input.type()));
        }
    };
    return submit(c10d::OpType::_REDUCE_SCATTER_BASE, "brigade:reduce_scatter", opts.asyncOp,
                  opts.timeout, outputs, std::move(body));
}

Group::Work Group::all_to_all(Run input, Run output, Counts sent, Counts received,
                              const c10d::AllToAllOptions &opts, Tensors outputs) {
    check_same_type(input, output);
    // In place it works with equal parts only.
    input.keep_apart(output, sent == received ? 0 : -1);
    auto body = [this, input = std::move(input), output = std::move(output),
                 sent = std::move(sent), received = std::move(received)] {
        check(brigade_all_to_all_v(input.data(), sent.data(), output.data(), received.data(),
                                   moved(input.type()).dtype, comm_, nullptr),
              who_);
        output.bring_back();
    };
    return submit(c10d::OpType::ALLTOALL_BASE, "brigade:all_to_all", opts.asyncOp, opts.timeout,
                  std::move(outputs), std::move(body));
}

Group::Work Group::all_to_all_single(at::Tensor &output, at::Tensor &input,
                                     std::vector<int64_t> &output_splits,
                                     std::vector<int64_t> &input_splits,
                                     const c10d::AllToAllOptions &opts) {
    const Call call(who_, "all_to_all");
    const size_t each = moved(input.scalar_type()).per_element;
    auto sent = split_counts(input, input_splits, size_, each);
    auto received = split_counts(output, output_splits, size_, each);
    return all_to_all(Run::input({input}), Run::output({output}), std::move(sent),
                      std::move(received), opts, {output});
}

Group::Work Group::alltoall(Tensors &outputs, Tensors &inputs,
                            const c10d::AllToAllOptions &opts) {
    const Call call(who_, "all_to_all");
    check_list(outputs, size_);
    check_list(inputs, size_);
    auto input = Run::input(inputs), output = Run::output(outputs);
    const size_t each = moved(input.type()).per_element;
    auto sent = input.counts(each), received = output.counts(each);
    return all_to_all(std::move(input), std::move(output), std::move(sent), std::move(received),
                      opts, outputs);
}

Group::Work Group::barrier(const c10d::BarrierOptions &opts) {
    const Call call(who_, "barrier");
    auto body = [this] { check(brigade_barrier(comm_, nullptr), who_); };
    return submit(c10d::OpType::BARRIER, "brigade:barrier", opts.asyncOp, opts.timeout, {},
                  std::move(body));
}

}  // namespace brigade
