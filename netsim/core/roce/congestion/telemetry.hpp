// Telemetry, the input of a congestion controller: the signals of one acknowledgement and the limits of its flow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <netsim/types.hpp>
#include <span>

namespace netsim {

// In-band telemetry that one egress port wrote into a data packet when the packet left it, as in HPCC (Li et al.,
// SIGCOMM 2019, section 4.1), but with full-width counters: nothing wraps, and any line rate can be given.
struct IntHop {
    std::int64_t capacity_bps;
    TimePs at_ps;              // when the packet left the port
    std::int64_t sent_bytes;   // all bytes the port has ever sent
    std::int64_t queue_bytes;  // bytes that then waited in the queue of the packet
};

// Hops with telemetry on one path: eight switches are more than any minimal path of the supplied fabrics has.
inline constexpr std::size_t kMaxIntHops = 8;

// One acknowledgement (or NACK) at the sender. Sequence numbers count bytes from 0.
struct AckSignal {
    TimePs now_ps;
    TimePs rtt_ps;             // since the acknowledged packet began to leave the sender
    std::int64_t acked_bytes;  // newly acknowledged by this one
    std::int64_t acked_seq;    // cumulative: all bytes below have arrived
    std::int64_t next_seq;     // the next byte that the sender will send
    bool is_marked;            // a packet it acknowledges met congestion (ECN)
    std::span<const IntHop> hops;
};

// What bounds one flow, whatever the scheme.
struct FlowLimits {
    std::int64_t line_bps;      // rate of the sending port, at which flows start
    TimePs base_rtt_ps;         // round trip without queueing
    std::int64_t mtu_bytes;     // payload of a full packet
    std::int64_t window_bytes;  // bandwidth-delay product by which HPCC normalises queues
};

}  // namespace netsim
