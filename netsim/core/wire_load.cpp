#include "wire_load.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

namespace netsim {

namespace {

constexpr Rate kMaxUnits = kMaxCapacityBps * kRateUnitsPerBps;
constexpr std::int64_t kMaxWeight = std::numeric_limits<std::int32_t>::max();

void check(const WireFormat& format) {
    const auto expect = [](const char* name, std::int64_t found, std::int64_t least, std::int64_t most) {
        if (found >= least && found <= most) return;
        throw MisuseError(std::string("wire format: found ") + name + " " + std::to_string(found) + ", expected " +
                          std::to_string(least) + " to " + std::to_string(most));
    };
    expect("mtu_bytes", format.mtu_bytes, 1, kMaxWeight);
    expect("header_bytes", format.header_bytes, 0, kMaxWeight);
    expect("ack_bytes", format.ack_bytes, 0, kMaxWeight);
    expect("packets_per_ack", format.packets_per_ack, 1, kMaxWeight / (format.mtu_bytes + format.header_bytes));
}

std::int64_t largest_capacity_bps(const Network& network) {
    std::int64_t largest = 1;
    for (LinkId link = 0; link < network.link_count(); ++link) {
        largest = std::max(largest, network.link(link).capacity_bps);
    }
    return largest;
}

TimePs ceil_ps(std::int64_t bytes, std::int64_t rate_bps) {
    const Work bits = Work{8} * bytes * kPsPerSecond;
    return static_cast<TimePs>((bits + rate_bps - 1) / rate_bps);
}

}  // namespace

WireLoads::WireLoads(const Network& network, Routing& routing, std::optional<WireFormat> format)
    : network_(network),
      routing_(routing),
      largest_capacity_bps_(largest_capacity_bps(network)),
      has_format_(format.has_value()) {
    if (!has_format_) return;
    check(*format);
    format_ = *format;
    const std::int64_t payload = format_.packets_per_ack * format_.mtu_bytes;
    const std::int64_t headers = format_.packets_per_ack * format_.header_bytes;
    const std::int64_t divisor = std::gcd(std::gcd(payload, headers), format_.ack_bytes);
    payload_weight_ = static_cast<std::uint32_t>(payload / divisor);
    wire_weight_ = static_cast<std::uint32_t>((payload + headers) / divisor);
    ack_weight_ = static_cast<std::uint32_t>(format_.ack_bytes / divisor);
    const std::int64_t room = kMaxUnits / largest_capacity_bps_ / wire_weight_;
    for (std::int64_t units = kRateUnitsPerBps; units > 0; --units) {
        if (units > room || kRateUnitsPerBps % units != 0) continue;
        rate_units_per_bps_ = units * wire_weight_;
        break;
    }
}

Shipment WireLoads::shipment(const Path& path, const Demand& demand) const {
    // A cap above every link is none.
    const bool is_capped = demand.max_rate_bps != 0 && demand.max_rate_bps <= largest_capacity_bps_;
    const Rate cap = is_capped ? demand.max_rate_bps * rate_units_per_bps_ / payload_weight_ : kUncapped;
    const auto amount = [this](std::int64_t bytes, std::uint32_t weight) {
        return (bytes * work_per_byte() + weight - 1) / weight;
    };
    if (!has_format_ || !leaves_nvlink(path)) {
        return {{.data = &path, .data_weight = payload_weight_, .cap = cap},
                amount(demand.size_bytes, payload_weight_),
                path.latency_ps};
    }
    const std::int64_t packets = (demand.size_bytes + format_.mtu_bytes - 1) / format_.mtu_bytes;
    const std::int64_t first_packet = std::min(demand.size_bytes, format_.mtu_bytes) + format_.header_bytes;
    const Path* acks = ack_weight_ > 0 ? &routing_.reverse_path(demand.src, demand.dst, demand.flow_label) : nullptr;
    return {{&path, acks, wire_weight_, ack_weight_, cap},
            amount(demand.size_bytes + packets * format_.header_bytes, wire_weight_),
            path.latency_ps + store_and_forward_ps(path, first_packet)};
}

// Every link inside a server begins or ends at an NVSwitch or a PCIe switch.
bool WireLoads::leaves_nvlink(const Path& path) const {
    return std::ranges::any_of(path.links, [&](LinkId id) {
        const Link& link = network_.link(id);
        return !network_.is_inside_server(link.src) && !network_.is_inside_server(link.dst);
    });
}

TimePs WireLoads::store_and_forward_ps(const Path& path, std::int64_t packet_bytes) const {
    TimePs sum = -ceil_ps(packet_bytes, path.bottleneck_bps);
    for (const LinkId link : path.links) sum += ceil_ps(packet_bytes, network_.link(link).capacity_bps);
    return sum;
}

}  // namespace netsim
