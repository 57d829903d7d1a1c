#include "active_flows.hpp"

namespace netsim {

ActiveFlows::ActiveFlows(const Network& network) : crossings_(network.link_count()), available_(network.link_count()) {
    for (LinkId link = 0; link < network.link_count(); ++link) {
        available_[link] = network.link(link).capacity_bps * kRateUnitsPerBps;
    }
}

Slot ActiveFlows::add(const Path& path, Rate cap) {
    Slot slot = static_cast<Slot>(flows_.size());
    if (free_.empty()) {
        flows_.emplace_back();
        rates_.emplace_back();
    } else {
        slot = free_.back();
        free_.pop_back();
    }
    Flow& flow = flows_[slot];
    flow.path = &path;
    flow.cap = cap;
    flow.position.resize(path.links.size());
    for (std::uint32_t hop = 0; hop < path.links.size(); ++hop) {
        std::vector<Crossing>& crossings = crossings_[path.links[hop]];
        flow.position[hop] = static_cast<std::uint32_t>(crossings.size());
        crossings.push_back({slot, hop});
    }
    rates_[slot] = kUnassignedRate;
    return slot;
}

void ActiveFlows::remove(Slot slot) {
    Flow& flow = flows_[slot];
    for (std::size_t hop = 0; hop < flow.path->links.size(); ++hop) {
        std::vector<Crossing>& crossings = crossings_[flow.path->links[hop]];
        const Crossing last = crossings.back();
        crossings[flow.position[hop]] = last;
        flows_[last.slot].position[last.hop] = flow.position[hop];
        crossings.pop_back();
    }
    flow.path = nullptr;
    free_.push_back(slot);
}

}  // namespace netsim
