// Data parallel training in small: every rank has its share of the points of a line, the gradients
// are averaged while the next ones are computed, and all ranks end with the same line.
#include <brigade.hpp>

#include <cmath>
#include <cstdio>
#include <exception>

namespace {

struct Line {
    double slope, offset;
};

// The gradient of the mean squared error over this rank's points of y = 3 x - 1.
Line gradient(const Line &line, int rank, int size) {
    Line sum = {0, 0};
    int points = 0;
    for (int at = rank; at < 64; at += size, points++) {
        const double x = at / 64.0;
        const double error = line.slope * x + line.offset - (3 * x - 1);
        sum.slope += 2 * error * x;
        sum.offset += 2 * error;
    }
    return {sum.slope / points, sum.offset / points};
}

void require(bool so, const char *what) {
    if (!so) throw std::runtime_error(std::string("not so: ") + what);
}

void train(const brigade::Communicator &world) {
    Line line = {0, 0};
    for (int step = 0; step < 2000; step++) {
        Line local = gradient(line, world.rank(), world.size()), mean = {0, 0};
        brigade::Work work = world.start_all_reduce(&local.slope, &mean.slope, 2, BRIGADE_AVG);
        while (!work.wait_for(1)) {
        }
        line.slope -= 0.5 * mean.slope;
        line.offset -= 0.5 * mean.offset;
    }
    require(std::fabs(line.slope - 3) < 1e-6 && std::fabs(line.offset + 1) < 1e-6, "the line");
    Line first = line;
    world.broadcast(&first.slope, 2, 0);
    require(first.slope == line.slope && first.offset == line.offset, "the same line everywhere");
}

void refuse(const brigade::Communicator &world) {
    try {
        float value = 0;
        world.broadcast(&value, 1, world.size());
        require(false, "a root that does not exist is refused");
    } catch (const brigade::Error &error) {
        require(error.result() == BRIGADE_INVALID_ARGUMENT, error.what());
    }
    require(!world.split(BRIGADE_SPLIT_NOCOLOR, 0), "without a colour there is no group");
}

/* Without the last rank, which does not come. */
void shrink(const brigade::Communicator &world) {
    const int last = world.size() - 1;
    if (world.rank() == last) return;
    brigade::Communicator rest = world.shrink({last});
    std::int64_t one = 1, sum = 0;
    brigade::Work work = rest.start_all_reduce(&one, &sum, 1);
    require(work.fd() >= 0, "work has a descriptor");
    work.wait();
    require(sum == last && rest.size() == last, "the others are left");
}

/* The same ranks in a world of their own, whose id the first one draws. */
void grow(const brigade::Communicator &world) {
    brigade_unique_id_t id;
    const bool is_first = world.rank() == 0;
    if (is_first) require(brigade_get_unique_id(&id) == BRIGADE_SUCCESS, "an id is drawn");
    brigade::Communicator same = world.grow(world.size(), is_first ? &id : nullptr);
    std::int64_t one = 1, sum = 0;
    same.all_reduce(&one, &sum, 1);
    require(sum == world.size() && same.rank() == world.rank(), "all are there");
}

}  // namespace

int main() {
    try {
        brigade::Communicator world =
            brigade::Communicator::from_env({{"BRIGADE_TIMEOUT_MS", "20000"}});
        train(world);
        refuse(world);
        shrink(world);
        grow(world);
        brigade::Communicator same = world.split(0, 0);
        same = std::move(world);
        same.barrier();
        std::printf("rank %d of %d: all as it should be\n", same.rank(), same.size());
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
