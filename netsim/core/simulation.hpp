// A network, its routing, a carrier and an executor, owned together.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "canonical.hpp"
#include "exclusive_use.hpp"
#include "executor.hpp"
#include "periodic_traffic.hpp"
#include "rate_carrier.hpp"
#include "roce/packet_carrier.hpp"
#include "roce/parameters.hpp"

namespace netsim {

// Base of simulations: executes flow graphs on a carrier that the derived class chooses, for one thread at a time.
class Simulation : public SteppedNetwork {
  public:
    Simulation(const Simulation&) = delete;
    Simulation& operator=(const Simulation&) = delete;

    // Exclusive access to the executor while the lease lives. Throws where another thread has it.
    class Lease {
      public:
        explicit Lease(Simulation& simulation) : use_(simulation.is_in_use_), executor_(*simulation.executor_) {}
        Executor* operator->() { return &executor_; }

      private:
        ExclusiveUse use_;
        Executor& executor_;
    };

    Lease executor() { return Lease(*this); }
    TimePs now_ps() override { return executor()->now_ps(); }
    TimePs next_event_ps() override { return executor()->next_event_ps(); }
    std::vector<Completion> advance(TimePs until_ps) override { return executor()->advance(until_ps); }
    // Starts a log of the bytes that links carry.
    std::shared_ptr<LinkLog> log_links(std::int64_t windows, TimePs window_ps);
    void update_link_log();
    // Totals of all links, or of some.
    LinkTotals totals(const std::optional<std::vector<std::int64_t>>& links = std::nullopt);
    CanonicalGraph canonical(const FlowGraph& graph, bool names_by_use);

  protected:
    explicit Simulation(Network network, std::uint32_t ecmp_seed = 0);
    void carry_with(std::unique_ptr<Carrier> carrier);
    const Network& network() const { return network_; }
    Routing& routing() { return routing_; }
    TimePs now_inside_ps() const { return executor_->now_ps(); }  // while the executor is leased
    // Throws for a link that does not exist.
    LinkId checked_link(std::int64_t link, const char* call) const;
    static void check_capacity_share(double share);

  private:
    Network network_;
    Routing routing_;
    std::unique_ptr<Carrier> carrier_;
    std::unique_ptr<Executor> executor_;
    std::atomic_flag is_in_use_;
};

enum class Sharing { max_min, uncontended };

// Flows as fluids.
class FlowSimulation final : public Simulation {
  public:
    FlowSimulation(Network network, Sharing sharing, std::optional<WireFormat> format = std::nullopt,
                   double rate_tolerance = 0);

    void set_background_bps(const std::vector<std::int64_t>& links, const std::vector<double>& rates_bps);
    // Rates of simulated flows on these links, or on all.
    std::vector<double> link_rates_bps(const std::optional<std::vector<std::int64_t>>& links = std::nullopt);
    void set_link_up(std::int64_t link, bool is_up);
    void set_capacity_share(std::int64_t link, double share);
    // Periodic loads of so many sources, which share links with the graphs submitted from now on. They replace earlier
    // ones and live as long as the simulation.
    PeriodicLoads& load_periodically(std::size_t sources);

  private:
    RateCarrier* carrier_;
    std::unique_ptr<PeriodicTraffic> periodic_;  // none: flows are alone
};

// Flows as packets of the RoCE model.
class PacketSimulation : public Simulation {
  public:
    using MakeCarrier =
        std::function<std::unique_ptr<roce::PacketCarrier>(const Network&, Routing&, const roce::Parameters&)>;

    PacketSimulation(Network network, std::uint32_t ecmp_seed, const roce::Parameters& parameters,
                     const MakeCarrier& make_carrier);

    roce::LinkFigures figures();
    std::vector<std::int64_t> largest_queues_bytes();
    std::uint64_t packet_hops();
    TimePs skipped_ps();
    roce::LookEffort look_effort();
    void sample_every(TimePs interval_ps);
    void keep_log(bool is_kept);
    // Valid until the next call that advances or submits.
    const roce::TimeSeries& time_series();
    const std::vector<roce::PauseEvent>& pauses();
    const std::vector<roce::Acknowledgement>& acknowledgements();
    void set_link_up(std::int64_t link, bool is_up);
    void set_capacity_share(std::int64_t link, double share);
    void set_storm(std::int64_t link, std::int64_t priority, bool is_storming);

  protected:
    roce::PacketCarrier& carrier() { return *carrier_; }

  private:
    roce::PacketCarrier* carrier_;
};

// Backend `packet`: the RoCE model on our own event engine.
std::unique_ptr<PacketSimulation> make_packet_simulation(Network network, std::uint32_t ecmp_seed,
                                                         const roce::Parameters& parameters);

}  // namespace netsim
