#include "max_min.hpp"

#include <algorithm>
#include <functional>

namespace netsim {

MaxMin::MaxMin(std::size_t links) : links_(links) {}

void MaxMin::on_start(const ActiveFlows& flows, Slot slot) {
    for (const LinkId link : flows.path(slot).links) {
        touched_.push_back(link);
        loaded_.push_back(link);
    }
}

void MaxMin::on_stop(const ActiveFlows& flows, Slot slot) {
    slowest_departed_ = std::min(slowest_departed_, flows.rate(slot));
    for (const LinkId link : flows.path(slot).links) touched_.push_back(link);
}

void MaxMin::on_capacity(const ActiveFlows& flows, LinkId link, Rate) {
    touched_.push_back(link);
    loaded_.push_back(link);
    previous_available_.emplace_back(link, flows.available(link));
}

void MaxMin::reassign(const ActiveFlows& flows, std::vector<RateChange>& changes) {
    if (touched_.empty()) return;
    ++epoch_;
    flows_.resize(std::max(flows_.size(), flows.slot_count()));
    collect_components(flows, unchanged_below(flows));
    fill(flows, changes);
    touched_.clear();
    loaded_.clear();
    previous_available_.clear();
    slowest_departed_ = kUnassignedRate;
}

Rate MaxMin::unchanged_below(const ActiveFlows& flows) const {
    const auto lowest_share = [&](LinkId link, Rate available) {
        const auto count = static_cast<Rate>(flows.on_link(link).size());
        return count > 0 ? available / count : kUnassignedRate;
    };
    Rate bound = slowest_departed_;
    for (const LinkId link : loaded_) bound = std::min(bound, lowest_share(link, flows.available(link)));
    for (const auto& [link, available] : previous_available_) bound = std::min(bound, lowest_share(link, available));
    return bound;
}

void MaxMin::collect_components(const ActiveFlows& flows, Rate unchanged_below) {
    reached_.clear();
    caps_.clear();
    for (const LinkId link : touched_) visit(link);
    for (std::size_t next = 0; next < reached_.size(); ++next) collect_flows_of(flows, reached_[next], unchanged_below);
}

void MaxMin::visit(LinkId link) {
    if (links_[link].epoch == epoch_) return;
    links_[link].epoch = epoch_;
    reached_.push_back(link);
}

void MaxMin::collect_flows_of(const ActiveFlows& flows, LinkId link, Rate unchanged_below) {
    LinkState& state = links_[link];
    state.residual = flows.available(link);
    state.unfixed = 0;
    for (const Crossing crossing : flows.on_link(link)) {
        const Rate rate = flows.rate(crossing.slot);
        if (rate < unchanged_below) {
            state.residual -= rate;
            continue;
        }
        ++state.unfixed;
        FlowState& flow = flows_[crossing.slot];
        if (flow.epoch == epoch_) continue;
        flow = {epoch_, false};
        if (flows.cap(crossing.slot) != kUncapped) caps_.emplace_back(flows.cap(crossing.slot), crossing.slot);
        for (const LinkId crossed : flows.path(crossing.slot).links) visit(crossed);
    }
}

void MaxMin::fill(const ActiveFlows& flows, std::vector<RateChange>& changes) {
    shares_.clear();
    for (const LinkId link : reached_) {
        if (links_[link].unfixed > 0) shares_.emplace_back(links_[link].residual / links_[link].unfixed, link);
    }
    std::ranges::make_heap(shares_, std::greater<>{});
    std::ranges::sort(caps_);
    auto next_cap = caps_.begin();
    while (!shares_.empty()) {
        const auto [share, link] = shares_.front();
        // The entry may be old, but then the link's share is larger still.
        for (; next_cap != caps_.end() && next_cap->first <= share; ++next_cap) {
            if (!flows_[next_cap->second].is_fixed) fix(flows, next_cap->second, next_cap->first, changes);
        }
        const LinkState& state = links_[link];
        // A share only grows while other links fix flows, so an entry may be old but never too large.
        const Rate current = state.unfixed > 0 ? state.residual / state.unfixed : kUnassignedRate;
        if (current == share) fix_flows_of(flows, link, share, changes);
        if (state.unfixed > 0) {
            replace_smallest({current, link});
        } else {
            const Share last = shares_.back();
            shares_.pop_back();
            if (!shares_.empty()) replace_smallest(last);
        }
    }
}

// Puts an entry in the place of the smallest and restores the heap, in one pass down.
void MaxMin::replace_smallest(Share entry) {
    std::size_t hole = 0;
    for (std::size_t child = 1; child < shares_.size(); child = 2 * hole + 1) {
        if (child + 1 < shares_.size() && shares_[child + 1] < shares_[child]) ++child;
        if (!(shares_[child] < entry)) break;
        shares_[hole] = shares_[child];
        hole = child;
    }
    shares_[hole] = entry;
}

void MaxMin::fix_flows_of(const ActiveFlows& flows, LinkId link, Rate share, std::vector<RateChange>& changes) {
    for (const Crossing crossing : flows.on_link(link)) {
        const FlowState& flow = flows_[crossing.slot];
        if (flow.epoch == epoch_ && !flow.is_fixed) fix(flows, crossing.slot, share, changes);
    }
}

void MaxMin::fix(const ActiveFlows& flows, Slot slot, Rate rate, std::vector<RateChange>& changes) {
    flows_[slot].is_fixed = true;
    for (const LinkId crossed : flows.path(slot).links) {
        links_[crossed].residual -= rate;
        --links_[crossed].unfixed;
    }
    if (flows.rate(slot) != rate) changes.push_back({slot, rate});
}

}  // namespace netsim
