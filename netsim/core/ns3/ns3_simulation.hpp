// Backend `ns3`.
#pragma once

#include <memory>

#include "../simulation.hpp"

namespace netsim {

// The RoCE model on ns-3. Throws MisuseError while another ns-3 network is open in the process.
std::unique_ptr<PacketSimulation> make_ns3_simulation(Network network, std::uint32_t ecmp_seed,
                                                      const roce::Parameters& parameters);

}  // namespace netsim
