// A flow in transport: sender and receiver of one message.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "carrier.hpp"
#include "packet.hpp"
#include "roce/congestion/congestion_control.hpp"

namespace netsim::roce {

// Which packets of a message have arrived, for selective repeat.
class ArrivalMap {
  public:
    ArrivalMap(std::int64_t size_bytes, std::int64_t unit_bytes)
        : unit_bytes_(unit_bytes),
          words_(static_cast<std::size_t>((size_bytes + unit_bytes - 1) / unit_bytes / 64 + 1)) {}

    // True where the packet is new.
    bool add(std::int64_t seq) {
        const auto unit = static_cast<std::size_t>(seq / unit_bytes_);
        const std::uint64_t bit = std::uint64_t{1} << (unit & 63);
        const bool is_new = (words_[unit >> 6] & bit) == 0;
        words_[unit >> 6] |= bit;
        return is_new;
    }
    // First byte at or after `seq`, at most the end of the message, of a packet that is missing.
    std::int64_t first_missing(std::int64_t seq) const {
        auto unit = static_cast<std::size_t>(seq / unit_bytes_);
        std::uint64_t missing = ~words_[unit >> 6] & (~std::uint64_t{0} << (unit & 63));
        while (missing == 0) {
            unit = ((unit >> 6) + 1) << 6;
            if ((unit >> 6) == words_.size()) return static_cast<std::int64_t>(unit) * unit_bytes_;
            missing = ~words_[unit >> 6];
        }
        const std::size_t found = (unit & ~std::size_t{63}) + static_cast<std::size_t>(std::countr_zero(missing));
        return static_cast<std::int64_t>(found) * unit_bytes_;
    }

  private:
    std::int64_t unit_bytes_;
    std::vector<std::uint64_t> words_;
};

struct SelectiveRepeat {
    SelectiveRepeat(std::int64_t size_bytes, std::int64_t unit_bytes)
        : received(size_bytes, unit_bytes), acknowledged(size_bytes, unit_bytes) {}

    ArrivalMap received, acknowledged;
    std::int64_t received_bytes = 0, acknowledged_bytes = 0;
    std::int64_t highest_acknowledged = 0;           // first byte of the furthest packet known to have arrived
    std::int64_t resend_from = 0, resend_until = 0;  // holes in between are sent again
};

inline const CongestionParameters kNoCongestionControl{NoControlParameters{}};
inline constexpr std::int64_t kNoWindow = std::numeric_limits<std::int64_t>::max();

struct QueuePair {
    // Sender
    std::int64_t size_bytes;
    std::int64_t next_seq;
    std::int64_t acked_seq;
    std::int64_t window_bytes;       // in force now
    std::int64_t base_window_bytes;  // at line rate
    TimePs next_send_ps;             // not before, by its rate
    TimePs pace_at_ps;               // of the event that waits for it
    TimePs last_send_ps;
    std::int64_t last_wire_bytes;
    std::int64_t rate_cap_bps;  // smallest of line rate and the flow's own cap
    TimePs timeout_ps;          // without progress, until it sends again
    LinkId port;                // first link of its path
    QueuePairIndex next_in_ring;
    std::uint8_t priority;
    Traffic traffic;
    bool is_in_ring, is_waiting_for_pace, is_timer_armed;
    bool is_closed;  // delivered and acknowledged, cancelled or failed; kept while packets are under way
    bool is_delivered, is_free;
    bool is_stranded;      // failures have left it no way; it goes on counting retries
    bool has_transport;    // false: NVLink, where links are reliable and nothing is acknowledged
    bool wants_departure;  // the executor waits for its last byte to leave
    int retries;
    std::uint32_t in_network;  // packets and acknowledgements under way
    const Path* forward;
    const Path* back;
    // Receiver
    std::int64_t expected_seq;
    std::int64_t packets_since_ack;
    TimePs last_nack_ps;
    std::int64_t last_nack_seq;
    bool is_mark_pending;
    // Both
    std::uint32_t generation;  // of its slot, so that events of earlier users are recognised
    TimePs progress_ps;        // last time the sender heard of progress
    TimePs control_timer_ps;   // scheduled; kNever: none
    FlowRef flow;
    NodeId src, dst;
    std::uint32_t flow_label;
    std::unique_ptr<SelectiveRepeat> selective;
    CongestionControl control{kNoCongestionControl, {1, 0, 0, 0}, 0};

    // What the receiver can use.
    std::int64_t received_bytes() const {
        return std::min(size_bytes, selective ? selective->received_bytes : expected_seq);
    }
    std::int64_t in_flight_bytes() const {
        return selective ? next_seq - selective->acknowledged_bytes : next_seq - acked_seq;
    }
    bool has_to_resend() const { return selective && selective->resend_from < selective->resend_until; }
    bool can_send() const {
        return !is_closed && (has_to_resend() || (next_seq < size_bytes && in_flight_bytes() < window_bytes));
    }
};

}  // namespace netsim::roce
