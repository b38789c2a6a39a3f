// Sums of sparse tensors, as gradients of embeddings are: everyone gathers the entries of all.
#include <numeric>

#include "group.hpp"

namespace brigade {

Group::Work Group::sum_sparse(const at::Tensor &tensor, const c10d::AllreduceOptions &opts) {
    BRIGADE_CHECK_VALUE(tensor.device().is_cpu(), "brigade takes tensors of the CPU, not of ",
                        tensor.device());
    BRIGADE_CHECK_TYPE(opts.reduceOp == c10d::ReduceOp::SUM, "sparse tensors can only be summed");
    at::Tensor mine;
    {
        const Quietly quietly;
        mine = tensor.coalesce();
    }
    auto body = [this, mine, sum = tensor]() mutable { add_up(mine, sum); };
    return submit(c10d::OpType::_ALLREDUCE_SPARSE, "brigade:all_reduce_sparse", opts.asyncOp,
                  opts.timeout, {tensor}, std::move(body));
}

// `sum` = the sum of what all ranks have. Ranks add in the same order, so they get the same bits.
void Group::add_up(const at::Tensor &mine, at::Tensor &sum) const {
    const Quietly quietly;
    // One row for each entry, so that those of a rank lie behind those of the one before it.
    const at::Tensor indices = mine.indices().t().contiguous();
    const at::Tensor values = mine.values().contiguous();
    const int64_t entries = mine._nnz();
    std::vector<int64_t> of_rank(size_);
    check(brigade_all_gather(&entries, of_rank.data(), 1, BRIGADE_INT64, comm_, nullptr), who_);
    const int64_t all = std::accumulate(of_rank.begin(), of_rank.end(), int64_t{0});
    const auto gather = [&](const at::Tensor &rows) {
        auto shape = rows.sizes().vec();
        shape[0] = 1;
        const Element element = moved(rows.scalar_type());
        const size_t row = c10::multiply_integers(shape) * element.per_element;
        std::vector<size_t> counts;
        for (const int64_t count : of_rank) counts.push_back(count * row);
        shape[0] = all;
        auto gathered = at::empty(shape, rows.options());
        check(brigade_all_gather_v(rows.data_ptr(), gathered.data_ptr(), counts.data(),
                                   element.dtype, comm_, nullptr),
              who_);
        return gathered;
    };
    const at::Tensor all_indices = gather(indices), all_values = gather(values);
    sum.copy_(at::sparse_coo_tensor(all_indices.t(), all_values, sum.sizes()).coalesce());
}

}  // namespace brigade
