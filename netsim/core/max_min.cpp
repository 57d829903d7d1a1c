#include "max_min.hpp"

#include <algorithm>
#include <cmath>

namespace netsim {

namespace {

// Of numbers that nearly always fit 64 bits, where dividing is far cheaper.
Rate quotient(Work dividend, std::int64_t divisor) {
    const auto narrow = static_cast<Rate>(dividend);
    return narrow == dividend ? narrow / divisor : static_cast<Rate>(dividend / divisor);
}

}  // namespace

MaxMin::MaxMin(std::size_t links, double tolerance)
    : tolerance_(tolerance), links_(links), shares_(links, kInfinite), own_flows_(links) {}

void MaxMin::on_start(const ActiveFlows& flows, Slot slot) {
    if (slot >= limiters_.size()) {
        limiters_.resize(flows.slot_count(), kNoLimiter);
        own_position_.resize(flows.slot_count());
    }
    for (const auto [link, weight] : flows.hops(slot)) {
        LinkState& state = links_[link];
        if (state.weight == 0) state.residual = flows.available(link);
        state.weight += weight;
        state.own_weight += weight;
        state.own_from = 0;  // not known
        touch(link);
    }
    const Offer best = best_offer(flows, slot, kNoLimiter);
    if (best.limiter != kNoLimiter) limit(flows, slot, kNoLimiter, 0, best.limiter, best.key.share);
    moved_.push_back(slot);
}

void MaxMin::on_stop(const ActiveFlows& flows, Slot slot) {
    const Limiter limiter = limiters_[slot];
    if (limiter != kNoLimiter) limit(flows, slot, limiter, key_of(flows, limiter, slot).share, kNoLimiter, 0);
    for (const auto [link, weight] : flows.hops(slot)) {
        LinkState& state = links_[link];
        state.weight -= weight;
        state.own_weight -= weight;
        touch(link);
    }
}

void MaxMin::on_capacity(const ActiveFlows& flows, LinkId link, Rate available) {
    links_[link].residual += available - flows.available(link);
    touch(link);
}

void MaxMin::reassign(const ActiveFlows& flows, Reassignment& changes) {
    enqueue_touched(flows);
    while (!queue_.empty()) visit(flows, queue_.next(), queue_.next_value());
    for (const Slot slot : moved_) {
        const Limiter limiter = limiters_[slot];
        if (limiter == kNoLimiter) continue;  // it has stopped
        changes.limiters.push_back({slot, limiter});
        if (limiter >= shares_.size()) changes.rates.push_back({limiter, flows.load(slot).cap});
    }
    for (const LinkId link : refilled_) {
        if (shares_[link] != kInfinite) changes.rates.push_back({link, shares_[link]});
    }
    moved_.clear();
    refilled_.clear();
}

MaxMin::Key MaxMin::key_of(const ActiveFlows& flows, Limiter limiter, Slot slot) const {
    if (limiter < shares_.size()) return {shares_[limiter], limiter + 1};
    return {flows.load(slot).cap, 0};
}

// The smallest key on the flow's way but for one link.
MaxMin::Offer MaxMin::best_offer(const ActiveFlows& flows, Slot slot, LinkId except) const {
    Offer best{{flows.load(slot).cap, 0}, static_cast<Limiter>(shares_.size() + slot)};
    if (best.key.share == kUncapped) best = {kNoKey, kNoLimiter};
    for (const auto [link, weight] : flows.hops(slot)) {
        const Key key{shares_[link], link + 1};
        if (key.share != kInfinite && link != except && key < best.key) best = {key, link};
    }
    return best;
}

void MaxMin::touch(LinkId link) {
    if (links_[link].is_touched) return;
    links_[link].is_touched = true;
    touched_.push_back(link);
}

void MaxMin::enqueue_touched(const ActiveFlows& flows) {
    for (const LinkId link : touched_) {
        LinkState& state = links_[link];
        state.is_touched = false;
        // Not too late where it is: its bound, if not its share, is above.
        const Work certain = state.residual - (state.weight - 1);
        if (state.queued_at != kInfinite && certain > Work{state.queued_at} * state.own_weight) continue;
        enqueue(link, std::min(shares_[link], lower_bound(flows, link)));
    }
    touched_.clear();
}

void MaxMin::enqueue(LinkId link, Rate at) {
    if (at == kInfinite) return dequeue(link);  // it fixes no flow, rightly
    links_[link].queued_at = at;
    queue_.set(link, at);
}

void MaxMin::dequeue(LinkId link) {
    links_[link].queued_at = kInfinite;
    queue_.remove(link);
}

// No share that the link can end at is smaller. Let s be the right share, F the flows that leave below it, so that
// capacity = rates of F + s x other weights + remainder, with remainder < weight of all flows. For whatever set of
// flows with whatever rates of at most s inside F, and of at least s outside, the residual is then at most s x own
// weight + remainder.
Rate MaxMin::lower_bound(const ActiveFlows& flows, LinkId link) const {
    const LinkState& state = links_[link];
    if (state.weight == 0) return kInfinite;
    const Work certain = state.residual - (state.weight - 1);
    if (state.own_weight == 0) return certain > 0 ? kInfinite : flows.available(link) / state.weight;
    return certain > 0 ? quotient(certain + state.own_weight - 1, state.own_weight) : 0;
}

bool MaxMin::is_right(Rate share, Rate target) const {
    if (share == target || share == kInfinite || target == kInfinite) return share == target;
    return std::abs(static_cast<double>(share - target)) <= tolerance_ * static_cast<double>(target);
}

void MaxMin::visit(const ActiveFlows& flows, LinkId link, Rate front) {
    const Target target = evaluate(flows, link);
    if (is_right(shares_[link], target.share)) return dequeue(link);
    // Smaller shares come first, as they may change what is offered here.
    const Rate at = std::min(shares_[link], target.share);
    if (at > front) return enqueue(link, at);
    dequeue(link);
    set_share(flows, link, target);
    enqueue_touched(flows);
}

MaxMin::Target MaxMin::evaluate(const ActiveFlows& flows, LinkId link) {
    const LinkState& state = links_[link];
    const Rate at_least = lower_bound(flows, link);
    if (at_least == kInfinite) return {kInfinite, false};
    if (state.own_weight > 0 && at_least > state.fixed_up_to) {
        const Rate share = quotient(state.residual, state.own_weight);
        if (share < state.own_from) return {share, true};
    }
    return {fill_alone(flows, link, at_least), false};
}

// The share at which the link ends when it fills by itself.
Rate MaxMin::fill_alone(const ActiveFlows& flows, LinkId link, Rate at_least) {
    bids_.clear();
    for (const Crossing crossing : flows.on_link(link)) {
        const Limiter limiter = limiters_[crossing.slot];
        const bool is_own = limiter == link || limiter == kNoLimiter;
        const Key key = is_own ? best_offer(flows, crossing.slot, link).key : key_of(flows, limiter, crossing.slot);
        bids_.push_back({key, crossing.weight});
    }
    for (Rate share = at_least;;) {
        Rate residual = flows.available(link);
        std::int64_t weight = 0;
        for (const Bid& bid : bids_) {
            if (bid.key < Key{share, link + 1}) {
                residual -= bid.key.share * bid.weight;
            } else {
                weight += bid.weight;
            }
        }
        if (weight == 0) return kInfinite;
        const Rate next = residual / weight;
        if (next == share) return share;
        share = next;
    }
}

void MaxMin::set_share(const ActiveFlows& flows, LinkId link, Target target) {
    const Key old{shares_[link], link + 1};
    shares_[link] = target.share;
    refilled_.push_back(link);
    links_[link].is_touched = true;  // agrees with what it is given here
    if (target.keeps_flows) {
        refill_same_flows(flows, link, old.share, target.share);
    } else {
        refill(flows, link, old, target.share == kInfinite ? kNoKey : Key{target.share, link + 1});
    }
    links_[link].is_touched = false;
}

void MaxMin::refill_same_flows(const ActiveFlows& flows, LinkId link, Rate old_share, Rate share) {
    for (const Slot slot : own_flows_[link]) {
        for (const auto [crossed, weight] : flows.hops(slot)) {
            if (crossed == link) continue;
            LinkState& state = links_[crossed];
            state.residual -= Work{share - old_share} * weight;
            state.fixed_up_to = std::max(state.fixed_up_to, share);
            touch(crossed);
        }
    }
    if (share > old_share) return;
    for (const Crossing crossing : flows.on_link(link)) {
        const Limiter limiter = limiters_[crossing.slot];
        if (limiter == link || limiter >= shares_.size()) continue;
        links_[limiter].own_from = std::min(links_[limiter].own_from, share);
    }
}

void MaxMin::refill(const ActiveFlows& flows, LinkId link, Key old, Key key) {
    Rate fixed_up_to = 0, own_from = kInfinite;
    for (const Crossing crossing : flows.on_link(link)) {
        const Slot slot = crossing.slot;
        const Limiter limiter = limiters_[slot];
        const bool is_own = limiter == link || limiter == kNoLimiter;
        const Offer best = is_own ? best_offer(flows, slot, link) : Offer{key_of(flows, limiter, slot), limiter};
        const Limiter to = key < best.key ? link : best.limiter;
        const Rate old_rate = limiter == link ? old.share : is_own ? 0 : best.key.share;
        const Rate rate = std::min(key.share, best.key.share);
        if (is_own || to == link) limit(flows, slot, limiter, old_rate, to, rate);
        if (to == link) {
            own_from = std::min(own_from, best.key.share);
        } else {
            fixed_up_to = std::max(fixed_up_to, best.key.share);
            if (to < shares_.size()) links_[to].own_from = std::min(links_[to].own_from, key.share);
        }
    }
    links_[link].fixed_up_to = fixed_up_to;
    links_[link].own_from = own_from;
}

// Gives the flow another limiter or rate, and lets the links on its way know.
void MaxMin::limit(const ActiveFlows& flows, Slot slot, Limiter from, Rate old_rate, Limiter to, Rate new_rate) {
    for (const auto [link, weight] : flows.hops(slot)) {
        LinkState& state = links_[link];
        const bool was_own = link == from || from == kNoLimiter;
        const bool is_own = link == to || to == kNoLimiter;
        state.residual += Work{(was_own ? 0 : old_rate) - (is_own ? 0 : new_rate)} * weight;
        if (!is_own) state.fixed_up_to = std::max(state.fixed_up_to, new_rate);
        if (was_own != is_own) state.own_weight += is_own ? std::int64_t{weight} : -std::int64_t{weight};
        if (is_own && from != to) state.own_from = 0;  // not known
        touch(link);
    }
    if (from != to) set_limiter(slot, to);
}

void MaxMin::set_limiter(Slot slot, Limiter limiter) {
    if (const Limiter from = limiters_[slot]; from < shares_.size()) {
        const Slot last = own_flows_[from].back();
        own_position_[last] = own_position_[slot];
        own_flows_[from][own_position_[slot]] = last;
        own_flows_[from].pop_back();
    }
    limiters_[slot] = limiter;
    if (limiter < shares_.size()) {
        own_position_[slot] = static_cast<std::uint32_t>(own_flows_[limiter].size());
        own_flows_[limiter].push_back(slot);
    }
    moved_.push_back(slot);
}

}  // namespace netsim
