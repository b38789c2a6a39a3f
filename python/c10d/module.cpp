// What Python sees.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <numeric>

#include "group.hpp"

namespace {

namespace py = pybind11;

c10::intrusive_ptr<c10d::Backend> create(const c10::intrusive_ptr<c10d::Store> &store, int rank,
                                         int size, std::chrono::duration<double> timeout,
                                         std::vector<int> ranks) {
    const auto millis = std::chrono::round<std::chrono::milliseconds>(timeout);
    const bool is_first = ranks.empty();
    if (is_first) {
        ranks.resize(size);
        std::iota(ranks.begin(), ranks.end(), 0);
    }
    return brigade::Group::make(store, rank, size, millis, std::move(ranks), is_first);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    module.doc() = "torch.distributed over libbrigade";
    module.def("create", &create, "Meet the other ranks in the store.", py::arg("store"),
               py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("ranks"),
               py::call_guard<py::gil_scoped_release>());
    module.def("end_all", &brigade::Group::end_all, "End the groups of this process.",
               py::arg("why"), py::arg("has_exit"), py::call_guard<py::gil_scoped_release>());
}
