// The flows of one rank in the order that the graph asks for: counts what each waits for, and posts it in time.
//
// No other rank is asked: arrivals here, and messages about arrivals elsewhere, are all that drives it.
#pragma once

#include <deque>
#include <functional>
#include <queue>
#include <vector>

#include "rank_plan.hpp"

namespace netsim::rdma {

// A part of a flow; one message of an engine.
struct Piece {
    std::uint32_t send;  // of this rank
    std::int64_t offset, bytes;
};

// What carries the messages. A call may report the end of pieces, the one that it is given included.
class Wire {
  public:
    virtual ~Wire() = default;
    virtual void send(const Piece& piece) = 0;
    virtual void inform(int rank, Event event) = 0;
};

class RankExecutor {
  public:
    // The plan and the wire outlive the executor.
    RankExecutor(const RankPlan& plan, Wire& wire, int ranks);

    // Roots start at t0 plus what the graph says.
    void start(Nanoseconds t0_ns);

    // Posts what is due; returns when the next timer is, or kNever.
    Nanoseconds post_due(Nanoseconds now);

    // Bytes of a send that an engine has given back, and of a receive that are in memory.
    void on_left(std::uint32_t send, std::int64_t bytes, Nanoseconds now);
    void on_arrived(std::uint32_t receive, std::int64_t bytes, Nanoseconds now);
    // Another rank reports an event.
    void on_informed(Event event, Nanoseconds now);

    bool is_done() const { return open_sends_ == 0 && open_receives_ == 0 && open_messages_ == 0; }
    // Receive that a flow is, or -1.
    std::int32_t receive_of(std::uint32_t flow) const { return flow < receive_of_.size() ? receive_of_[flow] : -1; }
    const RankTimes& times() const { return times_; }

  private:
    enum class Due : std::uint8_t { kStart, kNextPiece, kDeparture };
    struct Timer {
        Nanoseconds at;
        std::uint64_t serial;
        std::uint32_t send;
        Due due;
        bool operator>(const Timer& other) const { return at != other.at ? at > other.at : serial > other.serial; }
    };

    void happen(Event event, Nanoseconds now);
    void release(std::uint32_t send, Nanoseconds now);
    void set_timer(Nanoseconds at, std::uint32_t send, Due due);
    void start_send(std::uint32_t send);
    void send_next_piece(std::uint32_t send);
    void depart(std::uint32_t send, Nanoseconds now);
    Nanoseconds at_highest_rate_ns(std::uint32_t send, std::int64_t bytes) const;

    const RankPlan& plan_;
    Wire& wire_;
    Nanoseconds t0_ns_ = 0;
    std::vector<std::int32_t> waits_, receive_of_;
    std::vector<std::int64_t> posted_bytes_, left_bytes_, arrived_bytes_;
    std::vector<std::int32_t> outstanding_;             // [ranks] pieces under way
    std::vector<std::deque<std::uint32_t>> held_back_;  // [ranks] sends for which the window has no room
    std::deque<std::uint32_t> startable_;
    std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
    std::uint64_t serial_ = 0;
    std::size_t open_sends_, open_receives_;
    std::int64_t open_messages_;
    RankTimes times_;
};

}  // namespace netsim::rdma
