// Nodes in a row joined by ns-3's own point-to-point devices: an independent account of serialisation,
// store-and-forward, queueing and propagation.
#pragma once

#include <ns3/node.h>
#include <ns3/point-to-point-net-device.h>

#include <optional>
#include <vector>

#include "../exclusive_use.hpp"
#include "session.hpp"

namespace netsim {

struct ChainLink {
    std::int64_t rate_bps;
    TimePs delay_ps;
};

struct ChainDelivery {
    std::int64_t packet;  // in the order of arrival at the first device, from 0
    TimePs at_ps;         // last bit at the last node
};

// Packets go from the first node to the last. Each link adds `kHeaderBytes` (PPP) on the wire; queues are unbounded,
// nothing is lost. Every method throws MisuseError after `close` and while another thread is inside.
class PointToPointChain {
  public:
    static constexpr std::int64_t kHeaderBytes = 2;
    static constexpr std::int64_t kMaxPayloadBytes = 65'535;

    explicit PointToPointChain(const std::vector<ChainLink>& links);

    // Hands the packet to the first device at that instant, which may be in the future.
    void send(std::int64_t payload_bytes, TimePs at_ps);
    // Inclusive; returns at the first instant with a delivery, with all deliveries of that instant.
    std::vector<ChainDelivery> advance(TimePs until_ps);
    TimePs now_ps();
    TimePs next_event_ps();
    std::uint64_t event_count();
    void close();

  private:
    using Device = ns3::Ptr<ns3::PointToPointNetDevice>;

    void join(const ChainLink& link);
    SteppedSimulator& simulator() const;

    std::optional<Session> session_;  // first: the network goes before its simulator
    std::vector<ns3::Ptr<ns3::Node>> nodes_;
    std::vector<Device> senders_;  // [links]
    std::vector<ChainDelivery> delivered_;
    std::int64_t next_delivered_ = 0;
    std::atomic_flag in_use_;
};

}  // namespace netsim
