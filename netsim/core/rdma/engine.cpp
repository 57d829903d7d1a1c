#include "engine.hpp"

#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "clock.hpp"

namespace netsim::rdma {

namespace {

// A timer's last part is waited for without sleeping: about what a wake-up takes.
constexpr Nanoseconds kBusyWait = 20'000;

// Rounds without progress before the engine is armed (20 were measured to give the best round trips on two cores).
constexpr int kIdleRounds = 20;

int make_event_descriptor() {
    const int descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (descriptor < 0) throw EngineError("eventfd: " + std::string(std::strerror(errno)));
    return descriptor;
}

void signal_event(int descriptor) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = write(descriptor, &one, sizeof one);  // a full counter is readable already
}

void drain_event(int descriptor) {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto found = read(descriptor, &count, sizeof count);  // an empty counter is empty already
}

}  // namespace

Engine::Engine(const EngineOptions& options)
    : options_(options), wake_fd_(make_event_descriptor()), done_fd_(make_event_descriptor()) {
    watch(wake_fd_);
}

Engine::~Engine() {
    ::close(wake_fd_);
    ::close(done_fd_);
}

void Engine::load(RankPlan plan) {
    release_memory();
    pattern_.reset();
    drain_event(done_fd_);
    plan_ = std::move(plan);
    executor_ = std::make_unique<RankExecutor>(plan_, *this, options_.ranks);
    pattern_ = std::make_unique<PayloadPattern>(std::max(largest(plan_.send_bytes), largest(plan_.receive_bytes)));
    register_memory();
}

void Engine::run(Nanoseconds t0_ns) {
    prctl(PR_SET_TIMERSLACK, 1UL);  // else timers of this thread may be 50 us late
    bool is_reported = false;
    executor_->start(t0_ns);
    int idle = 0;
    while (!must_stop_) {
        const unsigned events = progress();
        const Nanoseconds now = now_ns();
        const Nanoseconds next = now < t0_ns ? t0_ns : executor_->post_due(now);
        if (!failure_.empty()) throw EngineError(failure_);
        if (!is_reported && under_way_ == 0 && executor_->is_done()) {
            is_reported = true;
            signal_event(done_fd_);
        }
        idle = events > 0 ? 0 : idle + 1;
        if (idle > kIdleRounds && !options_.spin && next - now > kBusyWait) sleep_until(next);
    }
    must_stop_ = false;
    drain_event(wake_fd_);
}

void Engine::stop() {
    must_stop_ = true;
    signal_event(wake_fd_);
}

RankTimes Engine::times() const { return executor_->times(); }

void Engine::watch(int descriptor) { watched_.push_back({descriptor, POLLIN, 0}); }

bool Engine::was_readable(int descriptor) const {
    return std::ranges::any_of(watched_,
                               [&](const pollfd& each) { return each.fd == descriptor && each.revents != 0; });
}

void Engine::sleep_until(Nanoseconds at) {
    if (!arm()) return;
    const Nanoseconds wait = at == kNever ? -1 : std::max<Nanoseconds>(0, at - now_ns() - kBusyWait);
    const timespec limit{static_cast<time_t>(wait / 1'000'000'000), static_cast<long>(wait % 1'000'000'000)};
    ppoll(watched_.data(), watched_.size(), wait < 0 ? nullptr : &limit, nullptr);
}

void Engine::check_payload(std::uint32_t flow, std::int64_t offset, const void* data, std::int64_t bytes) {
    if (options_.must_verify && !pattern_->is(flow, offset, data, bytes)) {
        fail("flow " + std::to_string(flow) + " arrived with another payload than was sent");
    }
}

void Engine::fail(const std::string& message) {
    if (failure_.empty()) failure_ = message;
}

std::int64_t largest(const std::vector<std::int64_t>& values) {
    return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

std::int64_t sum(const std::vector<std::int64_t>& values) {
    return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

}  // namespace netsim::rdma
