// Backend `ns3`.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../simulation.hpp"
#include "captures.hpp"
#include "trace_log.hpp"

namespace netsim {

class Ns3Carrier;

// The RoCE model on ns-3, with what ns-3 offers to look at it.
class Ns3Simulation final : public PacketSimulation {
  public:
    // Throws MisuseError while another ns-3 network is open in the process, or where the model is to skip times.
    Ns3Simulation(Network network, std::uint32_t ecmp_seed, const roce::Parameters& parameters,
                  const std::vector<std::string>& node_names);

    // Captures the devices that send by the links; without links, all but those of NVLink, which has no frames. The
    // folder exists. Throws as Captures::add does, and for links that do not exist or are NVLink.
    void capture(const std::string& folder, const std::vector<std::int64_t>* links, std::int64_t most_bytes);
    std::vector<std::pair<std::string, std::string>> attributes(const std::string& path);
    void trace(const std::string& path);
    // Valid until the next call that advances.
    const std::vector<TraceRow>& traced();
    // The clock of ns-3.
    TimePs simulator_now_ps();

  private:
    Ns3Carrier& ns3_carrier();
    bool is_nvlink(LinkId link) const;

    TraceLog log_;
    Captures captures_;
};

}  // namespace netsim
