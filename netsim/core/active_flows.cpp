#include "active_flows.hpp"

#include <algorithm>

namespace netsim {

ActiveFlows::ActiveFlows(const Network& network, std::int64_t rate_units_per_bps)
    : rate_units_per_bps_(rate_units_per_bps), crossings_(network.link_count()), available_(network.link_count()) {
    for (LinkId link = 0; link < network.link_count(); ++link) {
        available_[link] = network.link(link).capacity_bps * rate_units_per_bps;
    }
}

Slot ActiveFlows::add(const Load& load) {
    Slot slot = static_cast<Slot>(loads_.size());
    if (free_.empty()) {
        loads_.emplace_back();
        hop_counts_.emplace_back();
        hops_.resize(loads_.size() * stride_);
        positions_.resize(loads_.size() * stride_);
    } else {
        slot = free_.back();
        free_.pop_back();
    }
    loads_[slot] = load;
    const std::size_t hops = load.data->links.size() + (load.acks != nullptr ? load.acks->links.size() : 0);
    if (hops > stride_) widen(std::max(hops, 2 * stride_));
    hop_counts_[slot] = 0;
    cross(slot, *load.data, load.data_weight);
    if (load.acks != nullptr) cross(slot, *load.acks, load.ack_weight);
    return slot;
}

void ActiveFlows::cross(Slot slot, const Path& path, std::uint32_t weight) {
    for (const LinkId link : path.links) {
        std::vector<Crossing>& crossings = crossings_[link];
        const auto known = std::ranges::find(hops(slot), link, &Hop::link);
        if (known != hops(slot).end()) {  // ACKs on a link of the data: where distances are not symmetric
            const std::size_t at = slot * stride_ + static_cast<std::size_t>(known - hops(slot).begin());
            hops_[at].weight += weight;
            crossings[positions_[at]].weight += weight;
            continue;
        }
        const std::uint32_t hop = hop_counts_[slot]++;
        hops_[slot * stride_ + hop] = {link, weight};
        positions_[slot * stride_ + hop] = static_cast<std::uint32_t>(crossings.size());
        crossings.push_back({slot, hop, weight});
    }
}

void ActiveFlows::remove(Slot slot) {
    for (std::size_t at = slot * stride_; at < slot * stride_ + hop_counts_[slot]; ++at) {
        std::vector<Crossing>& crossings = crossings_[hops_[at].link];
        const Crossing last = crossings.back();
        crossings[positions_[at]] = last;
        positions_[last.slot * stride_ + last.hop] = positions_[at];
        crossings.pop_back();
    }
    free_.push_back(slot);
}

void ActiveFlows::widen(std::size_t stride) {
    const auto widened = [&](const auto& rows) {
        std::remove_cvref_t<decltype(rows)> wider(loads_.size() * stride);
        for (std::size_t slot = 0; slot < loads_.size(); ++slot) {
            std::copy_n(&rows[slot * stride_], stride_, &wider[slot * stride]);
        }
        return wider;
    };
    hops_ = widened(hops_);
    positions_ = widened(positions_);
    stride_ = stride;
}

}  // namespace netsim
