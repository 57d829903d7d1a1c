// The flows that are sending, and which of them cross each link.
#pragma once

#include <span>
#include <vector>

#include "routing.hpp"

namespace netsim {

// Place of a flow in ActiveFlows; reused after removal.
using Slot = std::uint32_t;

// What a flow puts on links. Per unit of its rate, every link of `data` carries `data_weight` units and every link of
// `acks` (none where nullptr) `ack_weight`. The paths must outlive the flow.
struct Load {
    const Path* data;
    const Path* acks = nullptr;
    std::uint32_t data_weight = 1;
    std::uint32_t ack_weight = 0;
    Rate cap = kUncapped;  // never to be exceeded by the flow's rate
};

struct Hop {
    LinkId link;
    std::uint32_t weight;
};

// `slot` crosses a link as the `hop`-th of those it loads.
struct Crossing {
    Slot slot;
    std::uint32_t hop;
    std::uint32_t weight;
};

class ActiveFlows {
  public:
    // Rates and capacities count in `rate_units_per_bps` units per bit/s.
    ActiveFlows(const Network& network, std::int64_t rate_units_per_bps);

    Slot add(const Load& load);
    void remove(Slot slot);

    std::int64_t rate_units_per_bps() const { return rate_units_per_bps_; }
    std::size_t slot_count() const { return loads_.size(); }
    const Load& load(Slot slot) const { return loads_[slot]; }
    // All links that the flow loads, each once.
    std::span<const Hop> hops(Slot slot) const { return {&hops_[slot * stride_], hop_counts_[slot]}; }

    std::size_t link_count() const { return crossings_.size(); }
    // In an order that depends on the history only.
    std::span<const Crossing> on_link(LinkId link) const { return crossings_[link]; }

    // Capacity that simulated flows may use.
    Rate available(LinkId link) const { return available_[link]; }
    void set_available(LinkId link, Rate available) { available_[link] = available; }

  private:
    void widen(std::size_t stride);
    void cross(Slot slot, const Path& path, std::uint32_t weight);

    std::int64_t rate_units_per_bps_;
    std::vector<Load> loads_;
    std::vector<std::uint32_t> hop_counts_;  // [slots]
    std::vector<Slot> free_;
    std::size_t stride_ = 6;                // room for the hops of a slot
    std::vector<Hop> hops_;                 // [slots x stride]
    std::vector<std::uint32_t> positions_;  // [slots x stride] index of the flow in the crossings of the hop's link
    std::vector<std::vector<Crossing>> crossings_;
    std::vector<Rate> available_;
};

}  // namespace netsim
