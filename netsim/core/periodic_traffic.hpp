// The periodic loads of a network that moves flows at rates.
#pragma once

#include <functional>
#include <map>
#include <netsim/periodic_loads.hpp>
#include <set>
#include <unordered_set>
#include <utility>

#include "executor.hpp"
#include "rate_carrier.hpp"

namespace netsim {

// Capacity, rates and the share that loads take of links are the carrier's; which links graphs have flows on follows
// from what the executor runs. Flows that queue behind one another are there one at a time, so a queue counts once, on
// the path of its first flow, as long as its graph runs.
class PeriodicTraffic final : public PeriodicLoads, public GraphObserver {
  public:
    // Brings the network to an instant and takes these shares of links from flows there.
    using TakeShare = std::function<void(TimePs, const std::vector<LinkId>&, const std::vector<double>&)>;

    PeriodicTraffic(std::size_t sources, const Network& network, Routing& routing, const RateCarrier& carrier,
                    TakeShare take_share);

    void add(std::shared_ptr<const LinkLoad> load) override { loads_.push_back(std::move(load)); }
    void announce(std::int32_t source, std::int32_t load) override;
    bool is_affected(std::int32_t source) const override;
    std::vector<std::int32_t> take_affected() override;
    bool has_flows() const override { return !flow_links_.empty(); }
    double slowdown(std::int32_t load, TimePs idle_ps) const override;
    void place(std::int32_t source, std::int32_t load, TimePs period_ps) override;
    void withdraw(std::int32_t source) override;
    bool take_shift() override { return std::exchange(has_shifted_, false); }
    std::optional<Excess> excess() override;
    void read_flow_rates() override;
    bool do_flow_rates_hold() override;
    void share_links(TimePs now_ps) override;

    void begins(Handle graph, const FlowGraph& flows) override;
    void ends(Handle graph) override;
    // Links have failed or returned: flows are taken to use the paths that hold now.
    void reroute();
    // A link is about to have, or has, another share of its capacity.
    void share_changes(LinkId link, double old_share, double share);

  private:
    struct Placed {
        std::int32_t load;
        TimePs period_ps;
        std::vector<double> mean_flows;  // [links of the load]
    };
    struct Source {
        std::unordered_set<std::int32_t> loads;  // that it has announced
        std::unordered_set<std::int64_t> links;  // of these
        std::vector<Placed> placed;
        std::int64_t queues = 0;    // pairs of a link of its own and a queue of flows on it
        std::int64_t degraded = 0;  // links of its own with less than their capacity
        bool meets = false;         // another source uses one of its links
        bool is_noted = false;
    };
    struct LinkUse {
        double mean_bps = 0.0, mean_flows = 0.0;  // of the loads on it
        double noted_flows = 0.0;                 // of them, at the last shift
        double flow_rate_bps = 0.0;               // of the queues of flows, as loads see it
        std::int64_t queues = 0;
        std::size_t flow_place = 0;  // in `flow_links_`, while there are some
        std::vector<std::int32_t> users;
        bool is_unshared = false;
    };
    // Where a graph has queues of flows: those with the same ends and label are one, as if one waited for the other.
    struct OnLinks {
        std::set<std::pair<std::pair<NodeId, NodeId>, std::uint32_t>> heads;  // ends and flow label
        std::map<LinkId, std::int64_t> queues;
    };

    Source& at(std::int32_t source) { return sources_[static_cast<std::size_t>(source)]; }
    const Source& at(std::int32_t source) const { return sources_[static_cast<std::size_t>(source)]; }
    LinkUse& use(std::int64_t link) { return uses_[static_cast<std::size_t>(link)]; }
    const LinkUse& use(std::int64_t link) const { return uses_[static_cast<std::size_t>(link)]; }
    const LinkLoad& load(std::int32_t number) const { return *loads_[static_cast<std::size_t>(number)]; }
    double capacity_bps(std::int64_t link) const;
    double most_bps(std::int64_t link) const;
    double needed_ps(const LinkLoad& own, std::size_t place) const;
    void put(const Placed& placed, double sign);
    void note_affected(std::int32_t source);
    void meets_others(std::int32_t source);
    void find_links(OnLinks& graph);
    void count(const OnLinks& graph, std::int64_t sign);

    const Network& network_;
    Routing& routing_;
    const RateCarrier& carrier_;
    TakeShare take_share_;
    std::vector<LinkUse> uses_;  // [links]
    std::vector<std::shared_ptr<const LinkLoad>> loads_;
    std::vector<Source> sources_;
    std::map<Handle, OnLinks> graphs_;  // that run
    std::vector<LinkId> flow_links_;    // links with queues of flows
    std::vector<std::int32_t> affected_;
    std::vector<std::int64_t> unshared_;  // links whose loads flows have not heard of
    std::vector<std::int64_t> overfull_;  // links that may be
    bool has_shifted_ = false;
};

}  // namespace netsim
