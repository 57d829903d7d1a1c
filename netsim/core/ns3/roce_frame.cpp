#include "roce_frame.hpp"

#include <array>
#include <span>
#include <vector>

#include "../ecmp.hpp"

namespace netsim {

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kEthernetBytes = 14, kIpv4Bytes = 20, kUdpBytes = 8, kIcrcBytes = 4;
constexpr std::size_t kIpv4At = kEthernetBytes, kUdpAt = kIpv4At + kIpv4Bytes, kBthAt = kUdpAt + kUdpBytes;
constexpr std::size_t kMinFrameBytes = 60;           // IEEE 802.3, without the frame check sequence
constexpr std::uint16_t kRocePort = 4791;            // RoCEv2 annex A17
constexpr std::uint16_t kDefaultPartition = 0xffff;  // full member of the default partition
constexpr std::uint8_t kTimeToLive = 64;

void put(Bytes& bytes, std::uint64_t value, int width) {
    for (int shift = 8 * (width - 1); shift >= 0; shift -= 8)
        bytes.push_back(static_cast<std::uint8_t>(value >> shift));
}

// Two bytes.
void put_length(Bytes& bytes, std::size_t length) { put(bytes, length <= 0xffff ? length : 0, 2); }

void put_mac(Bytes& bytes, NodeId node) {
    const std::array<std::uint8_t, 6> address = mac_address(node);
    bytes.insert(bytes.end(), address.begin(), address.end());
}

// RFC 1071.
std::uint16_t internet_checksum(std::span<const std::uint8_t> words) {
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < words.size(); i += 2) sum += static_cast<std::uint32_t>(words[i]) << 8 | words[i + 1];
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return static_cast<std::uint16_t>(~sum);
}

// The CRC-32 of Ethernet, one bit-reversed table entry per byte.
constexpr std::array<std::uint32_t, 256> make_crc_table() {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
        std::uint32_t value = i;
        for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ ((value & 1) != 0 ? 0xedb88320U : 0U);
        table[i] = value;
    }
    return table;
}
constexpr std::array<std::uint32_t, 256> kCrcTable = make_crc_table();

constexpr std::uint32_t add_to_crc(std::uint32_t crc, std::uint8_t byte) {
    return crc >> 8 ^ kCrcTable[(crc ^ byte) & 0xff];
}

// What zeros do to the CRC is linear in its bits: a column for each.
using CrcMatrix = std::array<std::uint32_t, 32>;

constexpr std::uint32_t transform_crc(const CrcMatrix& matrix, std::uint32_t crc) {
    std::uint32_t result = 0;
    for (std::size_t bit = 0; crc != 0; ++bit, crc >>= 1) result ^= (crc & 1) != 0 ? matrix[bit] : 0;
    return result;
}

// 2^i zero bytes.
constexpr std::array<CrcMatrix, 32> make_zero_matrices() {
    std::array<CrcMatrix, 32> matrices{};
    for (std::size_t bit = 0; bit < 32; ++bit) matrices[0][bit] = add_to_crc(1U << bit, 0);
    for (std::size_t i = 1; i < 32; ++i) {
        for (std::size_t bit = 0; bit < 32; ++bit)
            matrices[i][bit] = transform_crc(matrices[i - 1], matrices[i - 1][bit]);
    }
    return matrices;
}
constexpr std::array<CrcMatrix, 32> kZeroMatrices = make_zero_matrices();

std::uint32_t add_zeros_to_crc(std::uint32_t crc, std::uint32_t bytes) {
    for (std::size_t i = 0; bytes != 0; ++i, bytes >>= 1) {
        if ((bytes & 1) != 0) crc = transform_crc(kZeroMatrices[i], crc);
    }
    return crc;
}

// InfiniBand's invariant CRC of a RoCEv2 packet: over IPv4 to payload, where what routers may change counts as ones,
// and eight bytes of ones stand for the local route header.
std::uint32_t invariant_crc(Bytes headers, std::uint32_t payload_bytes) {
    headers[kIpv4At + 1] = 0xff;                           // DSCP and ECN
    headers[kIpv4At + 8] = 0xff;                           // time to live
    headers[kIpv4At + 10] = headers[kIpv4At + 11] = 0xff;  // header checksum
    headers[kUdpAt + 6] = headers[kUdpAt + 7] = 0xff;      // UDP checksum
    headers[kBthAt + 4] = 0xff;                            // FECN, BECN, reserved
    std::uint32_t crc = ~0U;
    for (int i = 0; i < 8; ++i) crc = add_to_crc(crc, 0xff);
    for (std::size_t i = kIpv4At; i < headers.size(); ++i) crc = add_to_crc(crc, headers[i]);
    return ~add_zeros_to_crc(crc, payload_bytes);
}

bool has_address(RoceOpcode opcode) { return opcode == RoceOpcode::write_first || opcode == RoceOpcode::write_only; }

void put_ipv4(Bytes& bytes, const RoceFrame& frame, std::size_t total_bytes) {
    constexpr std::uint64_t kVersionAndLength = 0x45, kDoNotFragment = 0x4000, kUdp = 17;
    const bool is_congested = frame.is_marked && frame.opcode != RoceOpcode::acknowledge;
    const std::uint64_t ecn = is_congested ? 3 : 2;  // RFC 3168: congestion experienced; capable of it
    put(bytes, kVersionAndLength, 1);
    put(bytes, static_cast<std::uint64_t>(frame.priority) << 5 | ecn, 1);
    put_length(bytes, total_bytes);
    put(bytes, 0, 2);
    put(bytes, kDoNotFragment, 2);
    put(bytes, kTimeToLive, 1);
    put(bytes, kUdp, 1);
    put(bytes, 0, 2);
    put(bytes, node_address(frame.src), 4);
    put(bytes, node_address(frame.dst), 4);
    const std::uint16_t checksum = internet_checksum(std::span(bytes).subspan(kIpv4At, kIpv4Bytes));
    bytes[kIpv4At + 10] = static_cast<std::uint8_t>(checksum >> 8);
    bytes[kIpv4At + 11] = static_cast<std::uint8_t>(checksum);
}

// Base transport header and the extension that the opcode asks for.
Bytes transport_of(const RoceFrame& frame, std::uint32_t padding) {
    Bytes bytes;
    const bool is_answer = frame.opcode == RoceOpcode::acknowledge;
    put(bytes, static_cast<std::uint8_t>(frame.opcode), 1);
    put(bytes, 0x40 | padding << 4, 1);  // migrated; version 0
    put(bytes, kDefaultPartition, 2);
    put(bytes, is_answer && frame.is_marked ? 0x40 : 0, 1);  // backward congestion notification
    put(bytes, frame.queue_pair & 0xffffff, 3);
    put(bytes, (is_answer ? 0U : 1U << 31) | (frame.sequence & 0xffffff), 4);  // writes ask for an acknowledgement
    if (is_answer) {
        put(bytes, frame.is_negative ? 0x60 : 0x1f, 1);  // NAK, sequence error; ACK, credits not in use
        put(bytes, 0, 3);
    } else if (has_address(frame.opcode)) {
        put(bytes, frame.remote_address, 8);
        put(bytes, 0, 4);
        put(bytes, frame.message_bytes, 4);
    }
    return bytes;
}

ns3::Ptr<ns3::Packet> packet_of(const Bytes& bytes) {
    return ns3::Create<ns3::Packet>(bytes.data(), static_cast<std::uint32_t>(bytes.size()));
}

}  // namespace

std::array<std::uint8_t, 6> mac_address(NodeId node) {
    return {0x02,  // locally administered
            0x00,
            static_cast<std::uint8_t>(node >> 24),
            static_cast<std::uint8_t>(node >> 16),
            static_cast<std::uint8_t>(node >> 8),
            static_cast<std::uint8_t>(node)};
}

ns3::Ptr<ns3::Packet> make_frame(const RoceFrame& frame) {
    const std::uint32_t padding = (4 - frame.payload_bytes % 4) % 4;
    const std::uint32_t padded = frame.payload_bytes + padding;
    const Bytes transport = transport_of(frame, padding);
    const std::size_t udp_bytes = kUdpBytes + transport.size() + padded + kIcrcBytes;
    Bytes bytes;
    put_mac(bytes, frame.dst);
    put_mac(bytes, frame.src);
    put(bytes, 0x0800, 2);
    put_ipv4(bytes, frame, kIpv4Bytes + udp_bytes);
    put(bytes, frame.udp_source_port, 2);
    put(bytes, kRocePort, 2);
    put_length(bytes, udp_bytes);
    put(bytes, 0, 2);
    bytes.insert(bytes.end(), transport.begin(), transport.end());
    const std::uint32_t crc = invariant_crc(bytes, padded);
    const Bytes trailer = {static_cast<std::uint8_t>(crc), static_cast<std::uint8_t>(crc >> 8),
                           static_cast<std::uint8_t>(crc >> 16), static_cast<std::uint8_t>(crc >> 24)};
    const auto packet = packet_of(bytes);
    packet->AddAtEnd(ns3::Create<ns3::Packet>(padded));
    packet->AddAtEnd(packet_of(trailer));
    return packet;
}

ns3::Ptr<ns3::Packet> make_pause_frame(NodeId src, std::uint8_t priority, bool is_pause) {
    Bytes bytes;
    put(bytes, 0x0180c2000001, 6);
    put_mac(bytes, src);
    put(bytes, 0x8808, 2);  // MAC control
    put(bytes, 0x0101, 2);  // priority flow control
    put(bytes, 1U << priority, 2);
    for (std::uint8_t i = 0; i < 8; ++i) put(bytes, is_pause && i == priority ? 0xffff : 0, 2);
    bytes.resize(kMinFrameBytes);
    return packet_of(bytes);
}

}  // namespace netsim
