#include "point_to_point_chain.hpp"

#include <ns3/drop-tail-queue.h>
#include <ns3/packet.h>
#include <ns3/point-to-point-channel.h>

#include <limits>
#include <string>

namespace netsim {

namespace {

constexpr std::uint16_t kIpv4EtherType = 0x0800;  // one of the two that the PPP header of the device can carry

void check(const ChainLink& link) {
    if (link.rate_bps <= 0 || link.rate_bps > kMaxCapacityBps) {
        throw MisuseError("chain rate_bps: found " + std::to_string(link.rate_bps) + ", expected 1 to 10^15");
    }
    if (link.delay_ps < 0) {
        throw MisuseError("chain delay_ps: found " + std::to_string(link.delay_ps) + ", expected 0 or more");
    }
}

ns3::Ptr<ns3::PointToPointNetDevice> make_device(const ChainLink& link) {
    auto device = ns3::CreateObject<ns3::PointToPointNetDevice>();
    device->SetAddress(ns3::Mac48Address::Allocate());
    device->SetDataRate(ns3::DataRate(static_cast<std::uint64_t>(link.rate_bps)));
    auto queue = ns3::CreateObject<ns3::DropTailQueue<ns3::Packet>>();
    queue->SetMaxSize(ns3::QueueSize(ns3::QueueSizeUnit::PACKETS, std::numeric_limits<std::uint32_t>::max()));
    device->SetQueue(queue);
    return device;
}

}  // namespace

PointToPointChain::PointToPointChain(const std::vector<ChainLink>& links) {
    if (links.empty()) throw MisuseError("chain: found no link, expected at least one");
    for (const ChainLink& link : links) check(link);
    session_.emplace();
    nodes_.push_back(ns3::CreateObject<ns3::Node>());
    for (const ChainLink& link : links) join(link);
}

void PointToPointChain::join(const ChainLink& link) {
    nodes_.push_back(ns3::CreateObject<ns3::Node>());
    auto channel = ns3::CreateObject<ns3::PointToPointChannel>();
    channel->SetAttribute("Delay", ns3::TimeValue(ns3::Time(link.delay_ps)));
    const Device sender = make_device(link), receiver = make_device(link);
    sender->Attach(channel);
    receiver->Attach(channel);
    nodes_[nodes_.size() - 2]->AddDevice(sender);
    nodes_.back()->AddDevice(receiver);
    senders_.push_back(sender);
    const std::size_t next = senders_.size();
    receiver->SetReceiveCallback(
        [this, next](ns3::Ptr<ns3::NetDevice>, ns3::Ptr<const ns3::Packet> packet, std::uint16_t, const ns3::Address&) {
            if (next < senders_.size()) {
                senders_[next]->Send(packet->Copy(), senders_[next]->GetBroadcast(), kIpv4EtherType);
            } else {
                delivered_.push_back({next_delivered_++, simulator().now_ps()});
                simulator().request_stop();
            }
            return true;
        });
}

SteppedSimulator& PointToPointChain::simulator() const {
    if (!session_) throw MisuseError("chain: used after close, expected an open one");
    return session_->simulator();
}

void PointToPointChain::send(std::int64_t payload_bytes, TimePs at_ps) {
    const ExclusiveUse use(in_use_);
    SteppedSimulator& engine = simulator();
    if (payload_bytes < 1 || payload_bytes > kMaxPayloadBytes) {
        throw MisuseError("chain payload_bytes: found " + std::to_string(payload_bytes) + ", expected 1 to " +
                          std::to_string(kMaxPayloadBytes));
    }
    if (at_ps < engine.now_ps()) {
        throw MisuseError("chain at_ps: found " + std::to_string(at_ps) + ", expected not before now, " +
                          std::to_string(engine.now_ps()));
    }
    const auto size = static_cast<std::uint32_t>(payload_bytes);
    ns3::Simulator::ScheduleWithContext(nodes_.front()->GetId(), ns3::Time(at_ps - engine.now_ps()), [this, size] {
        senders_.front()->Send(ns3::Create<ns3::Packet>(size), senders_.front()->GetBroadcast(), kIpv4EtherType);
    });
}

std::vector<ChainDelivery> PointToPointChain::advance(TimePs until_ps) {
    const ExclusiveUse use(in_use_);
    SteppedSimulator& engine = simulator();
    if (until_ps < engine.now_ps()) {
        throw MisuseError("chain until_ps: found " + std::to_string(until_ps) + ", expected not before now, " +
                          std::to_string(engine.now_ps()));
    }
    engine.run_until(until_ps);
    return std::exchange(delivered_, {});
}

TimePs PointToPointChain::now_ps() {
    const ExclusiveUse use(in_use_);
    return simulator().now_ps();
}

TimePs PointToPointChain::next_event_ps() {
    const ExclusiveUse use(in_use_);
    return simulator().next_event_ps();
}

std::uint64_t PointToPointChain::event_count() {
    const ExclusiveUse use(in_use_);
    return simulator().GetEventCount();
}

void PointToPointChain::close() {
    const ExclusiveUse use(in_use_);
    senders_.clear();
    nodes_.clear();
    session_.reset();
}

}  // namespace netsim
