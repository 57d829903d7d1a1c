// Packets of the model as the frames that a capture of real RoCEv2 traffic would hold.
#pragma once

#include <ns3/packet.h>

#include <cstdint>

#include "../types.hpp"

namespace netsim {

// Opcodes of the reliable connection service (InfiniBand Architecture Specification, volume 1, section 9.2.1).
enum class RoceOpcode : std::uint8_t {
    write_first = 0x06,
    write_middle = 0x07,
    write_last = 0x08,
    write_only = 0x0a,
    acknowledge = 0x11,
};

struct RoceFrame {
    RoceOpcode opcode;
    NodeId src, dst;
    std::uint16_t udp_source_port;  // what ECMP hashes
    std::uint32_t queue_pair;       // of the receiver; 24 bits count
    std::uint32_t sequence;         // packet sequence number; 24 bits count
    std::uint8_t priority;          // 0 to 7: the upper three bits of the DSCP
    bool is_marked;                 // ECN: congestion experienced
    bool is_negative;               // of acknowledgements: sequence error
    std::uint32_t payload_bytes;    // of writes
    std::uint32_t message_bytes;    // of the first packet of a write
};

// Ethernet, IPv4, UDP to port 4791, BTH, RETH or AETH where the opcode has one, payload of zeros, ICRC. Addresses are
// 02:00 and the node id, and 11.(id / 256).(id % 256).1 as in the ns-3 models of HPCC and SimAI (the second number
// wraps after 65,536 nodes). The sizes are those of the real headers, whatever the model charges.
ns3::Ptr<ns3::Packet> make_frame(const RoceFrame& frame);

// A priority flow control frame (IEEE 802.1Q annex 36D): pauses one priority for as long as possible, or resumes it.
ns3::Ptr<ns3::Packet> make_pause_frame(NodeId src, std::uint8_t priority, bool is_pause);

}  // namespace netsim
