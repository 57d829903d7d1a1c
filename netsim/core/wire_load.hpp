// Loads of flows on links where packets have headers and are acknowledged.
#pragma once

#include <optional>

#include "active_flows.hpp"
#include "carrier.hpp"
#include "wire_format.hpp"

namespace netsim {

// What a flow puts on links, how much of it, and what it takes from the last byte sent to its arrival.
struct Shipment {
    Load load;
    Work amount;  // of load.data_weight per unit of rate
    TimePs tail_ps;
};

// Without a wire format, a flow is its bytes. With one, flows that leave NVLink are packets: each has a header, the
// last may be short, and ACKs load the way back in proportion to the rate, spread evenly over the flow. The rate of all
// flows then counts the same small amount of payload per time, a common divisor of what one ACK stands for, so that
// weights are whole numbers and fairness is one of payload.
//
// The tail is propagation and, with a wire format, store-and-forward: draining covers one hop at the narrowest
// capacity, and the first packet has to pass every other. For a flow alone this is exact; ignored are queues of other
// flows' packets on the way, and what makes an end wait for a last ACK.
class WireLoads {
  public:
    // Throws where the format is not one: no payload, negative numbers, or too large ones.
    WireLoads(const Network& network, Routing& routing, std::optional<WireFormat> format);

    // kRateUnitsPerBps; with a wire format, a divisor of it times the weight of a flow, so that small numbers of flows
    // share a link without a remainder. As fine as 64 bits allow.
    std::int64_t rate_units_per_bps() const { return rate_units_per_bps_; }
    // Rate x time of a byte, with weight 1.
    Work work_per_byte() const { return Work{8} * kPsPerSecond * rate_units_per_bps_; }
    Shipment shipment(const Path& path, const Demand& demand) const;
    // Whether the path has a link outside servers.
    bool leaves_nvlink(const Path& path) const;

  private:
    TimePs store_and_forward_ps(const Path& path, std::int64_t packet_bytes) const;

    const Network& network_;
    Routing& routing_;
    WireFormat format_{.mtu_bytes = 1};
    std::int64_t largest_capacity_bps_;
    bool has_format_;
    std::int64_t rate_units_per_bps_ = kRateUnitsPerBps;
    std::uint32_t payload_weight_ = 1, wire_weight_ = 1, ack_weight_ = 0;
};

}  // namespace netsim
