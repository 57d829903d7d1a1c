// Fabric, part: network interfaces and reliable transport.
#pragma once

#include "fabric.hpp"

namespace netsim::roce {

template <EventEngine Engine, typename Observer>
std::int64_t Fabric<Engine, Observer>::packets_in(std::int64_t payload_bytes) const {
    return (payload_bytes + parameters_.wire.mtu_bytes - 1) / parameters_.wire.mtu_bytes;
}

// NVLink capacities are what its own protocol leaves, so its packets count without headers.
template <EventEngine Engine, typename Observer>
std::int64_t Fabric<Engine, Observer>::wire_bytes(std::int64_t payload_bytes, bool has_transport) const {
    return has_transport ? payload_bytes + packets_in(payload_bytes) * parameters_.wire.header_bytes : payload_bytes;
}

// Puts the queue pair in line at its network interface, at once or when its rate allows the next packet.
template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::offer(QueuePairIndex index) {
    QueuePair& qp = queue_pairs_[index];
    if (qp.is_in_ring || qp.is_waiting_for_pace || !qp.can_send()) return;
    if (qp.is_stranded) return qp.is_timer_armed ? void() : watch_for_timeout(index);
    Port& port = ports_[qp.port];
    if (qp.next_send_ps > std::max(now_ps(), port.busy_until_ps)) {
        qp.is_waiting_for_pace = true;
        qp.pace_at_ps = qp.next_send_ps;
        return schedule(qp.next_send_ps, Kind::pace, index, qp.generation);
    }
    Ring& ring = rings_[ring_index_[qp.port] * kPriorities + qp.priority];
    qp.next_in_ring = kNoQueuePair;
    qp.is_in_ring = true;
    if (ring.head == kNoQueuePair) {
        ring.head = index;
    } else {
        queue_pairs_[ring.tail].next_in_ring = index;
    }
    ring.tail = index;
    port.filled |= static_cast<std::uint8_t>(1U << qp.priority);
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::pace(QueuePairIndex index) {
    QueuePair& qp = queue_pairs_[index];
    if (!qp.is_waiting_for_pace || now_ps() != qp.pace_at_ps) return;  // the rate has changed meanwhile
    qp.is_waiting_for_pace = false;
    offer(index);
    kick(qp.port);
}

// The next packet of a queue pair whose turn it is.
template <EventEngine Engine, typename Observer>
PacketIndex Fabric<Engine, Observer>::build_packet(QueuePairIndex index) {
    QueuePair& qp = queue_pairs_[index];
    const TimePs now = now_ps();
    std::int64_t seq = qp.next_seq;
    if (qp.has_to_resend()) {
        SelectiveRepeat& selective = *qp.selective;
        seq = selective.resend_from;
        selective.resend_from = selective.acknowledged.first_missing(seq + unit_bytes_);
    }
    const std::int64_t payload = std::min(unit_bytes_, qp.size_bytes - seq);
    const std::int64_t bytes = wire_bytes(payload, qp.has_transport);
    const PacketIndex packet_index = pool_.take();
    Packet& packet = pool_[packet_index];
    packet.qp = index;
    packet.seq = seq;
    packet.sent_ps = now;
    const bool is_chosen_on_the_way = parameters_.load_balancing != LoadBalancing::ecmp && qp.has_transport;
    packet.next_link = is_chosen_on_the_way ? nullptr : qp.forward->links.data() + 1;
    packet.payload_bytes = static_cast<std::int32_t>(payload);
    packet.wire_bytes = static_cast<std::int32_t>(bytes);
    packet.ingress = kNoLink;
    packet.kind = PacketKind::data;
    packet.priority = qp.priority;
    packet.traffic = qp.traffic;
    packet.is_marked = false;
    packet.telemetry_hops = 0;
    ++qp.in_network;
    if (seq == qp.next_seq) qp.next_seq += payload;
    const std::int64_t rate = std::min(qp.rate_cap_bps, qp.control.rate_bps());
    const Port& port = ports_[qp.port];
    qp.last_send_ps = now;
    qp.last_wire_bytes = bytes;
    qp.next_send_ps = rate < port.capacity_bps ? later(now, serialization_ps(bytes, rate)) : now;
    if (qp.wants_departure && qp.next_seq == qp.size_bytes) {
        qp.wants_departure = false;
        schedule(later(now, port.exact_serialization_ps(bytes)), Kind::depart, index, qp.generation);
    }
    if (!qp.is_timer_armed && qp.has_transport) watch_for_timeout(index);
    return packet_index;
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::receive(PacketIndex index) {
    const QueuePairIndex qp = pool_[index].qp;
    if (pool_[index].kind != PacketKind::data) return receive_ack(index);
    if (queue_pairs_[qp].is_closed) {
        pool_.give_back(index);
        --queue_pairs_[qp].in_network;
        return free_if_unused(qp);
    }
    if (queue_pairs_[qp].selective) return receive_selectively(index);
    receive_data(index);
}

// In-order reception: what comes too early is thrown away and asked for again, what comes twice acknowledged again.
template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::receive_data(PacketIndex index) {
    const Packet& packet = pool_[index];
    QueuePair& qp = queue_pairs_[packet.qp];
    if (packet.seq > qp.expected_seq) {
        const bool has_asked =
            qp.last_nack_seq == qp.expected_seq && now_ps() - qp.last_nack_ps < parameters_.nack_interval_ps;
        if (!has_asked) {
            qp.last_nack_seq = qp.expected_seq;
            qp.last_nack_ps = now_ps();
            return answer(index, PacketKind::nack);
        }
        --qp.in_network;
        return pool_.give_back(index);
    }
    if (packet.seq < qp.expected_seq) return answer(index, PacketKind::ack);
    qp.expected_seq += packet.payload_bytes;
    qp.packets_since_ack += packets_in(packet.payload_bytes);
    qp.is_mark_pending |= packet.is_marked;
    const bool is_last = qp.expected_seq == qp.size_bytes;
    if (is_last) deliver(packet.qp);
    if (!qp.has_transport) {
        pool_.give_back(index);
        --qp.in_network;
        return is_last ? finish_sender(packet.qp) : void();
    }
    if (is_last || qp.packets_since_ack >= parameters_.wire.packets_per_ack) return answer(index, PacketKind::ack);
    --qp.in_network;
    pool_.give_back(index);
}

// Reception in any order: every packet is acknowledged by itself.
template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::receive_selectively(PacketIndex index) {
    const Packet& packet = pool_[index];
    QueuePair& qp = queue_pairs_[packet.qp];
    SelectiveRepeat& selective = *qp.selective;
    qp.packets_since_ack += packets_in(packet.payload_bytes);
    qp.is_mark_pending |= packet.is_marked;
    if (selective.received.add(packet.seq)) {
        selective.received_bytes += packet.payload_bytes;
        qp.expected_seq = std::min(qp.size_bytes, selective.received.first_missing(qp.expected_seq));
        if (selective.received_bytes == qp.size_bytes) deliver(packet.qp);
    }
    answer(index, PacketKind::ack);
}

// The packet turns round and becomes an acknowledgement of what has arrived so far.
template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::answer(PacketIndex index, PacketKind kind) {
    Packet& packet = pool_[index];
    QueuePair& qp = queue_pairs_[packet.qp];
    const std::int64_t acks =
        (qp.packets_since_ack + parameters_.wire.packets_per_ack - 1) / parameters_.wire.packets_per_ack;
    packet.selective = packet.seq;
    packet.seq = qp.expected_seq;
    packet.next_link = qp.back->links.data() + 1;
    packet.payload_bytes = 0;
    packet.wire_bytes = static_cast<std::int32_t>(parameters_.wire.ack_bytes * std::max<std::int64_t>(1, acks));
    packet.kind = kind;
    packet.is_marked = qp.is_mark_pending;
    packet.ingress = kNoLink;
    if (parameters_.transport.acks_go_first) packet.priority = kControlPriority;
    qp.packets_since_ack = 0;
    qp.is_mark_pending = false;
    enqueue(qp.back->links.front(), index);
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::deliver(QueuePairIndex index) {
    QueuePair& qp = queue_pairs_[index];
    qp.is_delivered = true;
    news_.delivered.push_back(qp.flow);
    observer_.on_delivered(qp);
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::receive_ack(PacketIndex packet_index) {
    const Packet& ack = pool_[packet_index];
    const QueuePairIndex index = ack.qp;
    QueuePair& qp = queue_pairs_[index];
    --qp.in_network;
    if (qp.is_closed) {
        pool_.give_back(packet_index);
        return free_if_unused(index);
    }
    const std::int64_t newly = std::max<std::int64_t>(0, ack.seq - qp.acked_seq);
    const std::span<const IntHop> hops =
        pool_.collects_telemetry() ? std::span<const IntHop>(pool_.telemetry(packet_index), ack.telemetry_hops)
                                   : std::span<const IntHop>();
    qp.acked_seq += newly;
    const TimePs now = now_ps();
    bool is_progress = newly > 0;
    if (qp.selective) {
        is_progress |= acknowledge_selectively(qp, ack);
    } else if (ack.kind == PacketKind::nack) {
        qp.next_seq = qp.acked_seq;
        qp.control.on_timeout(now);
    }
    qp.next_seq = std::max(qp.next_seq, qp.acked_seq);
    if (is_progress) {
        qp.progress_ps = now;
        qp.retries = 0;
    }
    const std::int64_t rate = qp.control.rate_bps();
    qp.control.on_ack({now, now - ack.sent_ps, newly, qp.acked_seq, qp.next_seq, ack.is_marked, hops});
    pool_.give_back(packet_index);
    if (qp.acked_seq >= qp.size_bytes) return finish_sender(index);
    if (qp.control.rate_bps() != rate) apply_rate(index);
    schedule_control_timer(index);
    offer(index);
    kick(qp.port);
}

// Notes the packet that was answered; a hole with a window of later packets behind it is taken as lost.
template <EventEngine Engine, typename Observer>
bool Fabric<Engine, Observer>::acknowledge_selectively(QueuePair& qp, const Packet& ack) {
    SelectiveRepeat& selective = *qp.selective;
    const bool is_new = selective.acknowledged.add(ack.selective);
    if (is_new) selective.acknowledged_bytes += std::min(unit_bytes_, qp.size_bytes - ack.selective);
    selective.highest_acknowledged = std::max(selective.highest_acknowledged, ack.selective);
    const std::int64_t lost_before = selective.highest_acknowledged - qp.base_window_bytes;
    if (std::max(qp.acked_seq, selective.resend_until) < lost_before) {
        selective.resend_from = selective.acknowledged.first_missing(std::max(selective.resend_from, qp.acked_seq));
        selective.resend_until = lost_before;
    }
    return is_new;
}

// All bytes are acknowledged (or, on NVLink, delivered): the queue pair is done.
template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::finish_sender(QueuePairIndex index) {
    QueuePair& qp = queue_pairs_[index];
    qp.is_closed = true;
    --open_count_;
    ++changes_;
    observer_.on_acknowledged(qp);
    free_if_unused(index);
}

// A rate change moves the next packet by what the change makes of the gap after the last one.
template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::apply_rate(QueuePairIndex index) {
    QueuePair& qp = queue_pairs_[index];
    const std::int64_t rate = std::min(qp.rate_cap_bps, qp.control.rate_bps());
    const std::int64_t line = ports_[qp.port].capacity_bps;
    qp.next_send_ps =
        rate < line ? later(qp.last_send_ps, serialization_ps(qp.last_wire_bytes, rate)) : qp.last_send_ps;
    if (parameters_.transport.window == SendWindow::variable) {
        const Work scaled = Work{qp.base_window_bytes} * qp.control.rate_bps() / line;
        qp.window_bytes = std::max(held_back_bytes_, static_cast<std::int64_t>(scaled));
    }
    qp.is_waiting_for_pace = false;  // the caller offers it again
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::watch_for_timeout(QueuePairIndex index) {
    QueuePair& qp = queue_pairs_[index];
    qp.is_timer_armed = true;
    qp.progress_ps = now_ps();
    schedule(later(now_ps(), qp.timeout_ps), Kind::timeout, index, qp.generation);
}

// The timer is looked at when it could have run out, not moved with every acknowledgement.
template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::time_out(QueuePairIndex index) {
    QueuePair& qp = queue_pairs_[index];
    qp.is_timer_armed = false;
    if (qp.is_closed || (qp.in_flight_bytes() == 0 && !qp.is_stranded)) return;
    const TimePs due = later(qp.progress_ps, qp.timeout_ps);
    qp.is_timer_armed = true;
    if (now_ps() < due) return schedule(due, Kind::timeout, index, qp.generation);
    if (++qp.retries > parameters_.max_retries) return give_up(index);
    qp.progress_ps = now_ps();
    schedule(later(now_ps(), qp.timeout_ps), Kind::timeout, index, qp.generation);
    if (qp.selective) {
        qp.selective->resend_from = qp.selective->acknowledged.first_missing(qp.acked_seq);
        qp.selective->resend_until = qp.next_seq;
    } else {
        qp.next_seq = qp.acked_seq;
    }
    qp.control.on_timeout(now_ps());
    apply_rate(index);
    offer(index);
    kick(qp.port);
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::schedule_control_timer(QueuePairIndex index) {
    QueuePair& qp = queue_pairs_[index];
    const TimePs next = qp.control.next_timer_ps();
    if (next >= qp.control_timer_ps) return;
    qp.control_timer_ps = next;
    schedule(next, Kind::control, index, qp.generation);
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::run_control_timer(QueuePairIndex index) {
    QueuePair& qp = queue_pairs_[index];
    if (qp.is_closed || now_ps() != qp.control_timer_ps) return;
    qp.control_timer_ps = kNever;
    if (qp.control.next_timer_ps() <= now_ps()) {
        qp.control.on_timer(now_ps());
        apply_rate(index);
    }
    schedule_control_timer(index);
    offer(index);
    kick(qp.port);
}

}  // namespace netsim::roce
