#include <algorithm>

#include "rate_policy.hpp"

namespace netsim {

void Uncontended::on_start(const ActiveFlows&, Slot slot) { started_.push_back(slot); }

void Uncontended::on_stop(const ActiveFlows&, Slot slot) { std::erase(started_, slot); }

void Uncontended::on_capacity(const ActiveFlows&, LinkId, Rate) {}

void Uncontended::reassign(const ActiveFlows& flows, Reassignment& changes) {
    for (const Slot slot : started_) {
        const Load& load = flows.load(slot);
        const Rate line_rate = load.data->bottleneck_bps * flows.rate_units_per_bps() / load.data_weight;
        const auto limiter = static_cast<Limiter>(flows.link_count() + slot);
        changes.limiters.push_back({slot, limiter});
        changes.rates.push_back({limiter, std::min(line_rate, load.cap)});
    }
    started_.clear();
}

}  // namespace netsim
