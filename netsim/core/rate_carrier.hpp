// Carries flows as fluids: each drains at the rate its policy gives, and arrives a path latency later.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "drain_groups.hpp"
#include "rate_policy.hpp"
#include "wire_load.hpp"

namespace netsim {

// Draining is exact: what is left of a flow is kept in integer work, rates are integers, and a drain ends at the
// first whole picosecond by which all work is done. A flow counts as carried by all links of its path while it drains.
class RateCarrier final : public Carrier {
  public:
    RateCarrier(const Network& network, Routing& routing, std::unique_ptr<RatePolicy> policy,
                std::optional<WireFormat> format = std::nullopt);

    Ticket start(FlowRef flow, const Path& path, const Demand& demand, TimePs now_ps) override;
    void stop(Ticket ticket, TimePs now_ps) override;
    TimePs run(TimePs until_ps, Progress& progress) override;
    void settle(TimePs now_ps) override;
    TimePs next_event_ps() override { return drains_.next_ps(); }
    LinkTotals totals(TimePs now_ps) const override;

    // Takes part of the links' capacities for traffic that is not simulated; effective at the next `settle`.
    void set_background_bps(const std::vector<LinkId>& links, const std::vector<double>& rates_bps);
    // Rate of the simulated flows on a link.
    double link_rate_bps(LinkId link) const;

  private:
    struct Transfer {
        Work amount;     // to be sent
        TimePs tail_ps;  // from the last byte sent to its arrival
        FlowRef flow;
    };
    struct LinkRecord {
        Work carried = 0;    // by flows that are no longer active
        TimePs busy_ps = 0;  // before the present busy period
        TimePs busy_since_ps = 0;
    };

    Rate available_beside(LinkId link, double background_bps) const;
    void release(Slot slot, Work carried, TimePs now_ps);

    const Network& network_;
    WireLoads loads_;
    std::unique_ptr<RatePolicy> policy_;
    ActiveFlows active_;
    std::vector<Transfer> transfers_;  // [slot]
    DrainGroups drains_;
    std::vector<LinkRecord> records_;
    TimePs longest_tail_ps_ = 0;
    std::vector<Slot> done_;
    Reassignment changes_;
};

}  // namespace netsim
