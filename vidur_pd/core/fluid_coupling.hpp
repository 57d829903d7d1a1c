// Coupling `fluid`: running iterations load the links they use, and slow down with what else is there.
//
// Model. An iteration of period P (compute, and communication T on an idle fabric) puts B_l bytes on link l, by n_l
// flows at a time, which takes tau_l on an idle fabric: B_l / cap_l, or longer where its flows have a lower rate of
// their own (protocol, GPU, another link of their path). Meanwhile it shares the link with the m_l flows of KV
// transfers, if they could use what it gets, and with those of other instances j, which are there a share
// B_jl / (cap_l P_j) of the time. It gets the larger of
//
// - its fair share of the capacity, n_l / (n_l + m_l + sum_j n_jl B_jl / (cap_l P_j)), and
// - what is left over, unless the transfers take whatever they find: cap_l less their rate and sum_j B_jl / P_j.
//
// Its communication grows by the largest B_l / what it gets - tau_l of its links, if that is positive: a collective
// that leaves a part of the link unused anyway loses nothing to a transfer that fits into it. Transfers see instances
// as a mean load B_l / P, in all at most `kMostBackground` of the link. Instances are updated when transfers on their
// links start or end or get another rate, and where instances share links with an iteration of any of them: both sides
// in turn until rates hold, at one instant. What is done of an iteration in progress is kept and the rest goes on at
// the new speed.
//
// Ignored: where in an iteration its collectives are (transfers see a mean, not bursts; two links of a transfer are
// never busy by turns), queues, and what congestion control loses.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "flight.hpp"

namespace serving {

using Links = std::vector<std::int64_t>;

// What the collectives of one iteration put on the links they touch. [touched links]
struct LinkLoad {
    Links links;
    std::vector<double> link_bytes;
    std::vector<double> link_flows;    // mean number of flows while there is one
    std::vector<double> link_busy_ps;  // time for which there is one, on an idle fabric
};

// A rate that instances take of each of some links.
struct LinkRates {
    Links links;
    std::vector<double> rates_bps;
};

// What instances take of a link, over what they may, and who they are.
struct Excess {
    double factor;
    std::vector<std::int32_t> instances;
};

class FluidCoupling {
  public:
    // `capacity_bps` is [links].
    FluidCoupling(std::vector<double> capacity_bps, std::size_t instances);

    // Loads are known by their numbers, in the order in which they are remembered.
    void remember(std::shared_ptr<const LinkLoad> load) { loads_.push_back(std::move(load)); }
    // The instance will put a load on its links.
    void uses(std::int32_t instance, std::int32_t load);

    // Flows of transfers on each of some links come, or go (negative numbers).
    void add_transfer(const Links& links, const std::vector<std::int64_t>& flows);
    // Links with transfers.
    const Links& transfer_links() const { return transfer_links_; }
    // Rates of the transfers on `transfer_links`.
    void set_rates(const std::vector<double>& rates_bps);

    // Links have these capacities from now on.
    void set_capacity(const Links& links, const std::vector<double>& capacity_bps);

    // Whether links of the instance carry other traffic, or less than usual.
    bool concerns(std::int32_t instance) const;
    // Instances that have been beside other traffic since the last call or are now, rising.
    std::vector<std::int32_t> take_concerned();

    // Stretch of each stage's communication, from what other instances and transfers have on its links.
    std::vector<double> stretches(const Flight& flight) const;
    // Takes the load of an instance off its links.
    void withdraw(std::int32_t instance);
    // Puts the load of a flight on its links: that of one iteration in every `period_ps`.
    void enter(const Flight& flight, TimePs period_ps);
    // Whether what is on links where instances meet has changed by much since the last call.
    bool take_shift() { return std::exchange(has_shifted_, false); }
    // A link on which instances would take more than it can carry, or more than they may leave to transfers; nothing
    // where there is none.
    std::optional<Excess> excess();
    // What instances take of links, where that has changed since the last call.
    LinkRates take_changed_background();

  private:
    // Share of a link that instances can take from transfers for good; our choice.
    static constexpr double kMostBackground = 0.9;

    struct Entered {
        std::int32_t load;
        TimePs period_ps;
        std::vector<double> mean_flows;  // [links of the load]
    };
    struct Instance {
        std::unordered_set<std::int32_t> loads;  // that it has used
        std::unordered_set<std::int64_t> links;  // of these
        std::vector<Entered> entered;
        std::int64_t transfers = 0;  // pairs of a link of its own and a flow of a transfer on it
        std::int64_t degraded = 0;   // links of its own with less than their capacity
        bool meets = false;          // another instance uses one of its links
        bool was_concerned = false;
    };
    struct Link {
        double nominal_bps;
        double capacity_bps;
        double mean_bps = 0.0, mean_flows = 0.0;  // of the instances whose load is on it
        double noted_flows = 0.0;                 // of them, at the last shift
        double told_bps = 0.0;                    // the part of `mean_bps` that transfers know of
        double rate_bps = 0.0;                    // of the transfers
        std::int64_t transfer_flows = 0;
        std::size_t transfer_place = 0;  // in `transfer_links_`, while there are some
        std::vector<std::int32_t> users;
        bool is_untold = false;

        // Most that instances may take.
        double limit_bps() const { return (transfer_flows > 0 ? kMostBackground : 1.0) * capacity_bps; }
    };

    Instance& at(std::int32_t instance) { return instances_[static_cast<std::size_t>(instance)]; }
    const Instance& at(std::int32_t instance) const { return instances_[static_cast<std::size_t>(instance)]; }
    Link& link(std::int64_t number) { return links_[static_cast<std::size_t>(number)]; }
    const Link& link(std::int64_t number) const { return links_[static_cast<std::size_t>(number)]; }
    const LinkLoad& load(std::int32_t number) const { return *loads_[static_cast<std::size_t>(number)]; }
    double stretch(const Stage& stage) const;
    double needed_ps(const LinkLoad& own, std::size_t place) const;
    void put(const Entered& entered, double sign);
    void note_concerned(std::int32_t instance);
    void meets_others(std::int32_t instance);

    std::vector<Link> links_;
    std::vector<std::shared_ptr<const LinkLoad>> loads_;
    std::vector<Instance> instances_;
    Links transfer_links_;
    std::vector<std::int32_t> concerned_;
    Links untold_;
    Links overfull_;  // links that may be
    bool has_shifted_ = false;
};

}  // namespace serving
