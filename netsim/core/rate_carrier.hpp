// Carrier of flows as fluids: each drains at the rate that the policy gives it, and arrives a path latency later.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "drain_groups.hpp"
#include "rate_policy.hpp"
#include "wire_load.hpp"

namespace netsim {

// Draining is exact: the rest of a flow is integer work, rates are integers, and a drain ends at the first whole
// picosecond by which all work is done. While a flow drains, all links of its path carry it.
//
// When a link fails or is repaired, flows continue at once over their new paths; bytes that have drained count as
// delivered. Flows that have no path any more fail, and so do those on an NVLink that failed and those that start
// without a path.
class RateCarrier final : public Carrier {
  public:
    RateCarrier(const Network& network, Routing& routing, std::unique_ptr<RatePolicy> policy,
                std::optional<WireFormat> format = std::nullopt);

    Ticket start(FlowRef flow, const Path& path, const Demand& demand, TimePs now_ps) override;
    void stop(Ticket ticket, TimePs now_ps) override;
    TimePs run(TimePs until_ps, Progress& progress) override;
    void settle(TimePs now_ps) override;
    TimePs next_event_ps() override { return failed_.empty() ? drains_.next_ps() : failed_at_ps_; }
    void log_links(std::shared_ptr<LinkLog> log, TimePs now_ps) override;
    void update_link_log(TimePs now_ps) override;
    LinkTotals totals(std::span<const LinkId> links, TimePs now_ps) const override;
    std::int64_t sent_bytes(Ticket ticket, TimePs now_ps) override;

    // Effective at the next `settle`.
    void set_link_up(LinkId link, bool is_up, TimePs now_ps);
    // Leaves a link this share of its capacity from the next `settle` on.
    void set_capacity_share(LinkId link, double share);
    // Takes part of the links' capacities for background traffic; effective at the next `settle`.
    void set_background_bps(const std::vector<LinkId>& links, const std::vector<double>& rates_bps);
    // Rate of the simulated flows on a link.
    double link_rate_bps(LinkId link) const;
    double capacity_share(LinkId link) const { return capacity_shares_[link]; }
    // Capacity of the link with its present share, background included.
    double capacity_bps(LinkId link) const {
        return capacity_shares_[link] * static_cast<double>(network_.link(link).capacity_bps);
    }
    double background_bps(LinkId link) const { return background_bps_[link]; }

  private:
    struct Transfer {
        Work amount;     // to be sent
        Work counted;    // part of the amount that is booked on the links that carried it
        TimePs tail_ps;  // from the last byte sent to its arrival
        FlowRef flow;
        Demand demand;
        bool is_active;
    };
    // A flow that has failed and has not been reported yet.
    struct Failure {
        Ticket ticket;  // kNoTicket where it never started
        Loss loss;
    };
    static constexpr Ticket kNoTicket = ~Ticket{0};
    struct LinkRecord {
        Work carried = 0;    // booked so far
        TimePs busy_ps = 0;  // before the present busy period
        TimePs busy_since_ps = 0;
    };

    Rate available_with(LinkId link, double background_bps) const;
    void set_available(LinkId link, Rate available);
    std::optional<Shipment> shipment_now(const Demand& demand);
    void move(Slot slot, const Shipment& shipment, TimePs now_ps);
    void fail(Slot slot, TimePs now_ps);
    void enter_links(Slot slot, TimePs now_ps);
    void leave_links(Slot slot, Work left, TimePs now_ps);
    bool book(Slot slot, Work left);
    bool book_active(TimePs now_ps);
    void log_whole_windows(TimePs now_ps);

    const Network& network_;
    Routing& routing_;
    WireLoads loads_;
    std::unique_ptr<RatePolicy> policy_;
    ActiveFlows active_;
    std::vector<Transfer> transfers_;  // [slot]
    DrainGroups drains_;
    std::vector<LinkRecord> records_;
    std::vector<double> capacity_shares_;  // [links] share of the capacity that the link has now
    std::vector<double> background_bps_;   // [links]
    std::shared_ptr<LinkLog> link_log_;    // none: links are not logged
    TimePs logged_ps_ = 0;                 // instant up to which the log is complete
    std::vector<Failure> failed_;
    TimePs failed_at_ps_ = 0;
    TimePs longest_tail_ps_ = 0;
    std::vector<Slot> done_;
    Reassignment changes_;
};

}  // namespace netsim
