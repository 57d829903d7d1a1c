#include "rate_carrier.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace netsim {

namespace {

double to_bytes(Work work) {
    return static_cast<double>(work / kWorkPerByte) +
           static_cast<double>(work % kWorkPerByte) / static_cast<double>(kWorkPerByte);
}

// No link is faster than kMaxCapacityBps, so that a larger cap is none.
Rate cap_of(const Demand& demand) {
    const bool is_capped = demand.max_rate_bps != 0 && demand.max_rate_bps <= kMaxCapacityBps;
    return is_capped ? demand.max_rate_bps * kRateUnitsPerBps : kUncapped;
}

}  // namespace

RateCarrier::RateCarrier(const Network& network, std::unique_ptr<RatePolicy> policy)
    : network_(network), policy_(std::move(policy)), active_(network), records_(network.link_count()) {}

Carrier::Ticket RateCarrier::start(FlowRef flow, const Path& path, const Demand& demand, TimePs now_ps) {
    const Slot slot = active_.add(path, cap_of(demand));
    if (slot >= transfers_.size()) transfers_.resize(slot + 1);
    const Work size = demand.size_bytes * kWorkPerByte;
    transfers_[slot] = {flow, size, size, now_ps};
    for (const LinkId link : path.links) {
        if (active_.on_link(link).size() == 1) records_[link].busy_since_ps = now_ps;
    }
    policy_->on_start(active_, slot);
    return slot;
}

void RateCarrier::stop(Ticket ticket, TimePs now_ps) {
    drains_.remove(ticket);
    release(ticket, transfers_[ticket].size - left_at(ticket, now_ps), now_ps);
}

TimePs RateCarrier::run(TimePs until_ps, Progress& progress) {
    const TimePs now_ps = std::min(until_ps, next_event_ps());
    while (!drains_.empty() && drains_.next_ps() <= now_ps) {
        const Slot slot = drains_.next();
        drains_.remove(slot);
        progress.left.push_back(transfers_[slot].flow);
        progress.delivered.push_back({transfers_[slot].flow, now_ps + active_.path(slot).latency_ps});
        release(slot, transfers_[slot].size, now_ps);
    }
    return now_ps;
}

void RateCarrier::settle(TimePs now_ps) {
    changes_.clear();
    policy_->reassign(active_, changes_);
    for (const RateChange change : changes_) change_rate(change.slot, change.rate, now_ps);
}

LinkTotals RateCarrier::totals(TimePs now_ps) const {
    LinkTotals totals;
    for (LinkId link = 0; link < records_.size(); ++link) {
        Work carried = records_[link].carried;
        for (const Crossing crossing : active_.on_link(link)) {
            carried += transfers_[crossing.slot].size - left_at(crossing.slot, now_ps);
        }
        totals.carried_bytes.push_back(to_bytes(carried));
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
    const auto taken = static_cast<Rate>(std::ceil(background_bps * static_cast<double>(kRateUnitsPerBps)));
    return std::max(Rate{0}, capacity_bps * kRateUnitsPerBps - taken);
}

std::vector<double> RateCarrier::link_rates_bps() const {
    std::vector<double> rates(records_.size());
    for (LinkId link = 0; link < records_.size(); ++link) {
        Work sum = 0;
        for (const Crossing crossing : active_.on_link(link)) {
            const Rate rate = active_.rate(crossing.slot);
            if (rate != kUnassignedRate) sum += rate;
        }
        rates[link] = static_cast<double>(sum) / static_cast<double>(kRateUnitsPerBps);
    }
    return rates;
}

void RateCarrier::release(Slot slot, Work carried, TimePs now_ps) {
    policy_->on_stop(active_, slot);
    const Path& path = active_.path(slot);
    active_.remove(slot);
    for (const LinkId link : path.links) {
        records_[link].carried += carried;
        if (active_.on_link(link).empty()) records_[link].busy_ps += now_ps - records_[link].busy_since_ps;
    }
}

void RateCarrier::change_rate(Slot slot, Rate rate, TimePs now_ps) {
    Transfer& transfer = transfers_[slot];
    transfer.left = left_at(slot, now_ps);
    transfer.settled_at_ps = now_ps;
    active_.set_rate(slot, rate);
    if (rate == 0) {
        drains_.remove(slot);
        return;
    }
    const Work duration = (transfer.left + rate - 1) / rate;
    // What would arrive after the end of the clock never does.
    if (duration < kNever - now_ps - active_.path(slot).latency_ps) {
        drains_.set(slot, now_ps + static_cast<TimePs>(duration));
    } else {
        drains_.remove(slot);
    }
}

Work RateCarrier::left_at(Slot slot, TimePs now_ps) const {
    const Transfer& transfer = transfers_[slot];
    const Rate rate = active_.rate(slot);
    return rate == kUnassignedRate ? transfer.left : transfer.left - Work{rate} * (now_ps - transfer.settled_at_ps);
}

}  // namespace netsim
