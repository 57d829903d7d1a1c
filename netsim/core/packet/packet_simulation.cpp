#include "packet/wheel_engine.hpp"
#include "roce/fabric_carrier.hpp"
#include "simulation.hpp"

namespace netsim {

std::unique_ptr<PacketSimulation> make_packet_simulation(Network network, std::uint32_t ecmp_seed,
                                                         const roce::Parameters& parameters) {
    return std::make_unique<PacketSimulation>(
        std::move(network), ecmp_seed, parameters,
        [](const Network& links, Routing& routing, const roce::Parameters& model) {
            return std::make_unique<roce::FabricCarrier<WheelEngine>>(links, routing, model, roce::SilentObserver{},
                                                                      links.link_count());
        });
}

}  // namespace netsim
