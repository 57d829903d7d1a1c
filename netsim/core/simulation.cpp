#include "simulation.hpp"

#include <string>

#include "max_min.hpp"

namespace netsim {

namespace {

std::unique_ptr<RatePolicy> make_policy(Sharing sharing, std::size_t links, double rate_tolerance) {
    if (!(rate_tolerance >= 0 && rate_tolerance < 1)) {
        throw MisuseError("rate_tolerance: found " + std::to_string(rate_tolerance) +
                          ", expected 0 or more and below 1");
    }
    if (sharing == Sharing::max_min) return std::make_unique<MaxMin>(links, rate_tolerance);
    return std::make_unique<Uncontended>();
}

}  // namespace

Simulation::Simulation(Network network, std::uint32_t ecmp_seed)
    : network_(std::move(network)), routing_(network_, ecmp_seed) {}

void Simulation::carry_with(std::unique_ptr<Carrier> carrier) {
    carrier_ = std::move(carrier);
    executor_ = std::make_unique<Executor>(routing_, *carrier_);
}

LinkTotals Simulation::totals(const std::optional<std::vector<std::int64_t>>& links) {
    const Lease lease(*this);
    std::vector<LinkId> ids(links ? links->size() : network_.link_count());
    for (std::size_t i = 0; i < ids.size(); ++i) {
        ids[i] = links ? checked_link((*links)[i], "link_totals") : static_cast<LinkId>(i);
    }
    return carrier_->totals(ids, now_inside_ps());
}

std::shared_ptr<LinkLog> Simulation::log_links(std::int64_t windows, TimePs window_ps) {
    const Lease lease(*this);
    auto log = std::make_shared<LinkLog>(network_.link_count(), windows, window_ps);
    carrier_->log_links(log, now_inside_ps());
    return log;
}

void Simulation::update_link_log() {
    const Lease lease(*this);
    carrier_->update_link_log(now_inside_ps());
}

CanonicalGraph Simulation::canonical(const FlowGraph& graph, bool names_by_use) {
    const Lease lease(*this);
    return canonical_graph(network_, routing_, graph, names_by_use);
}

LinkId Simulation::checked_link(std::int64_t link, const char* call) const {
    if (link < 0 || link >= static_cast<std::int64_t>(network_.link_count())) {
        throw MisuseError(std::string(call) + ": found link " + std::to_string(link) + ", expected 0 to " +
                          std::to_string(network_.link_count() - 1));
    }
    return static_cast<LinkId>(link);
}

void Simulation::check_capacity_share(double share) {
    if (share > 0 && share <= 1) return;
    throw MisuseError("set_capacity_share: found " + std::to_string(share) + ", expected above 0 and at most 1");
}

FlowSimulation::FlowSimulation(Network network, Sharing sharing, std::optional<WireFormat> format,
                               double rate_tolerance)
    : Simulation(std::move(network)) {
    auto carrier = std::make_unique<RateCarrier>(
        this->network(), routing(), make_policy(sharing, this->network().link_count(), rate_tolerance), format);
    carrier_ = carrier.get();
    carry_with(std::move(carrier));
}

std::vector<double> FlowSimulation::link_rates_bps(const std::optional<std::vector<std::int64_t>>& links) {
    const Lease lease(*this);
    std::vector<double> rates(links ? links->size() : network().link_count());
    for (std::size_t i = 0; i < rates.size(); ++i) {
        rates[i] =
            carrier_->link_rate_bps(links ? checked_link((*links)[i], "link_rates_bps") : static_cast<LinkId>(i));
    }
    return rates;
}

void FlowSimulation::set_background_bps(const std::vector<std::int64_t>& links, const std::vector<double>& rates_bps) {
    const Lease lease(*this);
    if (links.size() != rates_bps.size()) {
        throw MisuseError("set_background_bps: found " + std::to_string(rates_bps.size()) +
                          " rates, expected one for each of " + std::to_string(links.size()) + " links");
    }
    std::vector<LinkId> ids;
    for (const std::int64_t link : links) ids.push_back(checked_link(link, "set_background_bps"));
    carrier_->set_background_bps(ids, rates_bps);
    carrier_->settle(now_inside_ps());
}

void FlowSimulation::set_link_up(std::int64_t link, bool is_up) {
    const Lease lease(*this);
    carrier_->set_link_up(checked_link(link, "set_link_up"), is_up, now_inside_ps());
    carrier_->settle(now_inside_ps());
    if (periodic_) periodic_->reroute();
}

void FlowSimulation::set_capacity_share(std::int64_t link, double share) {
    const Lease lease(*this);
    check_capacity_share(share);
    const LinkId id = checked_link(link, "set_capacity_share");
    if (periodic_) periodic_->share_changes(id, carrier_->capacity_share(id), share);
    carrier_->set_capacity_share(id, share);
    carrier_->settle(now_inside_ps());
}

PeriodicLoads& FlowSimulation::load_periodically(std::size_t sources) {
    auto lease = executor();
    // Called by the loads, never while the executor is leased.
    const auto take_share = [this](TimePs at_ps, const std::vector<LinkId>& links,
                                   const std::vector<double>& rates_bps) {
        auto inside = executor();
        if (inside->now_ps() < at_ps && !inside->advance(at_ps).empty()) {
            throw MisuseError("share_links: found a completion before " + std::to_string(at_ps) +
                              " ps, expected a network that has nothing to do before");
        }
        carrier_->set_background_bps(links, rates_bps);
        carrier_->settle(inside->now_ps());
    };
    periodic_ = std::make_unique<PeriodicTraffic>(sources, network(), routing(), *carrier_, take_share);
    lease->tell(periodic_.get());
    return *periodic_;
}

PacketSimulation::PacketSimulation(Network network, std::uint32_t ecmp_seed, const roce::Parameters& parameters,
                                   const MakeCarrier& make_carrier)
    : Simulation(std::move(network), ecmp_seed) {
    auto carrier = make_carrier(this->network(), routing(), parameters);
    carrier_ = carrier.get();
    carry_with(std::move(carrier));
}

roce::LinkFigures PacketSimulation::figures() {
    const Lease lease(*this);
    return carrier_->figures();
}

std::vector<std::int64_t> PacketSimulation::largest_queues_bytes() {
    const Lease lease(*this);
    return carrier_->largest_queues_bytes();
}

std::uint64_t PacketSimulation::packet_hops() {
    const Lease lease(*this);
    return carrier_->packet_hops();
}

TimePs PacketSimulation::skipped_ps() {
    const Lease lease(*this);
    return carrier_->skipped_ps();
}

roce::LookEffort PacketSimulation::look_effort() {
    const Lease lease(*this);
    return carrier_->look_effort();
}

void PacketSimulation::sample_every(TimePs interval_ps) {
    const Lease lease(*this);
    if (interval_ps < 0) {
        throw MisuseError("sample_every: found " + std::to_string(interval_ps) + " ps, expected 0 (off) or more");
    }
    carrier_->sample_every(interval_ps);
}

void PacketSimulation::keep_log(bool is_kept) {
    const Lease lease(*this);
    carrier_->keep_log(is_kept);
}

const roce::TimeSeries& PacketSimulation::time_series() {
    const Lease lease(*this);
    return carrier_->time_series();
}

const std::vector<roce::PauseEvent>& PacketSimulation::pauses() {
    const Lease lease(*this);
    return carrier_->pauses();
}

const std::vector<roce::Acknowledgement>& PacketSimulation::acknowledgements() {
    const Lease lease(*this);
    return carrier_->acknowledgements();
}

void PacketSimulation::set_link_up(std::int64_t link, bool is_up) {
    const Lease lease(*this);
    carrier_->set_link_up(checked_link(link, "set_link_up"), is_up, now_inside_ps());
}

void PacketSimulation::set_capacity_share(std::int64_t link, double share) {
    const Lease lease(*this);
    check_capacity_share(share);
    carrier_->set_capacity_share(checked_link(link, "set_capacity_share"), share, now_inside_ps());
}

void PacketSimulation::set_storm(std::int64_t link, std::int64_t priority, bool is_storming) {
    const Lease lease(*this);
    if (priority <= roce::kControlPriority || priority >= roce::kPriorities) {
        throw MisuseError("set_storm: found priority " + std::to_string(priority) + ", expected 1 to 7");
    }
    carrier_->set_storm(checked_link(link, "set_storm"), static_cast<std::uint8_t>(priority), is_storming,
                        now_inside_ps());
}

}  // namespace netsim
