// One end of a cable of the RoCE model, as ns-3 shows it.
#pragma once

#include <ns3/channel.h>
#include <ns3/data-rate.h>
#include <ns3/net-device.h>
#include <ns3/nstime.h>
#include <ns3/packet.h>

#include <cstdint>
#include <utility>

#include "fabric_view.hpp"
#include "noted_trace.hpp"

namespace netsim {

class RoceChannel;

// A port: sends by one directed link and receives by the other. Holds no state of the model; attributes are read from
// it. It carries no packets of other ns-3 models: `Send` refuses. Trace sources give the frame that a capture would
// show (frame_of), which is only made where something is connected.
class RoceNetDevice : public ns3::NetDevice {
  public:
    using FrameTrace = NotedTrace<ns3::Ptr<const ns3::Packet>>;
    using PriorityTrace = NotedTrace<std::uint8_t>;

    static ns3::TypeId GetTypeId();

    // View and flag outlive the device, or are no more used once it is disposed of.
    void Bind(const FabricView& view, LinkId out, bool& is_watched);
    void SetChannel(ns3::Ptr<RoceChannel> channel);

    FrameTrace& enqueued() { return enqueued_; }
    FrameTrace& dequeued() { return dequeued_; }
    FrameTrace& sending() { return sending_; }
    FrameTrace& received() { return received_; }
    FrameTrace& dropped() { return dropped_; }
    FrameTrace& marked() { return marked_; }
    PriorityTrace& paused() { return paused_; }
    PriorityTrace& resumed() { return resumed_; }
    void NotifyLinkChange() const { link_change_(); }
    LinkId out_link() const { return out_; }

    void SetIfIndex(std::uint32_t index) override { if_index_ = index; }
    std::uint32_t GetIfIndex() const override { return if_index_; }
    ns3::Ptr<ns3::Channel> GetChannel() const override;
    void SetAddress(ns3::Address) override {}  // follows from the node
    ns3::Address GetAddress() const override;
    bool SetMtu(std::uint16_t) override { return false; }  // a parameter of the model
    std::uint16_t GetMtu() const override;
    bool IsLinkUp() const override { return view_ != nullptr && view_->port(out_).is_up; }
    void AddLinkChangeCallback(ns3::Callback<void> callback) override { link_change_.ConnectWithoutContext(callback); }
    bool IsBroadcast() const override { return false; }
    ns3::Address GetBroadcast() const override;
    bool IsMulticast() const override { return false; }
    ns3::Address GetMulticast(ns3::Ipv4Address) const override { return GetBroadcast(); }
    ns3::Address GetMulticast(ns3::Ipv6Address) const override { return GetBroadcast(); }
    bool IsBridge() const override { return false; }
    bool IsPointToPoint() const override { return true; }
    bool Send(ns3::Ptr<ns3::Packet>, const ns3::Address&, std::uint16_t) override { return false; }
    bool SendFrom(ns3::Ptr<ns3::Packet>, const ns3::Address&, const ns3::Address&, std::uint16_t) override {
        return false;
    }
    ns3::Ptr<ns3::Node> GetNode() const override;
    void SetNode(ns3::Ptr<ns3::Node> node) override;
    bool NeedsArp() const override { return false; }
    void SetReceiveCallback(ReceiveCallback) override {}
    void SetPromiscReceiveCallback(PromiscReceiveCallback) override {}
    bool SupportsSendFrom() const override { return false; }

  protected:
    void DoDispose() override;

  private:
    template <typename Call>
    void ForAllTraces(Call&& call) {
        for (FrameTrace* trace : {&enqueued_, &dequeued_, &sending_, &received_, &dropped_, &marked_}) call(*trace);
        for (PriorityTrace* trace : {&paused_, &resumed_}) call(*trace);
    }
    template <std::int64_t roce::LinkCounters::* Field>
    std::uint64_t Count() const {
        return view_ == nullptr ? 0 : static_cast<std::uint64_t>(view_->counters(out_).*Field);
    }
    template <std::int64_t roce::RedThresholds::* Field>
    std::uint64_t Threshold() const {
        return HasEcn() ? static_cast<std::uint64_t>(view_->parameters().red[out_].*Field) : 0;
    }
    bool HasEcn() const { return view_ != nullptr && !view_->parameters().red.empty(); }
    double GetMarkingProbability() const { return HasEcn() ? view_->parameters().red[out_].pmax : 0; }
    ns3::DataRate GetDataRate() const;
    std::uint64_t GetQueuedBytes() const;
    std::uint64_t GetPausedPriorities() const;
    std::uint64_t GetHeadroom() const;
    std::uint64_t GetLink() const { return out_; }

    const FabricView* view_ = nullptr;
    LinkId out_ = 0;
    std::uint32_t if_index_ = 0;
    ns3::Ptr<ns3::Node> node_;
    ns3::Ptr<RoceChannel> channel_;
    FrameTrace enqueued_, dequeued_, sending_, received_, dropped_, marked_;
    PriorityTrace paused_, resumed_;
    ns3::TracedCallback<> link_change_;
};

// A cable between two ports.
class RoceChannel : public ns3::Channel {
  public:
    static ns3::TypeId GetTypeId();

    // As for devices. Called once; `first` sends by the link.
    void Bind(const FabricView& view, ns3::Ptr<RoceNetDevice> first, ns3::Ptr<RoceNetDevice> second);

    std::size_t GetNDevices() const override { return ends_.first == nullptr ? 0 : 2; }
    ns3::Ptr<ns3::NetDevice> GetDevice(std::size_t i) const override { return i == 0 ? ends_.first : ends_.second; }

  protected:
    void DoDispose() override;

  private:
    ns3::Time GetDelay() const;

    const FabricView* view_ = nullptr;
    std::pair<ns3::Ptr<RoceNetDevice>, ns3::Ptr<RoceNetDevice>> ends_;
};

}  // namespace netsim
