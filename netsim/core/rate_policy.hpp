// How the rates of the active flows follow from the links they cross.
#pragma once

#include <vector>

#include "active_flows.hpp"

namespace netsim {

struct RateChange {
    Slot slot;
    Rate rate;
};

// Told of every change of an instant as it happens, then asked once for the rates that differ afterwards.
class RatePolicy {
  public:
    virtual ~RatePolicy() = default;
    // After the flow was added.
    virtual void on_start(const ActiveFlows& flows, Slot slot) = 0;
    // Before the flow is removed.
    virtual void on_stop(const ActiveFlows& flows, Slot slot) = 0;
    // Before the capacity is changed.
    virtual void on_capacity(const ActiveFlows& flows, LinkId link, Rate available) = 0;
    // Appends the new rate of every flow whose rate changes; flows that started always get one.
    virtual void reassign(const ActiveFlows& flows, std::vector<RateChange>& changes) = 0;
};

// Each flow has its path to itself: the beta of an alpha-beta model is the path's smallest capacity, or its cap.
class Uncontended final : public RatePolicy {
  public:
    void on_start(const ActiveFlows& flows, Slot slot) override;
    void on_stop(const ActiveFlows& flows, Slot slot) override;
    void on_capacity(const ActiveFlows& flows, LinkId link, Rate available) override;
    void reassign(const ActiveFlows& flows, std::vector<RateChange>& changes) override;

  private:
    std::vector<Slot> started_;
};

}  // namespace netsim
