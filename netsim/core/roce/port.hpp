// The sending end of a directed link: its queues, its wire and its counters.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <numeric>
#include <vector>

#include "network.hpp"
#include "packet.hpp"
#include "parameters.hpp"

namespace netsim::roce {

enum class NodeRole : std::uint8_t { host, packet_switch, nvswitch };

// Cumulative counters of a link, for statistics and time series.
struct LinkCounters {
    std::int64_t packets = 0;
    std::int64_t wire_bytes = 0;
    std::array<std::int64_t, kTrafficKinds> payload_bytes{};  // by traffic
    TimePs busy_ps = 0;
    TimePs paused_ps = 0;  // over all priorities, ended pauses only
    std::int64_t pauses = 0;
    std::int64_t marks = 0;
    std::int64_t drops = 0;
    std::int64_t largest_queue_bytes = 0;  // of one class; not a sum, so left out below

    // Adds `part` of what `change` holds.
    void add(const LinkCounters& change, double part) {
        const auto share = [&](std::int64_t value) {
            return static_cast<std::int64_t>(static_cast<double>(value) * part + 0.5);
        };
        packets += share(change.packets);
        wire_bytes += share(change.wire_bytes);
        for (std::size_t traffic = 0; traffic < kTrafficKinds; ++traffic) {
            payload_bytes[traffic] += share(change.payload_bytes[traffic]);
        }
        busy_ps += share(change.busy_ps);
        paused_ps += share(change.paused_ps);
        pauses += share(change.pauses);
        marks += share(change.marks);
        drops += share(change.drops);
    }
    LinkCounters& operator-=(const LinkCounters& other) {
        packets -= other.packets;
        wire_bytes -= other.wire_bytes;
        for (std::size_t traffic = 0; traffic < kTrafficKinds; ++traffic) {
            payload_bytes[traffic] -= other.payload_bytes[traffic];
        }
        busy_ps -= other.busy_ps;
        paused_ps -= other.paused_ps;
        pauses -= other.pauses;
        marks -= other.marks;
        drops -= other.drops;
        return *this;
    }
    std::int64_t all_payload_bytes() const {
        return std::accumulate(payload_bytes.begin(), payload_bytes.end(), std::int64_t{0});
    }
};

struct Port {
    TimePs busy_since_ps = 0, busy_until_ps = 0;  // with the last packet
    std::int32_t last_payload_bytes = 0;          // of that packet
    Traffic last_traffic = 0;
    TimePs latency_ps;
    std::int64_t capacity_bps;
    PacketFifo wire;  // in flight, in order of arrival
    NodeId to_node;
    LinkId reverse;  // the other direction of the cable
    NodeRole from, to;
    std::uint8_t filled = 0;  // bit per priority: something waits (a packet, or at a host a queue pair)
    std::uint8_t paused = 0;  // bit per priority
    std::uint8_t last_served = 0;
    bool is_transmit_scheduled = false;
    bool is_up = true;
    std::int32_t known_bytes[2] = {-1, -1};  // the last two sizes, full packets and acknowledgements as a rule
    TimePs known_ps[2] = {0, 0};

    // Time to serialise so many bytes, rounded to the nearest picosecond.
    TimePs serialization_ps(std::int32_t bytes) {
        if (bytes == known_bytes[0]) return known_ps[0];
        if (bytes != known_bytes[1]) {
            known_bytes[1] = bytes;
            known_ps[1] = exact_serialization_ps(bytes);
        }
        std::swap(known_bytes[0], known_bytes[1]);
        std::swap(known_ps[0], known_ps[1]);
        return known_ps[0];
    }
    TimePs exact_serialization_ps(std::int64_t bytes) const { return netsim::serialization_ps(bytes, capacity_bps); }

    // The priority that sends next: control first, then round robin; expects one to be ready.
    std::uint8_t next_priority() {
        const unsigned ready = filled & ~paused;
        if (ready & 1U) return kControlPriority;
        const unsigned after = ready & (~0U << (last_served + 1U));
        last_served = static_cast<std::uint8_t>(std::countr_zero(after != 0 ? after : ready));
        return last_served;
    }
    // Flows start at hosts, and at NVSwitches that take part in a collective.
    bool has_queue_pairs() const { return from != NodeRole::packet_switch; }
    bool is_ready() const { return (filled & ~paused) != 0; }
};

struct Queue {
    PacketFifo packets;
    std::int64_t bytes = 0;
};

}  // namespace netsim::roce
