// Interface between the executor and what moves the bytes: fluid flows on links, or packets.
#pragma once

#include <memory>
#include <netsim/link_log.hpp>
#include <span>
#include <vector>

#include "flow_graph.hpp"
#include "routing.hpp"

namespace netsim {

// A flow of a submitted graph.
struct FlowRef {
    std::uint32_t graph;
    FlowIndex flow;
};

// Arrival of the last byte of a flow at its destination, now or later.
struct Delivery {
    FlowRef flow;
    TimePs arrives_at_ps;
};

// A flow that will never be delivered.
struct Loss {
    FlowRef flow;
    std::int64_t sent_bytes;  // delivered before that
};

// Report of a carrier on one instant, in a deterministic order.
struct Progress {
    std::vector<FlowRef> left;  // last byte sent; only flows with Demand::wants_departure
    std::vector<Delivery> delivered;
    std::vector<Loss> failed;

    bool empty() const { return left.empty() && delivered.empty() && failed.empty(); }
    void clear() {
        left.clear();
        delivered.clear();
        failed.clear();
    }
};

// Demand of a flow: at least one byte; a rate limit where max_rate_bps is not 0.
struct Demand {
    NodeId src, dst;
    std::uint32_t flow_label;
    std::int64_t size_bytes;
    std::int64_t max_rate_bps;
    std::uint8_t priority;
    Traffic traffic;
    bool wants_departure;  // a flow behind it waits for its last byte to be sent
};

struct LinkTotals {
    std::vector<double> carried_bytes;
    std::vector<TimePs> busy_ps;
};

// Carries started flows from source to destination. The executor owns the clock: every call names the instant, which
// never decreases. `start` and `stop` may be called many times at one instant; `settle` then ends the instant, and
// only after it may `run` or next_event_ps() be called.
class Carrier {
  public:
    using Ticket = std::uint32_t;

    virtual ~Carrier() = default;
    // Throws MisuseError for a path over which this carrier cannot carry flows; called before any flow starts.
    virtual void check(const Path& /*path*/) const {}
    // Starts a flow between different nodes; the ticket names it until delivered, failed or stopped.
    virtual Ticket start(FlowRef flow, const Path& path, const Demand& demand, TimePs now_ps) = 0;
    virtual void stop(Ticket ticket, TimePs now_ps) = 0;
    // Bytes delivered so far of a flow that was neither delivered in whole nor reported as failed.
    virtual std::int64_t sent_bytes(Ticket ticket, TimePs now_ps) = 0;
    // Runs the carrier's own events up to `until_ps`, but no further than the first instant with progress, and appends
    // all progress of that instant. Returns the instant reached.
    virtual TimePs run(TimePs until_ps, Progress& progress) = 0;
    virtual void settle(TimePs now_ps) = 0;
    // kNever where nothing will happen by itself.
    virtual TimePs next_event_ps() = 0;
    // Books bytes that links carry from now on in the log, in the window in which they are carried.
    virtual void log_links(std::shared_ptr<LinkLog> log, TimePs now_ps) = 0;
    // Brings the log up to this instant.
    virtual void update_link_log(TimePs now_ps) = 0;
    // Totals of some links, in the order given.
    virtual LinkTotals totals(std::span<const LinkId> links, TimePs now_ps) const = 0;
};

}  // namespace netsim
