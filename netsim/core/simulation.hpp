// A network, its routing, a carrier and an executor, owned together.
#pragma once

#include <string>

#include "executor.hpp"
#include "rate_carrier.hpp"

namespace netsim {

enum class Sharing { max_min, uncontended };

// Simulation of flows as fluids. Not for use by two threads at once.
class FlowSimulation {
  public:
    FlowSimulation(Network network, Sharing sharing);

    Executor& executor() { return executor_; }
    LinkTotals totals() const { return carrier_.totals(executor_.now_ps()); }
    void set_background_bps(const std::vector<std::int64_t>& links, const std::vector<double>& rates_bps);
    std::vector<double> link_rates_bps() const { return carrier_.link_rates_bps(); }

  private:
    Network network_;
    Routing routing_;
    RateCarrier carrier_;
    Executor executor_;
};

}  // namespace netsim
