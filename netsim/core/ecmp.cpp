#include "ecmp.hpp"

#include <bit>

namespace netsim {

namespace {

constexpr std::uint32_t kFirstSourcePort = 10000;
constexpr std::uint32_t kDestinationPort = 100;

std::uint32_t scramble(std::uint32_t word) { return std::rotl(word * 0xcc9e2d51U, 15) * 0x1b873593U; }

std::uint32_t mix(std::uint32_t hash, std::uint32_t word) {
    return std::rotl(hash ^ scramble(word), 13) * 5 + 0xe6546b64U;
}

// A bijection that leaves 0 as it is.
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
        hash = mix(hash, bytes[at] | std::uint32_t{bytes[at + 1]} << 8 | std::uint32_t{bytes[at + 2]} << 16 |
                             std::uint32_t{bytes[at + 3]} << 24);
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

FlowTuple FlowTuple::reversed() const { return {destination_address, source_address, std::rotl(ports, 16)}; }

FlowTuple flow_tuple(NodeId src, NodeId dst, std::uint32_t flow_label) {
    return {node_address(src), node_address(dst), packed_ports(flow_label)};
}

std::uint32_t hash_seed(NodeId at, std::uint32_t ecmp_seed) { return at ^ finalise(ecmp_seed); }

std::uint32_t ecmp_hash(const FlowTuple& tuple, std::uint32_t seed) {
    const std::uint32_t hash = mix(mix(mix(seed, tuple.source_address), tuple.destination_address), tuple.ports);
    return finalise(hash ^ 12);  // the length in bytes
}

}  // namespace netsim
