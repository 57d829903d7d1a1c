// What the executor needs from anything that moves bytes: as rates on links, or as packets.
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

// The last byte of a flow arrives at its destination, now or later.
struct Delivery {
    FlowRef flow;
    TimePs arrives_at_ps;
};

// A flow will never be delivered.
struct Loss {
    FlowRef flow;
    std::int64_t sent_bytes;  // what got through
};

// What a carrier reports of an instant, in a deterministic order.
struct Progress {
    std::vector<FlowRef> left;  // the last byte has been sent; only of flows that want to know
    std::vector<Delivery> delivered;
    std::vector<Loss> failed;

    bool empty() const { return left.empty() && delivered.empty() && failed.empty(); }
    void clear() {
        left.clear();
        delivered.clear();
        failed.clear();
    }
};

// What a flow asks for: at least one byte, and no more than a rate where that is not 0.
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

// Carries started flows from source to destination. Time is the executor's: every call names the instant, which
// never decreases. `start` and `stop` may be called many times at one instant; `settle` then says that the instant is
// over, and only after it may `run` or next_event_ps() be called.
class Carrier {
  public:
    using Ticket = std::uint32_t;

    virtual ~Carrier() = default;
    // Throws MisuseError for a path that it cannot carry flows over; asked before any of them starts.
    virtual void check(const Path& /*path*/) const {}
    // Starts a flow between different nodes; the ticket names it until delivered, failed or stopped.
    virtual Ticket start(FlowRef flow, const Path& path, const Demand& demand, TimePs now_ps) = 0;
    virtual void stop(Ticket ticket, TimePs now_ps) = 0;
    // What has got through of a flow that was neither delivered nor reported as failed.
    virtual std::int64_t sent_bytes(Ticket ticket, TimePs now_ps) = 0;
    // Runs own events up to `until_ps`, but no further than the first instant with progress, all of which is appended.
    // Returns the instant reached.
    virtual TimePs run(TimePs until_ps, Progress& progress) = 0;
    virtual void settle(TimePs now_ps) = 0;
    // kNever where nothing will happen by itself.
    virtual TimePs next_event_ps() = 0;
    // From now on, what links carry is added to the log, in the window in which they carry it.
    virtual void log_links(std::shared_ptr<LinkLog> log, TimePs now_ps) = 0;
    // Brings the log up to this instant.
    virtual void update_link_log(TimePs now_ps) = 0;
    // Of some links, in their order.
    virtual LinkTotals totals(std::span<const LinkId> links, TimePs now_ps) const = 0;
};

}  // namespace netsim
