// Hands what happens in the model to the trace sources of the ns-3 objects.
#pragma once

#include "../roce/fabric.hpp"
#include "packet_frame.hpp"
#include "roce_objects.hpp"

namespace netsim {

// A branch per event while nothing is connected; frames are made for connected sources only.
class TracingObserver : public roce::SilentObserver {
  public:
    explicit TracingObserver(const RoceObjects& objects) : objects_(&objects) {}

    void on_enqueue(LinkId link, const roce::Packet& packet) {
        if (!objects_->is_watched()) [[likely]]
            return;
        show(objects_->sender(link).enqueued(), link, packet);
    }
    void on_transmit(LinkId link, const roce::Packet& packet) {
        if (!objects_->is_watched()) [[likely]]
            return;
        RoceNetDevice& device = objects_->sender(link);
        const bool comes_from_queue_pair = packet.kind == roce::PacketKind::data && packet.ingress == roce::kNoLink;
        if (!comes_from_queue_pair) show(device.dequeued(), link, packet);
        show(device.sending(), link, packet);
    }
    void on_receive(LinkId link, const roce::Packet& packet) {
        if (!objects_->is_watched()) [[likely]]
            return;
        show(objects_->receiver(link).received(), link, packet);
    }
    void on_drop(LinkId link, const roce::Packet& packet) {
        if (!objects_->is_watched()) return;
        show(objects_->sender(link).dropped(), link, packet);
    }
    void on_mark(LinkId link, const roce::Packet& packet) {
        if (!objects_->is_watched()) return;
        show(objects_->sender(link).marked(), link, packet);
    }
    void on_pause(LinkId link, std::uint8_t priority, bool is_pause) {
        RoceNetDevice& device = objects_->sender(link);
        (is_pause ? device.paused() : device.resumed())(priority);
    }
    void on_delivered(const roce::QueuePair& qp) { objects_->node(qp.dst).delivered()(qp.flow.graph, qp.flow.flow); }
    void on_acknowledged(const roce::QueuePair& qp) {
        objects_->node(qp.src).acknowledged()(qp.flow.graph, qp.flow.flow);
    }

  private:
    void show(const RoceNetDevice::FrameTrace& trace, LinkId link, const roce::Packet& packet) {
        if (!trace.IsEmpty()) trace(frame_of(packet, link, objects_->view()));
    }

    const RoceObjects* objects_;
};

}  // namespace netsim
