// The hash by which a switch chooses among equal-cost next hops.
#pragma once

#include <cstdint>
#include <netsim/types.hpp>
#include <span>

namespace netsim {

// MurmurHash3_x86_32 (A. Appleby, public domain algorithm).
std::uint32_t murmur3_32(std::span<const std::uint8_t> bytes, std::uint32_t seed);

// IPv4 address 11.(i div 256).(i mod 256).1 of node i, as in the ns-3 models of HPCC and SimAI.
std::uint32_t node_address(NodeId node);

// Source and destination port of queue pair number `flow_label` of a pair of nodes, packed sport | dport << 16.
// Queue pairs count from source port 10000 with destination port 100 (as in SimAI); the upper half of the label
// enters the destination port, so all 32 bits of it matter.
std::uint32_t packed_ports(std::uint32_t flow_label);

// What the header of a packet says to a switch about its flow.
struct FlowTuple {
    std::uint32_t source_address, destination_address;
    std::uint32_t ports;  // sport | dport << 16

    // Of the packets of the flow's ACKs: addresses and ports swapped.
    FlowTuple reversed() const;
};
FlowTuple flow_tuple(NodeId src, NodeId dst, std::uint32_t flow_label);

// Seed of the hash at a node: its number, from which another `ecmp_seed` than 0 leads to an unrelated one.
std::uint32_t hash_seed(NodeId at, std::uint32_t ecmp_seed);

// murmur3-32 of (source address, destination address, ports) as little endian words.
std::uint32_t ecmp_hash(const FlowTuple& tuple, std::uint32_t seed);

}  // namespace netsim
