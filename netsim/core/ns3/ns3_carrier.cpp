#include "ns3_carrier.hpp"

namespace netsim {

Ns3Carrier::Ns3Carrier(const Network& network, Routing& routing, const roce::Parameters& parameters,
                       const std::vector<std::string>& node_names)
    : RoceObjects(network, node_names),
      FabricCarrier(network, routing, parameters, TracingObserver(*this), simulator()) {
    if (parameters.skip_tolerance > 0) {
        throw MisuseError("ns3: found a skip_tolerance above 0, expected 0, as the clock of ns-3 would stand still");
    }
    show(*this);
}

void Ns3Carrier::set_link_up(LinkId link, bool is_up, TimePs now_ps) {
    const bool was_up = port(link).is_up;
    FabricCarrier::set_link_up(link, is_up, now_ps);
    if (is_up != was_up) sender(link).NotifyLinkChange();
}

roce::LinkCounters Ns3Carrier::counters(LinkId link) const {
    roce::LinkCounters counters = fabric().counters(link);
    counters.paused_ps = fabric().paused_ps(link);
    return counters;
}

}  // namespace netsim
