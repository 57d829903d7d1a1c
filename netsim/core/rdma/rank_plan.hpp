// What one rank does of a flow graph, as netsim.backends.rdma.share computes it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace netsim::rdma {

using Nanoseconds = std::int64_t;
inline constexpr Nanoseconds kNever = INT64_MAX;
inline constexpr Nanoseconds kNotYet = -1;

// An event of flow f: 2 f when it has arrived, 2 f + 1 when its last byte has left. It happens on one rank.
using Event = std::uint32_t;
inline constexpr Event arrival_of(std::uint32_t flow) { return 2 * flow; }
inline constexpr Event departure_of(std::uint32_t flow) { return 2 * flow + 1; }

// Entries [offsets[i], offsets[i + 1]) belong to event i.
struct EventTable {
    std::vector<std::int64_t> offsets;
    std::vector<std::int32_t> entries;

    std::span<const std::int32_t> of(Event event) const {
        return std::span(entries).subspan(static_cast<std::size_t>(offsets[event]),
                                          static_cast<std::size_t>(offsets[event + 1] - offsets[event]));
    }
};

// Sends and receives of the rank are numbered densely; peers are ranks.
struct RankPlan {
    std::int64_t flows = 0;  // of the whole graph
    std::vector<std::uint32_t> send_flow;
    std::vector<std::int32_t> send_peer;
    std::vector<std::int64_t> send_bytes;
    std::vector<std::int64_t> send_place;  // of each at its receiver, where all that arrive lie one behind the other
    std::vector<std::uint32_t> send_label;
    std::vector<Nanoseconds> send_ready_ns, send_delay_ns;  // earliest start after T0; local processing
    std::vector<std::int64_t> send_max_bps;                 // 0: none
    std::vector<std::int32_t> send_waits;                   // events that each waits for
    std::vector<std::uint32_t> receive_flow;
    std::vector<std::int64_t> receive_bytes;
    std::vector<std::int64_t> receive_place;
    EventTable dependents;               // sends of this rank that wait for the event, wherever it happens
    EventTable informed;                 // other ranks with flows that wait for the event, which happens here
    std::int64_t expected_messages = 0;  // notify messages that arrive here

    std::size_t sends() const { return send_flow.size(); }
    std::size_t receives() const { return receive_flow.size(); }
};

// Absolute times of this host's CLOCK_MONOTONIC_RAW; kNotYet for what has not happened.
struct RankTimes {
    std::vector<Nanoseconds> ready_ns, posted_ns, left_ns;  // [sends]
    std::vector<Nanoseconds> arrived_ns;                    // [receives]
};

}  // namespace netsim::rdma
