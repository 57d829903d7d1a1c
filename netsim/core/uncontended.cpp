#include <algorithm>

#include "rate_policy.hpp"

namespace netsim {

void Uncontended::on_start(const ActiveFlows&, Slot slot) { started_.push_back(slot); }

void Uncontended::on_stop(const ActiveFlows&, Slot slot) { std::erase(started_, slot); }

void Uncontended::on_capacity(const ActiveFlows& flows, LinkId link, Rate) {
    for (const Crossing crossing : flows.on_link(link)) started_.push_back(crossing.slot);
}

void Uncontended::reassign(const ActiveFlows& flows, Reassignment& changes) {
    for (const Slot slot : started_) {
        const Load& load = flows.load(slot);
        Rate line_rate = kUncapped;
        for (const LinkId link : load.data->links) line_rate = std::min(line_rate, flows.available(link));
        const auto limiter = static_cast<Limiter>(flows.link_count() + slot);
        changes.limiters.push_back({slot, limiter});
        changes.rates.push_back({limiter, std::min(line_rate / load.data_weight, load.cap)});
    }
    started_.clear();
}

}  // namespace netsim
