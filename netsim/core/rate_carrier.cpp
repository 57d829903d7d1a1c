#include "rate_carrier.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace netsim {

namespace {

double to_bytes(Work work, Work per_byte) {
    return static_cast<double>(work / per_byte) + static_cast<double>(work % per_byte) / static_cast<double>(per_byte);
}

}  // namespace

RateCarrier::RateCarrier(const Network& network, Routing& routing, std::unique_ptr<RatePolicy> policy,
                         std::optional<WireFormat> format)
    : network_(network),
      loads_(network, routing, format),
      policy_(std::move(policy)),
      active_(network, loads_.rate_units_per_bps()),
      drains_(network.link_count()),
      records_(network.link_count()) {}

Carrier::Ticket RateCarrier::start(FlowRef flow, const Path& path, const Demand& demand, TimePs now_ps) {
    const Shipment shipment = loads_.shipment(path, demand);
    const Slot slot = active_.add(shipment.load);
    if (slot >= transfers_.size()) transfers_.resize(slot + 1);
    transfers_[slot] = {shipment.amount, shipment.tail_ps, flow};
    drains_.insert(slot, shipment.amount);
    longest_tail_ps_ = std::max(longest_tail_ps_, shipment.tail_ps);
    for (const auto [link, weight] : active_.hops(slot)) {
        if (active_.on_link(link).size() == 1) records_[link].busy_since_ps = now_ps;
    }
    policy_->on_start(active_, slot);
    return slot;
}

void RateCarrier::stop(Ticket ticket, TimePs now_ps) {
    const Work left = drains_.left(ticket, now_ps);
    drains_.remove(ticket, now_ps);
    release(ticket, transfers_[ticket].amount - left, now_ps);
}

TimePs RateCarrier::run(TimePs until_ps, Progress& progress) {
    const TimePs now_ps = std::min(until_ps, next_event_ps());
    done_.clear();
    drains_.pop(now_ps, done_);
    for (const Slot slot : done_) {
        progress.left.push_back(transfers_[slot].flow);
        progress.delivered.push_back({transfers_[slot].flow, now_ps + transfers_[slot].tail_ps});
        release(slot, transfers_[slot].amount, now_ps);
    }
    return now_ps;
}

void RateCarrier::settle(TimePs now_ps) {
    changes_.clear();
    policy_->reassign(active_, changes_);
    for (const LimiterChange change : changes_.limiters) drains_.assign(change.slot, change.limiter, now_ps);
    for (const RateChange change : changes_.rates) drains_.set_rate(change.limiter, change.rate, now_ps);
    // What would arrive after the end of the clock never does.
    drains_.settle(now_ps, kNever - 1 - longest_tail_ps_);
}

LinkTotals RateCarrier::totals(TimePs now_ps) const {
    LinkTotals totals;
    for (LinkId link = 0; link < records_.size(); ++link) {
        Work carried = records_[link].carried;
        for (const Crossing crossing : active_.on_link(link)) {
            carried += (transfers_[crossing.slot].amount - drains_.left(crossing.slot, now_ps)) * crossing.weight;
        }
        totals.carried_bytes.push_back(to_bytes(carried, loads_.work_per_byte()));
        const bool is_busy = !active_.on_link(link).empty();
        totals.busy_ps.push_back(records_[link].busy_ps + (is_busy ? now_ps - records_[link].busy_since_ps : 0));
    }
    return totals;
}

void RateCarrier::set_background_bps(const std::vector<LinkId>& links, const std::vector<double>& rates_bps) {
    std::vector<Rate> available(links.size());
    for (std::size_t i = 0; i < links.size(); ++i) available[i] = available_beside(links[i], rates_bps[i]);
    for (std::size_t i = 0; i < links.size(); ++i) {
        if (available[i] == active_.available(links[i])) continue;
        policy_->on_capacity(active_, links[i], available[i]);
        active_.set_available(links[i], available[i]);
    }
}

Rate RateCarrier::available_beside(LinkId link, double background_bps) const {
    const std::int64_t capacity_bps = network_.link(link).capacity_bps;
    const auto capacity = static_cast<double>(capacity_bps);
    // Sums of rates in floating point may exceed the capacity by their rounding.
    if (!(background_bps >= 0 && background_bps <= capacity * (1 + 1e-9))) {
        throw MisuseError("background of link " + std::to_string(link) + ": found " + std::to_string(background_bps) +
                          " bit/s, expected 0 to " + std::to_string(capacity_bps));
    }
    const auto taken = static_cast<Rate>(std::ceil(background_bps * static_cast<double>(active_.rate_units_per_bps())));
    return std::max(Rate{0}, capacity_bps * active_.rate_units_per_bps() - taken);
}

double RateCarrier::link_rate_bps(LinkId link) const {
    Work sum = 0;
    for (const Crossing crossing : active_.on_link(link)) sum += Work{drains_.rate(crossing.slot)} * crossing.weight;
    return static_cast<double>(sum) / static_cast<double>(active_.rate_units_per_bps());
}

void RateCarrier::release(Slot slot, Work carried, TimePs now_ps) {
    policy_->on_stop(active_, slot);
    for (const auto [link, weight] : active_.hops(slot)) {
        records_[link].carried += carried * weight;
        if (active_.on_link(link).size() == 1) records_[link].busy_ps += now_ps - records_[link].busy_since_ps;
    }
    active_.remove(slot);
}

}  // namespace netsim
