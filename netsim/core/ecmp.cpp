#include "ecmp.hpp"

#include <array>
#include <bit>

namespace netsim {

namespace {

constexpr std::uint32_t kFirstSourcePort = 10000;
constexpr std::uint32_t kDestinationPort = 100;

std::uint32_t scramble(std::uint32_t word) { return std::rotl(word * 0xcc9e2d51U, 15) * 0x1b873593U; }

std::uint32_t finalise(std::uint32_t hash) {
    hash = (hash ^ (hash >> 16)) * 0x85ebca6bU;
    hash = (hash ^ (hash >> 13)) * 0xc2b2ae35U;
    return hash ^ (hash >> 16);
}

}  // namespace

std::uint32_t murmur3_32(std::span<const std::uint8_t> bytes, std::uint32_t seed) {
    std::uint32_t hash = seed;
    std::size_t at = 0;
    for (; at + 4 <= bytes.size(); at += 4) {
        const std::uint32_t word = bytes[at] | std::uint32_t{bytes[at + 1]} << 8 | std::uint32_t{bytes[at + 2]} << 16 |
                                   std::uint32_t{bytes[at + 3]} << 24;
        hash = std::rotl(hash ^ scramble(word), 13) * 5 + 0xe6546b64U;
    }
    std::uint32_t tail = 0;
    for (std::size_t shift = 0; at < bytes.size(); ++at, shift += 8) tail |= std::uint32_t{bytes[at]} << shift;
    hash ^= scramble(tail);
    return finalise(hash ^ static_cast<std::uint32_t>(bytes.size()));
}

std::uint32_t node_address(NodeId node) { return 0x0b000001U + ((node / 256) << 16) + ((node % 256) << 8); }

std::uint32_t packed_ports(std::uint32_t flow_label) {
    const std::uint32_t source = (kFirstSourcePort + (flow_label & 0xffffU)) & 0xffffU;
    const std::uint32_t destination = (kDestinationPort + (flow_label >> 16)) & 0xffffU;
    return source | destination << 16;
}

std::uint32_t ecmp_hash(NodeId src, NodeId dst, std::uint32_t flow_label, NodeId at) {
    std::array<std::uint8_t, 12> key{};
    std::size_t next = 0;
    for (const std::uint32_t word : {node_address(src), node_address(dst), packed_ports(flow_label)}) {
        for (int shift = 0; shift < 32; shift += 8) key[next++] = static_cast<std::uint8_t>(word >> shift);
    }
    return murmur3_32(key, at);
}

}  // namespace netsim
