#include "ns3_simulation.hpp"

#include <limits>

#include "ns3_carrier.hpp"

namespace netsim {

Ns3Simulation::Ns3Simulation(Network network, std::uint32_t ecmp_seed, const roce::Parameters& parameters,
                             const std::vector<std::string>& node_names)
    : PacketSimulation(std::move(network), ecmp_seed, parameters,
                       [&](const Network& links, Routing& routing, const roce::Parameters& model) {
                           return std::make_unique<Ns3Carrier>(links, routing, model, node_names);
                       }) {}

Ns3Carrier& Ns3Simulation::ns3_carrier() { return static_cast<Ns3Carrier&>(carrier()); }

bool Ns3Simulation::is_nvlink(LinkId link) const {
    return network().is_inside_server(network().link(link).src) || network().is_inside_server(network().link(link).dst);
}

void Ns3Simulation::capture(const std::string& folder, const std::vector<std::int64_t>* links,
                            std::int64_t most_bytes) {
    const Lease lease(*this);
    if (most_bytes < 1 || most_bytes > std::numeric_limits<std::uint16_t>::max()) {
        throw MisuseError("pcap: found " + std::to_string(most_bytes) + " bytes of a frame, expected 1 to 65535");
    }
    std::vector<LinkId> chosen;
    if (links == nullptr) {
        for (LinkId link = 0; link < network().link_count(); ++link) {
            if (!is_nvlink(link)) chosen.push_back(link);
        }
    } else {
        for (const std::int64_t link : *links) chosen.push_back(checked_link(link, "pcap"));
    }
    for (const LinkId link : chosen) {
        if (is_nvlink(link)) {
            throw MisuseError("pcap: found link " + std::to_string(link) + " of NVLink, expected one with frames");
        }
    }
    for (const LinkId link : chosen) {
        captures_.add(ns3_carrier().objects().sender(link), folder, static_cast<std::uint32_t>(most_bytes));
    }
}

std::vector<std::pair<std::string, std::string>> Ns3Simulation::attributes(const std::string& path) {
    const Lease lease(*this);
    return read_attributes(path);
}

void Ns3Simulation::trace(const std::string& path) {
    const Lease lease(*this);
    log_.connect(path);
}

const std::vector<TraceRow>& Ns3Simulation::traced() {
    const Lease lease(*this);
    return log_.rows();
}

TimePs Ns3Simulation::simulator_now_ps() {
    const Lease lease(*this);
    return ns3::Simulator::Now().GetTimeStep();
}

}  // namespace netsim
