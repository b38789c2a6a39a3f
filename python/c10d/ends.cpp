// How the groups of a process end with it.
//
// Who hears that this process leaves, or why, fails and ends, and a launcher takes for the cause
// whoever ended first. So the others hear it last of all: at the exit as C has it, when the
// interpreter has gone, which takes seconds, and all that C++ destroys there.
#include <future>
#include <system_error>
#include <thread>

#include "ending.hpp"
#include "group.hpp"

namespace brigade {
namespace {

// How long callbacks that go on may take until the others are told at once.
constexpr auto PAUSE = std::chrono::milliseconds(500);
// How long it may take to tell them at the exit.
constexpr auto LAST_GRACE = std::chrono::seconds(2);

// What is left to be done at the exit of the process that made it. It never ends itself.
struct Left {
    std::mutex mutex;
    std::vector<std::function<void()>> tasks;
    const unsigned born = forks.load();
};
std::atomic<Left *> known_left{nullptr};

// None before the exit is to come.
Left *left() {
    Left *known = known_left.load();
    return known != nullptr && known->born == forks.load() ? known : nullptr;
}

// Nearly the last of what C does at the exit: libbrigade goes behind it. On a thread of its own, as
// what belonged to this one alone has gone. Where there is none, or it takes too long, the others
// hear of the process by its connections.
__attribute__((destructor)) void do_what_is_left() {
    if (left() == nullptr) return;
    auto *promise = new std::promise<void>;
    auto done = promise->get_future();
    try {
        std::thread([promise, left = left()] {
            const std::lock_guard<std::mutex> lock(left->mutex);
            for (const auto &task : left->tasks) task();
            promise->set_value();
        }).detach();
    } catch (const std::system_error &) {
        return;
    }
    done.wait_for(LAST_GRACE);
}

}  // namespace

// For a reason that the others hear at the exit; whether they can. Not if callbacks go on, which
// may wait for calls that only end with the group.
bool Group::fail_at_exit(const std::string &why) {
    const auto deadline = Pool::Clock::now() + PAUSE;
    if (!Ending::begin(deadline) || !Pool::the().drain(deadline)) {
        Ending::call_off();
        return false;
    }
    for (auto &group : all()) {
        if (!group->strike_off()) continue;
        group->has_ended_ = true;
        leave([group, why] { group->fail(why.c_str()); });
    }
    return true;
}

void Group::end_all(const std::string &why, bool has_exit) {
    if (has_exit && left() == nullptr) known_left = new Left;
    for (const auto &group : all()) {
        // In a child of fork the groups are the parent's.
        if (group->born_ != forks.load()) group->shutdown();
    }
    if (has_exit && !why.empty() && fail_at_exit(why)) return;
    for (auto groups = all(); !groups.empty(); groups = all()) {
        for (const auto &group : groups) {
            if (!why.empty()) group->fail(why.c_str());
            group->shutdown();
        }
    }
}

void Group::leave(std::function<void()> task) {
    Left *const left = brigade::left();
    if (left == nullptr) return task();
    const std::lock_guard<std::mutex> lock(left->mutex);
    left->tasks.push_back(std::move(task));
}

}  // namespace brigade
