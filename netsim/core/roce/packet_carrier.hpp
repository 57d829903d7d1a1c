// What backends that simulate packets offer beyond carrying flows, whatever their engine.
#pragma once

#include <cstdint>
#include <vector>

#include "carrier.hpp"
#include "roce/port.hpp"

namespace netsim::roce {

// Cumulative figures of all links at one instant.
struct LinkFigures {
    std::vector<std::int64_t> packets, wire_bytes, payload_bytes, busy_ps, paused_ps, pauses, marks, drops,
        queued_bytes;
};

// Figures of every link at regular instants.
struct TimeSeries {
    std::vector<TimePs> at_ps;               // [samples]
    std::vector<std::int64_t> wire_bytes;    // [samples * links] cumulative, as are pauses and marks
    std::vector<std::int64_t> queued_bytes;  // [samples * links] at the instant
    std::vector<std::int64_t> paused_ps, pauses, marks;
};

// A pause frame, or one that ends a pause, at an end of a link.
struct PauseEvent {
    TimePs at_ps;
    LinkId link;  // that pauses
    std::uint8_t priority;
    bool is_pause;
};

// A flow's last acknowledgement has come back.
struct Acknowledgement {
    FlowRef flow;
    TimePs at_ps;
};

// What looking for steady states has taken.
struct LookEffort {
    std::uint64_t instants = 0;  // at which there was a question whether to look
    std::uint64_t units = 0;     // links and queue pairs that were gone through
};

class PacketCarrier : public Carrier {
  public:
    virtual LinkFigures figures() = 0;
    // [links] most bytes that have waited in one queue.
    virtual std::vector<std::int64_t> largest_queues_bytes() const = 0;
    virtual std::uint64_t packet_hops() const = 0;
    // Time that was skipped because nothing would have changed.
    virtual TimePs skipped_ps() const = 0;
    virtual LookEffort look_effort() const = 0;
    // Samples all links now and every `interval_ps` while anything is under way; 0 ends it.
    virtual void sample_every(TimePs interval_ps) = 0;
    virtual const TimeSeries& time_series() const = 0;
    // Keeps pauses and acknowledgements from now on.
    virtual void keep_log(bool is_kept) = 0;
    virtual const std::vector<PauseEvent>& pauses() const = 0;
    virtual const std::vector<Acknowledgement>& acknowledgements() const = 0;
    virtual void set_link_up(LinkId link, bool is_up, TimePs now_ps) = 0;
    virtual void set_capacity_share(LinkId link, double share, TimePs now_ps) = 0;
    virtual void set_storm(LinkId link, std::uint8_t priority, bool is_storming, TimePs now_ps) = 0;
};

}  // namespace netsim::roce
