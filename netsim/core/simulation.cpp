#include "simulation.hpp"

#include <string>

#include "max_min.hpp"

namespace netsim {

namespace {

std::unique_ptr<RatePolicy> make_policy(Sharing sharing, std::size_t links) {
    if (sharing == Sharing::max_min) return std::make_unique<MaxMin>(links);
    return std::make_unique<Uncontended>();
}

}  // namespace

FlowSimulation::FlowSimulation(Network network, Sharing sharing)
    : network_(std::move(network)),
      routing_(network_),
      carrier_(network_, make_policy(sharing, network_.link_count())),
      executor_(routing_, carrier_) {}

FlowSimulation::Lease::Lease(FlowSimulation& simulation) : simulation_(simulation) {
    if (simulation.is_in_use_.test_and_set()) {
        throw MisuseError("backend: found a call while another thread is inside, expected one thread at a time");
    }
}

LinkTotals FlowSimulation::totals() {
    const Lease lease(*this);
    return carrier_.totals(executor_.now_ps());
}

std::vector<double> FlowSimulation::link_rates_bps() {
    const Lease lease(*this);
    return carrier_.link_rates_bps();
}

void FlowSimulation::set_background_bps(const std::vector<std::int64_t>& links, const std::vector<double>& rates_bps) {
    const Lease lease(*this);
    if (links.size() != rates_bps.size()) {
        throw MisuseError("set_background_bps: found " + std::to_string(rates_bps.size()) +
                          " rates, expected one for each of " + std::to_string(links.size()) + " links");
    }
    std::vector<LinkId> ids;
    for (const std::int64_t link : links) {
        if (link < 0 || link >= static_cast<std::int64_t>(network_.link_count())) {
            throw MisuseError("set_background_bps: found link " + std::to_string(link) + ", expected 0 to " +
                              std::to_string(network_.link_count() - 1));
        }
        ids.push_back(static_cast<LinkId>(link));
    }
    carrier_.set_background_bps(ids, rates_bps);
    carrier_.settle(executor_.now_ps());
}

}  // namespace netsim
