// The hash by which a switch chooses among equal-cost next hops.
#pragma once

#include <cstdint>
#include <span>

#include "types.hpp"

namespace netsim {

// MurmurHash3_x86_32 (A. Appleby, public domain algorithm).
std::uint32_t murmur3_32(std::span<const std::uint8_t> bytes, std::uint32_t seed);

// IPv4 address 11.(i div 256).(i mod 256).1 of node i, as in the ns-3 models of HPCC and SimAI.
std::uint32_t node_address(NodeId node);

// Source and destination port of queue pair number `flow_label` of a pair of nodes, packed sport | dport << 16.
// Queue pairs count from source port 10000 with destination port 100 (as in SimAI); the upper half of the label
// enters the destination port, so all 32 bits of it matter.
std::uint32_t packed_ports(std::uint32_t flow_label);

// murmur3-32 of (source address, destination address, ports), little endian words, seeded by the deciding node.
std::uint32_t ecmp_hash(NodeId src, NodeId dst, std::uint32_t flow_label, NodeId at);

}  // namespace netsim
