#include "packet_frame.hpp"

#include <algorithm>

#include "../ecmp.hpp"
#include "roce_frame.hpp"

namespace netsim {

namespace {

constexpr std::int64_t kMaxMessageBytes = std::int64_t{1} << 31;  // InfiniBand Architecture Specification, 9.7.7.1.1
constexpr std::uint32_t kReservedQueuePairs = 2;                  // 0 and 1: management

// A flow has two ends, each with a number of its own; frames carry that of the receiver.
std::uint32_t queue_pair_number(roce::QueuePairIndex index, bool is_senders_end) {
    return kReservedQueuePairs + 2 * index + (is_senders_end ? 1 : 0);
}

std::uint16_t udp_source_port(const roce::QueuePair& qp) {
    return static_cast<std::uint16_t>(packed_ports(qp.flow_label) & 0xffff);
}

RoceOpcode opcode_of(bool is_first, bool is_last) {
    if (is_first) return is_last ? RoceOpcode::write_only : RoceOpcode::write_first;
    return is_last ? RoceOpcode::write_last : RoceOpcode::write_middle;
}

RoceFrame write_of(const roce::Packet& packet, const roce::QueuePair& qp, std::int64_t unit_bytes) {
    const std::int64_t whole_message = kMaxMessageBytes / unit_bytes * unit_bytes;
    const std::int64_t begin = packet.seq / whole_message * whole_message;
    const std::int64_t bytes = std::min(whole_message, qp.size_bytes - begin);
    const bool is_last = packet.seq + packet.payload_bytes == begin + bytes;
    return {.opcode = opcode_of(packet.seq == begin, is_last),
            .src = qp.src,
            .dst = qp.dst,
            .udp_source_port = udp_source_port(qp),
            .queue_pair = queue_pair_number(packet.qp, false),
            .sequence = static_cast<std::uint32_t>(packet.seq / unit_bytes),
            .priority = packet.priority,
            .is_marked = packet.is_marked,
            .is_negative = false,
            .payload_bytes = static_cast<std::uint32_t>(packet.payload_bytes),
            .remote_address = static_cast<std::uint64_t>(begin),
            .message_bytes = static_cast<std::uint32_t>(bytes)};
}

// Positive ones name the last packet that has arrived, negative ones the first that is missing.
RoceFrame acknowledgement_of(const roce::Packet& packet, const roce::QueuePair& qp, std::int64_t unit_bytes) {
    const bool is_negative = packet.kind == roce::PacketKind::nack;
    std::int64_t number = (packet.seq + unit_bytes - 1) / unit_bytes - (is_negative ? 0 : 1);
    if (qp.selective) number = packet.selective / unit_bytes;
    return {.opcode = RoceOpcode::acknowledge,
            .src = qp.dst,
            .dst = qp.src,
            .udp_source_port = udp_source_port(qp),
            .queue_pair = queue_pair_number(packet.qp, true),
            .sequence = static_cast<std::uint32_t>(number),
            .priority = packet.priority,
            .is_marked = packet.is_marked,
            .is_negative = is_negative,
            .payload_bytes = 0,
            .remote_address = 0,
            .message_bytes = 0};
}

}  // namespace

ns3::Ptr<ns3::Packet> frame_of(const roce::Packet& packet, LinkId link, const FabricView& view) {
    if (packet.qp == roce::kNoQueuePair) {
        const NodeId sender = view.port(view.port(link).reverse).to_node;
        return make_pause_frame(sender, static_cast<std::uint8_t>(packet.seq), packet.kind == roce::PacketKind::pause);
    }
    const roce::QueuePair& qp = view.queue_pair(packet.qp);
    if (!qp.has_transport) return ns3::Create<ns3::Packet>(static_cast<std::uint32_t>(packet.payload_bytes));
    const roce::Parameters& parameters = view.parameters();
    const std::int64_t unit_bytes = parameters.wire.mtu_bytes * parameters.cell_packets;
    const bool is_write = packet.kind == roce::PacketKind::data;
    return make_frame(is_write ? write_of(packet, qp, unit_bytes) : acknowledgement_of(packet, qp, unit_bytes));
}

}  // namespace netsim
