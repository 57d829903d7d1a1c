#include <algorithm>

#include "rate_policy.hpp"

namespace netsim {

void Uncontended::on_start(const ActiveFlows&, Slot slot) { started_.push_back(slot); }

void Uncontended::on_stop(const ActiveFlows&, Slot slot) { std::erase(started_, slot); }

void Uncontended::on_capacity(const ActiveFlows&, LinkId, Rate) {}

void Uncontended::reassign(const ActiveFlows& flows, std::vector<RateChange>& changes) {
    for (const Slot slot : started_) {
        changes.push_back({slot, std::min(flows.path(slot).bottleneck_bps * kRateUnitsPerBps, flows.cap(slot))});
    }
    started_.clear();
}

}  // namespace netsim
