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
      routing_(routing),
      loads_(network, routing, format),
      policy_(std::move(policy)),
      active_(network, loads_.rate_units_per_bps()),
      drains_(network.link_count()),
      records_(network.link_count()),
      capacity_shares_(network.link_count(), 1.0),
      background_bps_(network.link_count()) {}

Carrier::Ticket RateCarrier::start(FlowRef flow, const Path& path, const Demand& demand, TimePs now_ps) {
    const std::optional<Shipment> shipment =
        routing_.has_changed() ? shipment_now(demand) : loads_.shipment(path, demand);
    if (!shipment) {
        failed_.push_back({kNoTicket, {flow, 0}});
        failed_at_ps_ = now_ps;
        return kNoTicket;
    }
    const Slot slot = active_.add(shipment->load);
    if (slot >= transfers_.size()) transfers_.resize(slot + 1);
    transfers_[slot] = {shipment->amount, 0, shipment->tail_ps, flow, demand, true};
    drains_.insert(slot, shipment->amount);
    enter_links(slot, now_ps);
    return slot;
}

void RateCarrier::stop(Ticket ticket, TimePs now_ps) {
    if (ticket == kNoTicket || !transfers_[ticket].is_active) return;  // has failed
    leave_links(ticket, drains_.left(ticket, now_ps), now_ps);
    drains_.remove(ticket, now_ps);
    transfers_[ticket].is_active = false;
}

TimePs RateCarrier::run(TimePs until_ps, Progress& progress) {
    const TimePs now_ps = std::min(until_ps, next_event_ps());
    if (link_log_) log_whole_windows(now_ps);
    for (const Failure& failure : failed_) progress.failed.push_back(failure.loss);
    failed_.clear();
    done_.clear();
    drains_.pop(now_ps, done_);
    for (const Slot slot : done_) {
        progress.left.push_back(transfers_[slot].flow);
        progress.delivered.push_back({transfers_[slot].flow, now_ps + transfers_[slot].tail_ps});
        leave_links(slot, 0, now_ps);
        transfers_[slot].is_active = false;
    }
    return now_ps;
}

std::int64_t RateCarrier::sent_bytes(Ticket ticket, TimePs now_ps) {
    if (ticket == kNoTicket) return 0;
    const Transfer& transfer = transfers_[ticket];
    if (!transfer.is_active) {
        return std::ranges::find(failed_, ticket, &Failure::ticket)->loss.sent_bytes;
    }
    const Work per_byte = transfer.amount / transfer.demand.size_bytes;
    const Work sent = (transfer.amount - drains_.left(ticket, now_ps)) / per_byte;
    return std::min(transfer.demand.size_bytes, static_cast<std::int64_t>(sent));
}

void RateCarrier::set_link_up(LinkId link, bool is_up, TimePs now_ps) {
    routing_.set_link_up(link, is_up);
    for (Slot slot = 0; slot < transfers_.size(); ++slot) {
        if (!transfers_[slot].is_active) continue;
        const Path& path = *active_.load(slot).data;
        const bool is_cut = !is_up && std::ranges::count(path.links, link) > 0;
        if (is_cut && !loads_.leaves_nvlink(path)) {
            fail(slot, now_ps);
        } else if (const std::optional<Shipment> shipment = shipment_now(transfers_[slot].demand)) {
            move(slot, *shipment, now_ps);
        } else {
            fail(slot, now_ps);
        }
    }
}

// Over the links that are up; none where they leave no way there or back.
std::optional<Shipment> RateCarrier::shipment_now(const Demand& demand) {
    try {
        return loads_.shipment(routing_.path(demand.src, demand.dst, demand.flow_label), demand);
    } catch (const NoPath&) {
        return std::nullopt;
    }
}

// What is left of the flow goes on over other links. It keeps the weight of its packets, also where it moves to NVLink.
void RateCarrier::move(Slot slot, const Shipment& shipment, TimePs now_ps) {
    Load load = shipment.load;
    const Load& old = active_.load(slot);
    if (load.data == old.data && load.acks == old.acks) return;
    load.data_weight = old.data_weight;
    const Work left = drains_.left(slot, now_ps);
    leave_links(slot, left, now_ps);
    transfers_[slot].tail_ps = shipment.tail_ps;
    active_.add(load);  // into the place that has just become free
    enter_links(slot, now_ps);
}

void RateCarrier::fail(Slot slot, TimePs now_ps) {
    failed_.push_back({slot, {transfers_[slot].flow, sent_bytes(slot, now_ps)}});
    failed_at_ps_ = now_ps;
    stop(slot, now_ps);
}

void RateCarrier::settle(TimePs now_ps) {
    changes_.clear();
    policy_->reassign(active_, changes_);
    for (const LimiterChange change : changes_.limiters) drains_.assign(change.slot, change.limiter, now_ps);
    for (const RateChange change : changes_.rates) drains_.set_rate(change.limiter, change.rate, now_ps);
    // What would arrive after the end of the clock never does.
    drains_.settle(now_ps, kNever - 1 - longest_tail_ps_);
}

LinkTotals RateCarrier::totals(std::span<const LinkId> links, TimePs now_ps) const {
    LinkTotals totals;
    for (const LinkId link : links) {
        Work carried = records_[link].carried;
        for (const Crossing crossing : active_.on_link(link)) {
            const Transfer& transfer = transfers_[crossing.slot];
            carried += (transfer.amount - drains_.left(crossing.slot, now_ps) - transfer.counted) * crossing.weight;
        }
        totals.carried_bytes.push_back(to_bytes(carried, loads_.work_per_byte()));
        const bool is_busy = !active_.on_link(link).empty();
        totals.busy_ps.push_back(records_[link].busy_ps + (is_busy ? now_ps - records_[link].busy_since_ps : 0));
    }
    return totals;
}

void RateCarrier::set_background_bps(const std::vector<LinkId>& links, const std::vector<double>& rates_bps) {
    std::vector<Rate> available(links.size());
    for (std::size_t i = 0; i < links.size(); ++i) available[i] = available_with(links[i], rates_bps[i]);
    for (std::size_t i = 0; i < links.size(); ++i) {
        background_bps_[links[i]] = rates_bps[i];
        set_available(links[i], available[i]);
    }
}

void RateCarrier::set_capacity_share(LinkId link, double share) {
    capacity_shares_[link] = share;
    set_available(link, available_with(link, background_bps_[link]));
}

void RateCarrier::set_available(LinkId link, Rate available) {
    if (available == active_.available(link)) return;
    policy_->on_capacity(active_, link, available);
    active_.set_available(link, available);
}

Rate RateCarrier::available_with(LinkId link, double background_bps) const {
    const std::int64_t capacity_bps = network_.link(link).capacity_bps;
    const auto capacity = static_cast<double>(capacity_bps);
    // Sums of rates in floating point may exceed the capacity by their rounding.
    if (!(background_bps >= 0 && background_bps <= capacity * (1 + 1e-9))) {
        throw MisuseError("background of link " + std::to_string(link) + ": found " + std::to_string(background_bps) +
                          " bit/s, expected 0 to " + std::to_string(capacity_bps));
    }
    const auto taken = static_cast<Rate>(std::ceil(background_bps * static_cast<double>(active_.rate_units_per_bps())));
    const double share = capacity_shares_[link];
    const std::int64_t has_bps = share < 1 ? std::max<std::int64_t>(1, std::llround(capacity * share)) : capacity_bps;
    return std::max(Rate{0}, has_bps * active_.rate_units_per_bps() - taken);
}

double RateCarrier::link_rate_bps(LinkId link) const {
    Work sum = 0;
    for (const Crossing crossing : active_.on_link(link)) sum += Work{drains_.rate(crossing.slot)} * crossing.weight;
    return static_cast<double>(sum) / static_cast<double>(active_.rate_units_per_bps());
}

void RateCarrier::enter_links(Slot slot, TimePs now_ps) {
    longest_tail_ps_ = std::max(longest_tail_ps_, transfers_[slot].tail_ps);
    for (const auto [link, weight] : active_.hops(slot)) {
        if (active_.on_link(link).size() == 1) records_[link].busy_since_ps = now_ps;
    }
    policy_->on_start(active_, slot);
}

void RateCarrier::leave_links(Slot slot, Work left, TimePs now_ps) {
    policy_->on_stop(active_, slot);
    book(slot, left);
    for (const auto [link, weight] : active_.hops(slot)) {
        if (active_.on_link(link).size() == 1) records_[link].busy_ps += now_ps - records_[link].busy_since_ps;
    }
    active_.remove(slot);
}

// Books on its links what they have carried of the flow since it was booked last; false where that is nothing.
bool RateCarrier::book(Slot slot, Work left) {
    Transfer& transfer = transfers_[slot];
    const Work carried = transfer.amount - left - transfer.counted;
    if (carried == 0) return false;
    transfer.counted += carried;
    for (const auto [link, weight] : active_.hops(slot)) records_[link].carried += carried * weight;
    if (!link_log_) return true;
    const double bytes = to_bytes(carried, loads_.work_per_byte());
    for (const auto [link, weight] : active_.hops(slot)) {
        link_log_->add(transfer.demand.traffic, link, bytes * weight, logged_ps_);
    }
    return true;
}

// The same for all flows; false where nothing drains.
bool RateCarrier::book_active(TimePs now_ps) {
    bool has_carried = false;
    for (Slot slot = 0; slot < transfers_.size(); ++slot) {
        if (transfers_[slot].is_active) has_carried |= book(slot, drains_.left(slot, now_ps));
    }
    return has_carried;
}

void RateCarrier::log_links(std::shared_ptr<LinkLog> log, TimePs now_ps) {
    update_link_log(now_ps);
    link_log_ = std::move(log);
    logged_ps_ = now_ps;
}

void RateCarrier::update_link_log(TimePs now_ps) {
    if (link_log_) log_whole_windows(now_ps);
    book_active(now_ps);
}

// Rates hold from the last event up to `now_ps`: what flows have sent by the end of every burst before is booked
// there. Where nothing drains now, nothing does until then.
void RateCarrier::log_whole_windows(TimePs now_ps) {
    while (true) {
        const TimePs end_ps = link_log_->burst_end_ps(logged_ps_);
        if (end_ps > now_ps) return;
        const bool is_draining = book_active(end_ps);
        logged_ps_ = is_draining ? end_ps : now_ps;
        if (!is_draining) return;
    }
}

}  // namespace netsim
