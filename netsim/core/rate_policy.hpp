// How the rates of the active flows follow from the links they cross.
#pragma once

#include <vector>

#include "active_flows.hpp"

namespace netsim {

// What holds a flow to its rate: a link, numbered as such, or the flow's own cap or path, numbered as its slot after
// all links. All flows with the same limiter have the same rate.
using Limiter = std::uint32_t;
inline constexpr Limiter kNoLimiter = ~Limiter{0};

struct LimiterChange {
    Slot slot;
    Limiter limiter;
};
struct RateChange {
    Limiter limiter;
    Rate rate;
};
// What differs after an instant. Nothing is named that has not changed during the instant, but what is named may have
// changed back.
struct Reassignment {
    std::vector<LimiterChange> limiters;
    std::vector<RateChange> rates;

    void clear() {
        limiters.clear();
        rates.clear();
    }
};

// Hears of every change of an instant as it happens, then is asked once for what differs afterwards. The rate of a flow
// is in units of its load's weights.
class RatePolicy {
  public:
    virtual ~RatePolicy() = default;
    // After the flow was added.
    virtual void on_start(const ActiveFlows& flows, Slot slot) = 0;
    // Before the flow is removed.
    virtual void on_stop(const ActiveFlows& flows, Slot slot) = 0;
    // Before the capacity is changed.
    virtual void on_capacity(const ActiveFlows& flows, LinkId link, Rate available) = 0;
    // Appends the limiter of every flow that has started or has another one, and the rates of limiters that differ.
    virtual void reassign(const ActiveFlows& flows, Reassignment& changes) = 0;
};

// Each flow has its path to itself: the beta of an alpha-beta model is the smallest capacity of its links, or its cap.
class Uncontended final : public RatePolicy {
  public:
    void on_start(const ActiveFlows& flows, Slot slot) override;
    void on_stop(const ActiveFlows& flows, Slot slot) override;
    void on_capacity(const ActiveFlows& flows, LinkId link, Rate available) override;
    void reassign(const ActiveFlows& flows, Reassignment& changes) override;

  private:
    std::vector<Slot> started_;  // or to be rated again
};

}  // namespace netsim
