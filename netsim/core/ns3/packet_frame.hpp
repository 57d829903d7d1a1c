// The frame that a capture would show of a packet of the model.
#pragma once

#include <ns3/packet.h>

#include "fabric_view.hpp"

namespace netsim {

// A RoCEv2 write or acknowledgement, or a priority flow control frame; on NVLink the payload alone, as the model knows
// no headers there. `link` is the one that the packet is on, or waits for. A flow is one RDMA write, or several of at
// most 2 GiB; packet sequence numbers count packets (or cells) of the flow from 0; queue pair numbers follow from slots
// of the model, which later flows use again. An acknowledgement with selective repeat names the packet it answers.
ns3::Ptr<ns3::Packet> frame_of(const roce::Packet& packet, LinkId link, const FabricView& view);

}  // namespace netsim
