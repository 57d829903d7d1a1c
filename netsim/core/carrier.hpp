// What the executor needs from anything that moves bytes: rates on links today, packets tomorrow.
#pragma once

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

// What a flow asks for: at least one byte, and no more than a rate where that is not 0.
struct Demand {
    std::int64_t size_bytes;
    std::int64_t max_rate_bps;
};

struct LinkTotals {
    std::vector<double> carried_bytes;
    std::vector<TimePs> busy_ps;
};

// Carries started flows from source to destination. Time is the executor's: every call names the instant, which
// never decreases and is never beyond next_event_ps(). `start` and `stop` may be called many times at one instant;
// `settle` then says that the instant is over, and only after it may next_event_ps() be asked.
class Carrier {
  public:
    using Ticket = std::uint32_t;

    virtual ~Carrier() = default;
    // Starts a flow between different nodes; the ticket names it until delivered or stopped.
    virtual Ticket start(FlowRef flow, const Path& path, Demand demand, TimePs now_ps) = 0;
    virtual void stop(Ticket ticket, TimePs now_ps) = 0;
    // Runs the carrier's own events of this instant and appends what they deliver, in a deterministic order.
    virtual void run(TimePs now_ps, std::vector<Delivery>& delivered) = 0;
    virtual void settle(TimePs now_ps) = 0;
    // kNever where nothing will happen by itself.
    virtual TimePs next_event_ps() const = 0;
    virtual LinkTotals totals(TimePs now_ps) const = 0;
};

}  // namespace netsim
