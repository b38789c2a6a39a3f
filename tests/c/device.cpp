// Calls on memory of devices as C++ makes them: one rank on the first device.
#include <brigade.hpp>

#include "cuda.h"

#include <cstring>

namespace {

void require(bool holds, const char *what) {
    if (!holds) throw std::runtime_error(what);
}

void refuse(const brigade::DeviceGroup &group) {
    try {
        float host = 0;
        group.all_reduce(&host, &host, 1, nullptr);
        require(false, "memory of the host is refused");
    } catch (const brigade::Error &error) {
        require(error.result() == BRIGADE_INVALID_ARGUMENT, error.what());
        require(std::strstr(error.what(), "ordinary memory of the host") != nullptr, error.what());
    }
}

void calls() {
    std::uint64_t address = 0;
    std::int32_t numbers[4] = {1, 2, 3, 4};
    void *stream = nullptr;
    cuda_enter();
    CU(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
    CU(cuMemAlloc_v2(&address, sizeof numbers));
    const std::uint64_t host = reinterpret_cast<std::uintptr_t>(numbers);
    CU(cuMemcpyAsync(address, host, sizeof numbers, stream));
    auto *at = reinterpret_cast<std::int32_t *>(static_cast<std::uintptr_t>(address));

    brigade::Communicator world = brigade::Communicator::from_env();
    brigade::DeviceGroup group(world, BRIGADE_CURRENT_DEVICE, 2);
    require(group.info().device == 0, "it is on the first device");
    group.all_reduce(at, at, 4, stream, BRIGADE_MAX);
    group.broadcast(at, 4, 0, stream);
    group.reduce_scatter(at, at, 4, stream);
    group.all_gather(at, at, 4, stream);
    brigade::Work work = group.mark(stream);
    work.wait();
    require(work.done(), "what was waited for is done");
    refuse(group);
    group.check_health();

    CU(cuMemcpyAsync(host, address, sizeof numbers, stream));
    CU(cuStreamSynchronize(stream));
    require(numbers[0] == 1 && numbers[3] == 4, "one rank keeps what it has");
    brigade::DeviceGroup other = std::move(group);
    require(group.get() == nullptr && other.get() != nullptr, "a group has one owner");
}

}  // namespace

int main() {
    try {
        cuda_open();
        calls();
        std::printf("as it should be in C++\n");
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
