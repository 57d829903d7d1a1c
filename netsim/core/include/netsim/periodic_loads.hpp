// Periodic loads: traffic that repeats, on the same links as flow graphs.
//
// Model. A load of period P puts B_l bytes on link l in every period, by n_l flows at a time, which takes tau_l on an
// idle fabric: B_l / cap_l, or longer where its flows have a lower rate of their own (protocol, sender, another link of
// their path). Meanwhile it shares the link with the m_l queues of flows of submitted graphs, if these could use what
// it gets, and with other sources j, which are there a share B_jl / (cap_l P_j) of the time. It gets the larger of
//
// - its fair share of the capacity, n_l / (n_l + m_l + sum_j n_jl B_jl / (cap_l P_j)), and
// - what is left over, unless the flows take whatever they find: cap_l less their rate and sum_j B_jl / P_j.
//
// Its communication grows by the largest B_l / what it gets - tau_l of its links, if that is positive: a load that
// leaves a part of the link unused anyway loses nothing to a flow that fits into it. Flows see loads as their mean
// B_l / P, in all at most 0.9 of the link.
//
// Ignored: where in its period a load is (flows see a mean, not bursts; two links of a flow are never busy by turns),
// queues, and what congestion control loses.
#pragma once

#include <memory>
#include <netsim/types.hpp>
#include <optional>
#include <vector>

namespace netsim {

// What one period puts on the links that it touches. [touched links]
struct LinkLoad {
    std::vector<std::int64_t> links;  // rising
    std::vector<double> link_bytes;
    std::vector<double> link_flows;    // mean number of flows while there is one
    std::vector<double> link_busy_ps;  // time for which there is one, on an idle fabric
};

// Sources of loads are numbered by their owner, from 0 on; several loads of one source may be placed at a time. Whoever
// places loads asks for their slow-down, gives them a longer period and places them again until nothing changes by
// much: both sides in turn, at one instant.
class PeriodicLoads {
  public:
    // What loads have of a link over what they may, and the sources that are there.
    struct Excess {
        double factor;
        std::vector<std::int32_t> sources;
    };

    virtual ~PeriodicLoads() = default;

    // Loads are known by their numbers, from 0 on, in the order in which they are added.
    virtual void add(std::shared_ptr<const LinkLoad> load) = 0;
    // The source may place a load.
    virtual void announce(std::int32_t source, std::int32_t load) = 0;

    // Whether links of the source carry other traffic, or less than usual.
    virtual bool is_affected(std::int32_t source) const = 0;
    // Sources that have been affected since the last call or are now, rising.
    virtual std::vector<std::int32_t> take_affected() = 0;
    // Whether a submitted graph has flows on some link.
    virtual bool has_flows() const = 0;

    // By how much longer a load of `idle_ps` on an idle fabric takes with what others have on its links.
    virtual double slowdown(std::int32_t load, TimePs idle_ps) const = 0;
    // Puts a load on its links once in every period.
    virtual void place(std::int32_t source, std::int32_t load, TimePs period_ps) = 0;
    // Takes all loads of a source off their links.
    virtual void withdraw(std::int32_t source) = 0;
    // Whether what is on links where sources meet has changed by much since the last call.
    virtual bool take_shift() = 0;
    // A link on which loads are more than it can carry, or more than they may leave to flows; nothing where none is.
    virtual std::optional<Excess> excess() = 0;

    // Loads see the rates that flows have now from here on.
    virtual void read_flow_rates() = 0;
    // Whether flows still have the rates that loads see, up to a change that is left alone.
    virtual bool do_flow_rates_hold() = 0;
    // Flows give way to what is placed now: the network is brought to this instant for it where that is needed.
    virtual void share_links(TimePs now_ps) = 0;
};

}  // namespace netsim
