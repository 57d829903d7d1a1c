#include "ns3_simulation.hpp"

#include "../roce/fabric_carrier.hpp"
#include "ns3_engine.hpp"

namespace netsim {

std::unique_ptr<PacketSimulation> make_ns3_simulation(Network network, std::uint32_t ecmp_seed,
                                                      const roce::Parameters& parameters) {
    return std::make_unique<PacketSimulation>(
        std::move(network), ecmp_seed, parameters,
        [](const Network& links, Routing& routing, const roce::Parameters& model) {
            return std::make_unique<roce::FabricCarrier<Ns3Engine>>(links, routing, model);
        });
}

}  // namespace netsim
