// What torch passes must fit together before anything is sent.
#pragma once

#include <utility>
#include <vector>

#include "tensors.hpp"

namespace brigade {

using Tensors = std::vector<at::Tensor>;

inline const at::Tensor &single(const Tensors &tensors) {
    BRIGADE_CHECK_VALUE(tensors.size() == 1, "one tensor is needed, not ", tensors.size());
    return tensors[0];
}

inline const Tensors &single(const std::vector<Tensors> &lists) {
    BRIGADE_CHECK_VALUE(lists.size() == 1, "one list of tensors is needed, not ", lists.size());
    return lists[0];
}

inline void check_same_type(const Run &one, const Run &other) {
    BRIGADE_CHECK_TYPE(one.type() == other.type(), "tensors of ", one.type(), " and of ",
                       other.type(), " in one call");
}

// Inputs with their outputs, for calls that take several of each.
inline std::vector<std::pair<Run, Run>> paired(const Tensors &inputs, const Tensors &outputs) {
    BRIGADE_CHECK_VALUE(inputs.size() == outputs.size(), inputs.size(), " inputs for ",
                        outputs.size(), " outputs");
    std::vector<std::pair<Run, Run>> parts;
    for (size_t at = 0; at < inputs.size(); at++) {
        parts.emplace_back(Run::input({inputs[at]}), Run::output({outputs[at]}));
        check_same_type(parts.back().first, parts.back().second);
    }
    return parts;
}

inline void check_length(size_t found, size_t wanted, const char *what) {
    BRIGADE_CHECK_VALUE(found == wanted, what, " of ", found, " elements where ", wanted,
                        " are due");
}

inline void check_list(const Tensors &list, int size) {
    BRIGADE_CHECK_VALUE(list.size() == static_cast<size_t>(size), "a list of ", list.size(),
                        " tensors for ", size, " ranks");
}

}  // namespace brigade
