// The flows that are sending, their rates, and which of them cross each link.
#pragma once

#include <span>
#include <vector>

#include "routing.hpp"

namespace netsim {

// Place of a flow in ActiveFlows; reused after removal.
using Slot = std::uint32_t;

// `slot` crosses a link as the `hop`-th of its path.
struct Crossing {
    Slot slot;
    std::uint32_t hop;
};

class ActiveFlows {
  public:
    explicit ActiveFlows(const Network& network);

    // The path must outlive the flow. Its rate is unassigned at first, and never to exceed `cap`.
    Slot add(const Path& path, Rate cap);
    void remove(Slot slot);

    std::size_t slot_count() const { return flows_.size(); }
    bool is_active(Slot slot) const { return flows_[slot].path != nullptr; }
    const Path& path(Slot slot) const { return *flows_[slot].path; }
    // kUncapped where only links limit the flow.
    Rate cap(Slot slot) const { return flows_[slot].cap; }
    Rate rate(Slot slot) const { return rates_[slot]; }
    void set_rate(Slot slot, Rate rate) { rates_[slot] = rate; }

    std::size_t link_count() const { return crossings_.size(); }
    // In an order that depends on the history only.
    std::span<const Crossing> on_link(LinkId link) const { return crossings_[link]; }

    // Capacity that simulated flows may use.
    Rate available(LinkId link) const { return available_[link]; }
    void set_available(LinkId link, Rate available) { available_[link] = available; }

  private:
    struct Flow {
        const Path* path = nullptr;
        Rate cap = kUncapped;
        std::vector<std::uint32_t> position;  // [hops] index of this flow in the crossings of the hop's link
    };

    std::vector<Flow> flows_;
    std::vector<Rate> rates_;
    std::vector<Slot> free_;
    std::vector<std::vector<Crossing>> crossings_;
    std::vector<Rate> available_;
};

}  // namespace netsim
