// Max-min fair sharing by progressive filling, re-solved only where a change can matter.
#pragma once

#include <utility>

#include "rate_policy.hpp"

namespace netsim {

// Progressive filling (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2): the link with the smallest equal
// share saturates first and fixes its flows at that share; it is taken out with them, and so on. A flow with a cap is
// fixed at the cap where the filling comes there first, as if it also crossed a link of its own of that capacity.
//
// Two facts keep a re-solve small, and both leave the result exactly that of a complete one:
// - Filling proceeds in the order of rates. A departure of a flow of rate r changes nothing below r, and an arrival
//   or a change of capacity nothing below the link's capacity divided by its flows. Slower flows keep their rates.
// - What remains falls apart into connected components of links and flows; only those that were touched are solved.
//
// Rates are whole units, rounded down, so allocations are always feasible and do not depend on any order.
class MaxMin final : public RatePolicy {
  public:
    explicit MaxMin(std::size_t links);

    void on_start(const ActiveFlows& flows, Slot slot) override;
    void on_stop(const ActiveFlows& flows, Slot slot) override;
    void on_capacity(const ActiveFlows& flows, LinkId link, Rate available) override;
    void reassign(const ActiveFlows& flows, std::vector<RateChange>& changes) override;

  private:
    struct LinkState {
        std::uint64_t epoch = 0;    // of the last re-solve that reached this link
        Rate residual = 0;          // capacity not yet given to fixed flows
        std::uint32_t unfixed = 0;  // flows not yet fixed
    };
    struct FlowState {
        std::uint64_t epoch = 0;
        bool is_fixed = false;
    };
    using Share = std::pair<Rate, LinkId>;

    using Cap = std::pair<Rate, Slot>;

    Rate unchanged_below(const ActiveFlows& flows) const;
    void collect_components(const ActiveFlows& flows, Rate unchanged_below);
    void visit(LinkId link);
    void collect_flows_of(const ActiveFlows& flows, LinkId link, Rate unchanged_below);
    void fill(const ActiveFlows& flows, std::vector<RateChange>& changes);
    void replace_smallest(Share entry);
    void fix_flows_of(const ActiveFlows& flows, LinkId link, Rate share, std::vector<RateChange>& changes);
    void fix(const ActiveFlows& flows, Slot slot, Rate rate, std::vector<RateChange>& changes);

    std::vector<LinkId> touched_;  // links whose flows or capacity changed
    std::vector<LinkId> loaded_;   // those of them that got flows or another capacity
    Rate slowest_departed_ = kUnassignedRate;
    std::vector<std::pair<LinkId, Rate>> previous_available_;

    std::uint64_t epoch_ = 0;
    std::vector<LinkState> links_;
    std::vector<FlowState> flows_;
    std::vector<LinkId> reached_;  // links of the components being solved
    std::vector<Share> shares_;    // heap, smallest share first
    std::vector<Cap> caps_;        // of the flows being solved, sorted before filling
};

}  // namespace netsim
