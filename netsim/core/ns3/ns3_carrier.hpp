// The RoCE model as a carrier on ns-3.
#pragma once

#include "../roce/fabric_carrier.hpp"
#include "ns3_engine.hpp"
#include "roce_objects.hpp"
#include "tracing_observer.hpp"

namespace netsim {

// The objects come first and go last, as the model runs on their simulator.
class Ns3Carrier final : private RoceObjects,
                         public roce::FabricCarrier<Ns3Engine, TracingObserver>,
                         private FabricView {
  public:
    // Throws MisuseError while another ns-3 network is open in the process, or where the model is to skip times.
    Ns3Carrier(const Network& network, Routing& routing, const roce::Parameters& parameters,
               const std::vector<std::string>& node_names);

    RoceObjects& objects() { return *this; }
    void set_link_up(LinkId link, bool is_up, TimePs now_ps) override;

  private:
    const roce::Parameters& parameters() const override { return fabric().parameters(); }
    const roce::Port& port(LinkId link) const override { return fabric().port(link); }
    roce::LinkCounters counters(LinkId link) const override;
    std::int64_t queued_bytes(LinkId link) const override { return fabric().queued_bytes(link); }
    const roce::QueuePair& queue_pair(roce::QueuePairIndex index) const override {
        return fabric().queue_pairs()[index];
    }
};

}  // namespace netsim
