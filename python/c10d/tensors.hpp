// Tensors as brigade.h wants them: one run of elements of a type that it knows. What lies otherwise
// (views with steps, conjugated ones, lists) goes through a copy.
#pragma once

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/ParallelGuard.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "brigade.h"
#include "result.hpp"

namespace brigade {

// Elements of brigade.h that stand for one element of a tensor.
struct Element {
    brigade_dtype_t dtype;
    size_t per_element;
};

// For what only moves bytes: every type goes, if need be as bytes.
inline Element moved(c10::ScalarType type) {
    switch (type) {
        case at::kChar: return {BRIGADE_INT8, 1};
        case at::kByte: return {BRIGADE_UINT8, 1};
        case at::kShort: return {BRIGADE_INT16, 1};
        case at::kInt: return {BRIGADE_INT32, 1};
        case at::kUInt32: return {BRIGADE_UINT32, 1};
        case at::kLong: return {BRIGADE_INT64, 1};
        case at::kUInt64: return {BRIGADE_UINT64, 1};
        case at::kHalf: return {BRIGADE_FLOAT16, 1};
        case at::kBFloat16: return {BRIGADE_BFLOAT16, 1};
        case at::kFloat: return {BRIGADE_FLOAT32, 1};
        case at::kDouble: return {BRIGADE_FLOAT64, 1};
        case at::kFloat8_e4m3fn: return {BRIGADE_FLOAT8E4M3, 1};
        case at::kFloat8_e5m2: return {BRIGADE_FLOAT8E5M2, 1};
        case at::kBool: return {BRIGADE_BOOL, 1};
        case at::kComplexHalf: return {BRIGADE_FLOAT16, 2};
        case at::kComplexFloat: return {BRIGADE_FLOAT32, 2};
        case at::kComplexDouble: return {BRIGADE_FLOAT64, 2};
        default: return {BRIGADE_UINT8, c10::elementSize(type)};
    }
}

// A type of torch's whose elements are such; where it has several, one of them.
inline std::string name_of(const Element &element) {
    constexpr c10::ScalarType known[] = {
        at::kChar, at::kByte, at::kShort, at::kInt, at::kUInt32, at::kLong, at::kUInt64, at::kHalf,
        at::kBFloat16, at::kFloat, at::kDouble, at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kBool,
        at::kComplexHalf, at::kComplexFloat, at::kComplexDouble};
    for (const auto type : known) {
        const Element one = moved(type);
        if (one.dtype == element.dtype && one.per_element == element.per_element) {
            return c10::toString(type);
        }
    }
    return "items of " + std::to_string(element.per_element) + " bytes";
}

// For what computes: refuses types that have no arithmetic here. Complex numbers are two real
// ones, which is right for sums only.
inline Element folded(c10::ScalarType type, c10d::ReduceOp::RedOpType op) {
    const Element element = moved(type);
    const bool is_bytes = element.dtype == BRIGADE_UINT8 && type != at::kByte;
    BRIGADE_CHECK_TYPE(!is_bytes, "brigade cannot reduce tensors of ", type);
    const bool is_sum = op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG ||
                        op == c10d::ReduceOp::PREMUL_SUM;
    BRIGADE_CHECK_TYPE(is_sum || !c10::isComplexType(type),
                       "complex tensors can be summed and averaged, nothing else");
    return element;
}

// An operator for one call.
class Op {
public:
    Op(const c10d::ReduceOp &op, const std::string &who) {
        switch (op) {
            case c10d::ReduceOp::SUM: op_ = BRIGADE_SUM; return;
            case c10d::ReduceOp::AVG: op_ = BRIGADE_AVG; return;
            case c10d::ReduceOp::PRODUCT: op_ = BRIGADE_PROD; return;
            case c10d::ReduceOp::MIN: op_ = BRIGADE_MIN; return;
            case c10d::ReduceOp::MAX: op_ = BRIGADE_MAX; return;
            case c10d::ReduceOp::BAND: op_ = BRIGADE_BAND; return;
            case c10d::ReduceOp::BOR: op_ = BRIGADE_BOR; return;
            case c10d::ReduceOp::BXOR: op_ = BRIGADE_BXOR; return;
            case c10d::ReduceOp::PREMUL_SUM: break;
            default: BRIGADE_CHECK_VALUE(false, "no operator of torch.distributed.ReduceOp");
        }
        const auto *by = dynamic_cast<c10d::PreMulSumSupplement *>(op.supplement_.get());
        BRIGADE_CHECK_VALUE(by != nullptr, "PREMUL_SUM needs a factor");
        const at::Tensor &tensor = by->tensor_factor;
        const double factor = tensor.defined() ? tensor.item<double>() : by->double_factor;
        check(brigade_op_create_pre_mul_sum(&op_, factor), who);
        made_ = true;
    }
    Op(Op &&other) noexcept : op_(other.op_), made_(std::exchange(other.made_, false)) {}
    ~Op() {
        if (made_) brigade_op_destroy(op_);
    }

    brigade_op_t get() const { return op_; }

private:
    brigade_op_t op_ = BRIGADE_SUM;
    bool made_ = false;
};

// Copies on whatever thread: no autograd, and no second team of threads beside torch's own.
struct Quietly {
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    c10::ParallelGuard no_team{true};
};

inline void check_tensor(const at::Tensor &tensor) {
    BRIGADE_CHECK_VALUE(tensor.defined(), "an undefined tensor");
    BRIGADE_CHECK_TYPE(tensor.layout() == at::kStrided, "brigade takes dense tensors, not ",
                       tensor.layout());
    BRIGADE_CHECK_VALUE(tensor.device().is_cpu(), "brigade takes tensors of the CPU, not of ",
                        tensor.device());
}

inline bool is_plain(const at::Tensor &tensor) {
    return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// A tensor, or a list of tensors, as one run of elements: itself where it lies so, else a copy.
class Run {
public:
    // To be read.
    static Run input(std::vector<at::Tensor> tensors) {
        return Run(std::move(tensors), true, false);
    }
    // To be written.
    static Run output(std::vector<at::Tensor> tensors) {
        return Run(std::move(tensors), false, true);
    }
    // Both.
    static Run in_place(at::Tensor tensor) { return Run({std::move(tensor)}, true, true); }

    void *data() const { return data_; }
    c10::ScalarType type() const { return type_; }
    // All of it, in elements of tensors, and that of one tensor.
    size_t count() const { return count_; }
    size_t count_of(size_t index) const { return tensors_[index].numel(); }
    size_t bytes() const { return count_ * c10::elementSize(type_); }
    const std::vector<at::Tensor> &tensors() const { return tensors_; }

    // What each tensor has, in elements of brigade.h.
    std::vector<size_t> counts(size_t per_element) const {
        std::vector<size_t> counts;
        for (const auto &tensor : tensors_) counts.push_back(tensor.numel() * per_element);
        return counts;
    }

    bool is_even() const {
        for (const auto &tensor : tensors_) {
            if (tensor.numel() != tensors_[0].numel()) return false;
        }
        return true;
    }

    // Read from elsewhere than `other`, of which it may only begin at this byte: in place.
    void keep_apart(const Run &other, ptrdiff_t in_place_at) {
        const char *mine = static_cast<char *>(data_), *theirs = static_cast<char *>(other.data_);
        const bool is_apart = mine + bytes() <= theirs || theirs + other.bytes() <= mine;
        if (is_apart || bytes() == 0 || mine == theirs + in_place_at) return;
        const Quietly quietly;
        copy_ = at::empty({static_cast<int64_t>(bytes())}, at::kByte);
        std::memcpy(copy_.data_ptr(), data_, bytes());
        data_ = copy_.data_ptr();
    }

    // Bring what was written to where it belongs.
    void bring_back() const {
        if (!copy_.defined()) return;
        const Quietly quietly;
        int64_t at = 0;
        for (const auto &tensor : tensors_) {
            tensor.copy_(copy_.narrow(0, at, tensor.numel()).view(tensor.sizes()));
            at += tensor.numel();
        }
    }

private:
    Run(std::vector<at::Tensor> tensors, bool is_read, bool is_written)
        : tensors_(std::move(tensors)) {
        BRIGADE_CHECK_VALUE(!tensors_.empty(), "an empty list of tensors");
        type_ = tensors_[0].scalar_type();
        bool is_one_run = true;
        for (const auto &tensor : tensors_) {
            check_tensor(tensor);
            BRIGADE_CHECK_TYPE(tensor.scalar_type() == type_, "tensors of ", type_, " and of ",
                               tensor.scalar_type(), " in one call");
            const size_t item = tensor.element_size();
            const char *end = static_cast<char *>(data_) + count_ * item;
            if (!is_plain(tensor) || (data_ && tensor.numel() && tensor.data_ptr() != end)) {
                is_one_run = false;
            }
            if (data_ == nullptr && tensor.numel()) data_ = tensor.data_ptr();
            count_ += tensor.numel();
        }
        if (!is_one_run) copy(is_read, is_written);
    }

    void copy(bool is_read, bool is_written) {
        const Quietly quietly;
        const auto options = tensors_[0].options().requires_grad(false);
        copy_ = at::empty({static_cast<int64_t>(count_)}, options);
        int64_t at = 0;
        for (const auto &tensor : tensors_) {
            if (is_written) at::assert_no_internal_overlap(tensor);
            if (is_read) copy_.narrow(0, at, tensor.numel()).view(tensor.sizes()).copy_(tensor);
            at += tensor.numel();
        }
        data_ = copy_.data_ptr();
    }

    std::vector<at::Tensor> tensors_;
    c10::ScalarType type_ = at::kByte;
    void *data_ = nullptr;
    size_t count_ = 0;
    at::Tensor copy_;
};

}  // namespace brigade
