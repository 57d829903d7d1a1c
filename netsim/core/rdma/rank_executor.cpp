#include "rank_executor.hpp"

#include <algorithm>

#include "clock.hpp"

namespace netsim::rdma {

namespace {

// Pieces under way to one rank; our choice: far above what keeps a link busy, and a bound of an engine's requests.
constexpr std::int32_t kWindow = 1024;

// Piece of a flow with a highest rate; our choice: the rate holds over spans of so many bytes.
constexpr std::int64_t kPacedBytes = 64 * 1024;

}  // namespace

RankExecutor::RankExecutor(const RankPlan& plan, Wire& wire, int ranks)
    : plan_(plan),
      wire_(wire),
      waits_(plan.send_waits),
      receive_of_(static_cast<std::size_t>(plan.flows), -1),
      posted_bytes_(plan.sends(), 0),
      left_bytes_(plan.sends(), 0),
      arrived_bytes_(plan.receives(), 0),
      outstanding_(static_cast<std::size_t>(ranks), 0),
      held_back_(static_cast<std::size_t>(ranks)),
      open_sends_(plan.sends()),
      open_receives_(plan.receives()),
      open_messages_(plan.expected_messages) {
    for (std::size_t i = 0; i < plan.receives(); ++i) {
        receive_of_[plan.receive_flow[i]] = static_cast<std::int32_t>(i);
    }
    times_.ready_ns.assign(plan.sends(), kNotYet);
    times_.posted_ns.assign(plan.sends(), kNotYet);
    times_.left_ns.assign(plan.sends(), kNotYet);
    times_.arrived_ns.assign(plan.receives(), kNotYet);
}

void RankExecutor::start(Nanoseconds t0_ns) {
    t0_ns_ = t0_ns;
    for (std::uint32_t send = 0; send < plan_.sends(); ++send) {
        if (waits_[send] == 0) release(send, t0_ns);
    }
}

Nanoseconds RankExecutor::post_due(Nanoseconds now) {
    while (!timers_.empty() && timers_.top().at <= now) {
        const Timer timer = timers_.top();
        timers_.pop();
        switch (timer.due) {
            case Due::kStart:
                startable_.push_back(timer.send);
                break;
            case Due::kNextPiece:
                send_next_piece(timer.send);
                break;
            case Due::kDeparture:
                depart(timer.send, now);
                break;
        }
    }
    while (!startable_.empty()) {
        const std::uint32_t send = startable_.front();
        startable_.pop_front();
        start_send(send);
    }
    return timers_.empty() ? kNever : timers_.top().at;
}

void RankExecutor::on_left(std::uint32_t send, std::int64_t bytes, Nanoseconds now) {
    const auto peer = static_cast<std::size_t>(plan_.send_peer[send]);
    --outstanding_[peer];
    if (!held_back_[peer].empty()) {
        startable_.push_back(held_back_[peer].front());
        held_back_[peer].pop_front();
    }
    left_bytes_[send] += bytes;
    if (left_bytes_[send] < plan_.send_bytes[send]) return;
    const Nanoseconds earliest = times_.posted_ns[send] + at_highest_rate_ns(send, plan_.send_bytes[send]);
    if (earliest > now) {
        set_timer(earliest, send, Due::kDeparture);
    } else {
        depart(send, now);
    }
}

void RankExecutor::on_arrived(std::uint32_t receive, std::int64_t bytes, Nanoseconds now) {
    arrived_bytes_[receive] += bytes;
    if (arrived_bytes_[receive] < plan_.receive_bytes[receive]) return;
    times_.arrived_ns[receive] = now;
    --open_receives_;
    happen(arrival_of(plan_.receive_flow[receive]), now);
}

void RankExecutor::on_informed(Event event, Nanoseconds now) {
    --open_messages_;
    for (const std::int32_t send : plan_.dependents.of(event)) {
        if (--waits_[static_cast<std::size_t>(send)] == 0) release(static_cast<std::uint32_t>(send), now);
    }
}

void RankExecutor::happen(Event event, Nanoseconds now) {
    for (const std::int32_t rank : plan_.informed.of(event)) wire_.inform(rank, event);
    for (const std::int32_t send : plan_.dependents.of(event)) {
        if (--waits_[static_cast<std::size_t>(send)] == 0) release(static_cast<std::uint32_t>(send), now);
    }
}

// The flow's last condition has come true; it starts after its delay.
void RankExecutor::release(std::uint32_t send, Nanoseconds now) {
    const Nanoseconds at = std::max(now, t0_ns_ + plan_.send_ready_ns[send]) + plan_.send_delay_ns[send];
    times_.ready_ns[send] = at;
    if (at > now) {
        set_timer(at, send, Due::kStart);
    } else {
        startable_.push_back(send);
    }
}

void RankExecutor::set_timer(Nanoseconds at, std::uint32_t send, Due due) { timers_.push({at, serial_++, send, due}); }

void RankExecutor::start_send(std::uint32_t send) {
    const auto peer = static_cast<std::size_t>(plan_.send_peer[send]);
    if (outstanding_[peer] >= kWindow) {
        held_back_[peer].push_back(send);
        return;
    }
    times_.posted_ns[send] = now_ns();  // the call before may have taken long
    send_next_piece(send);
}

void RankExecutor::send_next_piece(std::uint32_t send) {
    const std::int64_t left = plan_.send_bytes[send] - posted_bytes_[send];
    const std::int64_t bytes = plan_.send_max_bps[send] > 0 ? std::min(left, kPacedBytes) : left;
    const Piece piece{send, posted_bytes_[send], bytes};
    posted_bytes_[send] += bytes;
    ++outstanding_[static_cast<std::size_t>(plan_.send_peer[send])];
    if (posted_bytes_[send] < plan_.send_bytes[send]) {
        set_timer(times_.posted_ns[send] + at_highest_rate_ns(send, posted_bytes_[send]), send, Due::kNextPiece);
    }
    wire_.send(piece);
}

void RankExecutor::depart(std::uint32_t send, Nanoseconds now) {
    times_.left_ns[send] = now;
    --open_sends_;
    happen(departure_of(plan_.send_flow[send]), now);
}

Nanoseconds RankExecutor::at_highest_rate_ns(std::uint32_t send, std::int64_t bytes) const {
    if (plan_.send_max_bps[send] == 0) return 0;
    return static_cast<Nanoseconds>(static_cast<double>(bytes) * 8e9 / static_cast<double>(plan_.send_max_bps[send]));
}

}  // namespace netsim::rdma
