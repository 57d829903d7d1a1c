// A network, its routing, a carrier and an executor, owned together.
#pragma once

#include <atomic>

#include "executor.hpp"
#include "rate_carrier.hpp"

namespace netsim {

enum class Sharing { max_min, uncontended };

// Simulation of flows as fluids, for one thread at a time.
class FlowSimulation {
  public:
    FlowSimulation(Network network, Sharing sharing);

    // The executor, reserved for the caller while the lease lives. Throws where another thread is inside.
    class Lease {
      public:
        explicit Lease(FlowSimulation& simulation);
        ~Lease() { simulation_.is_in_use_.clear(); }
        Lease(const Lease&) = delete;
        Lease& operator=(const Lease&) = delete;
        Executor* operator->() { return &simulation_.executor_; }

      private:
        FlowSimulation& simulation_;
    };

    Lease executor() { return Lease(*this); }
    LinkTotals totals();
    void set_background_bps(const std::vector<std::int64_t>& links, const std::vector<double>& rates_bps);
    std::vector<double> link_rates_bps();

  private:
    Network network_;
    Routing routing_;
    RateCarrier carrier_;
    Executor executor_;
    std::atomic_flag is_in_use_;
};

}  // namespace netsim
