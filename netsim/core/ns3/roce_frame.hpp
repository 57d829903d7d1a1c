// Packets of the model as the frames that a capture of real RoCEv2 traffic would hold.
#pragma once

#include <ns3/packet.h>

#include <array>
#include <cstdint>
#include <netsim/types.hpp>

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
    bool is_marked;                 // of writes: congestion experienced; of acknowledgements: a write was marked
    bool is_negative;               // of acknowledgements: sequence error
    std::uint32_t payload_bytes;    // of writes
    std::uint64_t remote_address;   // of the first packet of a write
    std::uint32_t message_bytes;    // the same
};

// IPv4 and UDP headers, BTH, RETH, ICRC: what comes to the payload of the first packet of a write.
inline constexpr std::int64_t kLongestIpv4HeadersBytes = 20 + 8 + 12 + 16 + 4;

// 02:00 and the number of the node: ports of a node share an address, as those of a bonded network interface.
std::array<std::uint8_t, 6> mac_address(NodeId node);

// Ethernet, IPv4, UDP to port 4791, BTH, RETH or AETH where the opcode has one, payload of zeros, ICRC. Addresses are
// mac_address and node_address. The sizes are those of the real headers, whatever the model charges. Lengths that the
// headers cannot express (more than 64 KiB: cells) are 0, as in captures with segmentation offload.
ns3::Ptr<ns3::Packet> make_frame(const RoceFrame& frame);

// A priority flow control frame (IEEE 802.1Q annex 36D): pauses one priority for as long as possible, or resumes it.
ns3::Ptr<ns3::Packet> make_pause_frame(NodeId src, std::uint8_t priority, bool is_pause);

}  // namespace netsim
