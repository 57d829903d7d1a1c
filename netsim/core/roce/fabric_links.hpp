// Fabric, part: links, switches, pauses and credits.
#pragma once

#include "fabric.hpp"

namespace netsim::roce {

// Starts the link's transmitter now, or sees to it that it goes on when it is free.
template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::kick(LinkId link) {
    Port& port = ports_[link];
    if (port.is_transmit_scheduled) return;
    if (now_ps() >= port.busy_until_ps) return transmit(link);
    port.is_transmit_scheduled = true;
    schedule(port.busy_until_ps, Kind::transmit, link, epochs_[link]);
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::transmit(LinkId link) {
    Port& port = ports_[link];
    if (!port.is_up || !port.is_ready()) return;
    if (port.to == NodeRole::nvswitch && !has_credit(link)) return;
    QueuePairIndex sender = kNoQueuePair;
    PacketIndex index = kNoPacket;
    while (index == kNoPacket) {
        if (!port.is_ready()) return;
        index = next_packet(link, port.next_priority(), sender);
    }
    Packet& packet = pool_[index];
    if (port.to == NodeRole::nvswitch) credits_[credit_index_[link]].available -= packet.wire_bytes;
    if (packet.ingress != kNoLink) {
        free_memory(link, packet);
        if (packet.kind == PacketKind::data) mark_and_measure(link, index);
    }
    const TimePs now = now_ps();
    const TimePs end = end_of_transmission(link, packet);
    port.busy_since_ps = now;
    port.busy_until_ps = end;
    port.last_payload_bytes = packet.payload_bytes;
    port.last_traffic = packet.traffic;
    LinkCounters& counters = counters_[link];
    ++counters.packets;
    counters.wire_bytes += packet.wire_bytes;
    counters.payload_bytes[packet.traffic] += packet.payload_bytes;
    counters.busy_ps += end - now;
    ++packet_hops_;
    observer_.on_transmit(link, packet);
    const bool is_first = port.wire.empty();
    port.wire.push(pool_, index);
    if (is_first) schedule(packet.arrives_ps, Kind::arrive, link, epochs_[link]);
    if (sender != kNoQueuePair) offer(sender);
    if (port.is_ready() && !port.is_transmit_scheduled) {
        port.is_transmit_scheduled = true;
        schedule(end, Kind::transmit, link, epochs_[link]);
    }
}

// Takes what waits first in the priority: packets (at a host acknowledgements), then the turn of a queue pair.
// kNoPacket where the only one in line has nothing to send any more.
template <EventEngine Engine, typename Observer>
PacketIndex Fabric<Engine, Observer>::next_packet(LinkId link, std::uint8_t priority, QueuePairIndex& sender) {
    Port& port = ports_[link];
    Queue& queue = queues_[link * kPriorities + priority];
    Ring* ring = port.has_queue_pairs() ? &rings_[ring_index_[link] * kPriorities + priority] : nullptr;
    PacketIndex index = kNoPacket;
    if (!queue.packets.empty()) {
        index = queue.packets.pop(pool_);
        queue.bytes -= pool_[index].wire_bytes;
    } else {
        const QueuePairIndex turn = ring->head;
        QueuePair& qp = queue_pairs_[turn];
        ring->head = qp.next_in_ring;
        qp.is_in_ring = false;
        if (qp.can_send()) {
            sender = turn;
            index = build_packet(turn);
        } else {
            free_if_unused(turn);
        }
    }
    if (queue.packets.empty() && (ring == nullptr || ring->head == kNoQueuePair)) {
        port.filled &= static_cast<std::uint8_t>(~(1U << priority));
    }
    return index;
}

// A packet starts to leave a switch by `out`: its memory is free.
template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::free_memory(LinkId out, const Packet& packet) {
    Port& port = ports_[out];
    if (port.from == NodeRole::nvswitch) {
        const TimePs left = later(now_ps(), port.serialization_ps(packet.wire_bytes));
        return return_credit(packet.ingress, packet.wire_bytes, left);
    }
    if (packet.priority == kControlPriority) return;
    buffers_.release(packet.ingress, packet.priority, packet.wire_bytes);
    if (parameters_.has_pfc && buffers_.ends_pause(packet.ingress, packet.priority)) {
        send_pause_frame(packet.ingress, packet.priority, false);
    }
}

// The queue that a packet leaves behind decides on its mark and is what its telemetry reports.
template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::mark_and_measure(LinkId out, PacketIndex index) {
    Packet& packet = pool_[index];
    if (ports_[out].from == NodeRole::nvswitch || packet.priority == kControlPriority) return;
    const std::int64_t queued_bytes = queues_[out * kPriorities + packet.priority].bytes;
    if (!parameters_.red.empty() && is_to_mark(out, queued_bytes)) {
        packet.is_marked = true;
        ++counters_[out].marks;
        observer_.on_mark(out, packet);
    }
    if (pool_.collects_telemetry() && packet.telemetry_hops < kMaxIntHops) {
        pool_.telemetry(index)[packet.telemetry_hops++] = {ports_[out].capacity_bps, now_ps(),
                                                           counters_[out].wire_bytes, queued_bytes};
    }
}

// RED with draws from a stream of the link, so that marks depend on nothing but what passes the link.
template <EventEngine Engine, typename Observer>
bool Fabric<Engine, Observer>::is_to_mark(LinkId link, std::int64_t queued_bytes) {
    const RedThresholds& red = parameters_.red[link];
    if (queued_bytes <= red.kmin_bytes) return false;
    if (queued_bytes > red.kmax_bytes) return true;
    const auto above = static_cast<double>(queued_bytes - red.kmin_bytes);
    return red_draws_[link].draw() * static_cast<double>(red.kmax_bytes - red.kmin_bytes) < red.pmax * above;
}

// Serialises the packet from now on and notes when it can go on at the far end. A cell goes on when its first
// packet is there, like the packets it stands for, but no link ends it before its last packet has come in.
template <EventEngine Engine, typename Observer>
TimePs Fabric<Engine, Observer>::end_of_transmission(LinkId link, Packet& packet) {
    Port& port = ports_[link];
    const TimePs now = now_ps();
    TimePs end = later(now, port.serialization_ps(packet.wire_bytes));
    packet.arrives_ps = later(end, port.latency_ps);
    const bool is_cell = packet.payload_bytes > parameters_.wire.mtu_bytes;
    if (is_cell) {
        const std::int64_t packets = packets_in(packet.payload_bytes);
        const auto one = static_cast<std::int32_t>((packet.wire_bytes + packets - 1) / packets);
        const TimePs one_ps = port.serialization_ps(one);
        if (packet.ingress != kNoLink) end = std::max(end, later(packet.tail_ps, one_ps));
        packet.tail_ps = later(end, port.latency_ps);
        packet.arrives_ps = ends_at(link, packet) ? packet.tail_ps : later(later(now, one_ps), port.latency_ps);
    }
    return end;
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::arrive(LinkId link) {
    Port& port = ports_[link];
    const PacketIndex index = port.wire.pop(pool_);
    if (!port.wire.empty()) schedule(pool_[port.wire.head].arrives_ps, Kind::arrive, link, epochs_[link]);
    Packet& packet = pool_[index];
    packet.ingress = link;
    observer_.on_receive(link, packet);
    if (packet.kind == PacketKind::pause || packet.kind == PacketKind::resume) {
        obey_pause(link, packet);
        pool_.give_back(index);
    } else if (ends_at(link, packet)) {
        if (port.to == NodeRole::nvswitch) return_credit(link, packet.wire_bytes, now_ps());
        receive(index);
    } else {
        forward(link, index);
    }
}

// Whether the packet is for the node at the far end of the link: a host, or an NVSwitch that is the end of a flow
// itself (it adds up or copies what GPUs send, as in NVLS).
template <EventEngine Engine, typename Observer>
bool Fabric<Engine, Observer>::ends_at(LinkId link, const Packet& packet) const {
    const Port& port = ports_[link];
    if (port.to != NodeRole::nvswitch) return port.to == NodeRole::host;
    return queue_pairs_[packet.qp].dst == port.to_node;
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::forward(LinkId input, PacketIndex index) {
    Packet& packet = pool_[index];
    const LinkId out = packet.next_link != nullptr ? *packet.next_link++ : choose_link(ports_[input].to_node, packet);
    if (out == kNoLink) return drop(input, index);
    if (ports_[input].to == NodeRole::packet_switch && packet.priority != kControlPriority) {
        if (!buffers_.admit(input, packet.priority, packet.wire_bytes)) return drop(input, index);
        if (parameters_.has_pfc && buffers_.starts_pause(input, packet.priority)) {
            send_pause_frame(input, packet.priority, true);
        }
    }
    enqueue(out, index);
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::enqueue(LinkId link, PacketIndex index) {
    Port& port = ports_[link];
    Packet& packet = pool_[index];
    if (!port.is_up) {
        if (packet.ingress != kNoLink) free_memory(link, packet);
        return drop(link, index);
    }
    observer_.on_enqueue(link, packet);
    Queue& queue = queues_[link * kPriorities + packet.priority];
    queue.bytes += packet.wire_bytes;
    std::int64_t& largest = counters_[link].largest_queue_bytes;
    largest = std::max(largest, queue.bytes);
    port.filled |= static_cast<std::uint8_t>(1U << packet.priority);
    queue.packets.push(pool_, index);
    kick(link);
}

// Flowlets and adaptive routing: among the shortest ways, the one with the least in its queues; ties turn.
template <EventEngine Engine, typename Observer>
LinkId Fabric<Engine, Observer>::choose_link(NodeId node, Packet& packet) {
    const QueuePair& qp = queue_pairs_[packet.qp];
    const std::vector<LinkId>& links = candidates(node, qp.dst);
    if (links.empty()) return kNoLink;
    if (links.size() == 1) return links[0];
    Flowlet* flowlet = nullptr;
    if (parameters_.load_balancing == LoadBalancing::flowlet) {
        const auto [entry, is_new] = flowlets_.try_emplace(std::uint64_t{node} << 32 | packet.qp);
        flowlet = &entry->second;
        const bool goes_on =
            !is_new && flowlet->generation == qp.generation && now_ps() - flowlet->last_ps < parameters_.flowlet_gap_ps;
        flowlet->last_ps = now_ps();
        flowlet->generation = qp.generation;
        if (goes_on && ports_[flowlet->link].is_up) return flowlet->link;
    }
    const std::size_t first = static_cast<std::size_t>(packet.seq / unit_bytes_ + packet.qp) % links.size();
    LinkId best = kNoLink;
    std::int64_t least = 0;
    for (std::size_t i = 0; i < links.size(); ++i) {
        const LinkId link = links[(first + i) % links.size()];
        const std::int64_t waiting = queued_bytes(link);
        if (!ports_[link].is_up || (best != kNoLink && waiting >= least)) continue;
        best = link;
        least = waiting;
    }
    if (flowlet != nullptr && best != kNoLink) flowlet->link = best;
    return best;
}

template <EventEngine Engine, typename Observer>
const std::vector<LinkId>& Fabric<Engine, Observer>::candidates(NodeId node, NodeId dst) {
    const auto [entry, is_new] = candidates_.try_emplace(std::uint64_t{node} << 32 | dst);
    if (is_new) entry->second = routing_.next_hops(node, dst);
    return entry->second;
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::drop(LinkId link, PacketIndex index) {
    ++counters_[link].drops;
    observer_.on_drop(link, pool_[index]);
    const QueuePairIndex qp = pool_[index].qp;
    pool_.give_back(index);
    if (qp == kNoQueuePair) return;  // a pause frame
    --queue_pairs_[qp].in_network;
    if (!queue_pairs_[qp].has_transport) return give_up(qp);
    free_if_unused(qp);
}

// The switch at the end of `input` tells its sender to pause or to go on with a priority.
template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::send_pause_frame(LinkId input, std::uint8_t priority, bool is_pause) {
    const PacketIndex index = pool_.take();
    Packet& frame = pool_[index];
    frame = {};
    frame.qp = kNoQueuePair;
    frame.epoch = epochs_[input];
    frame.seq = priority;
    frame.wire_bytes = static_cast<std::int32_t>(parameters_.pfc_frame_bytes);
    frame.ingress = kNoLink;
    frame.kind = is_pause ? PacketKind::pause : PacketKind::resume;
    frame.priority = kControlPriority;
    enqueue(ports_[input].reverse, index);
}

// A pause frame that came in by `input` stops what is sent in the other direction.
template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::obey_pause(LinkId input, const Packet& frame) {
    const LinkId link = ports_[input].reverse;
    Port& port = ports_[link];
    if (frame.epoch != epochs_[link]) return;  // the link has failed since
    const auto bit = static_cast<std::uint8_t>(1U << frame.seq);
    const bool is_pause = frame.kind == PacketKind::pause;
    observer_.on_pause(link, static_cast<std::uint8_t>(frame.seq), is_pause);
    if (is_pause) {
        ++counters_[link].pauses;
        set_paused(link, port.paused | bit);
    } else if ((storms_[link] & bit) == 0) {
        set_paused(link, port.paused & ~bit);
    }
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::set_paused(LinkId link, int priorities) {
    Port& port = ports_[link];
    if (port.paused == 0) {
        paused_since_ps_[link] = now_ps();
    } else if (priorities == 0) {
        counters_[link].paused_ps += now_ps() - paused_since_ps_[link];
    }
    port.paused = static_cast<std::uint8_t>(priorities);
    kick(link);
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::set_storm(LinkId link, std::uint8_t priority, bool is_storming) {
    const int bit = 1 << priority;
    storms_[link] = static_cast<std::uint8_t>(is_storming ? storms_[link] | bit : storms_[link] & ~bit);
    const bool stays_paused = is_storming || buffers_.is_pausing(link, priority);
    set_paused(link, stays_paused ? ports_[link].paused | bit : ports_[link].paused & ~bit);
}

// Whether the NVSwitch at the far end has room for one more packet. If not, the link waits for the next credit.
template <EventEngine Engine, typename Observer>
bool Fabric<Engine, Observer>::has_credit(LinkId link) {
    CreditAccount& account = credits_[credit_index_[link]];
    while (!account.returning.empty() && account.returning.front().at_ps <= now_ps()) {
        account.available += account.returning.front().bytes;
        account.returning.pop_front();
    }
    if (account.available >= unit_wire_bytes_) return true;
    if (account.returning.empty()) {
        account.is_blocked = true;
    } else {
        ports_[link].is_transmit_scheduled = true;
        schedule(account.returning.front().at_ps, Kind::transmit, link, epochs_[link]);
    }
    return false;
}

// A packet that came in by `input` has left the NVSwitch at `left_ps`; its sender hears of it a latency later.
template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::return_credit(LinkId input, std::int64_t bytes, TimePs left_ps) {
    CreditAccount& account = credits_[credit_index_[input]];
    Port& port = ports_[input];
    account.returning.push_back({later(left_ps, ports_[port.reverse].latency_ps), bytes});
    if (!account.is_blocked) return;
    account.is_blocked = false;
    port.is_transmit_scheduled = true;
    schedule(account.returning.back().at_ps, Kind::transmit, input, epochs_[input]);
}

template <EventEngine Engine, typename Observer>
TimePs Fabric<Engine, Observer>::busy_ps(LinkId link) const {
    return counters_[link].busy_ps - std::max<TimePs>(0, ports_[link].busy_until_ps - engine_.now_ps());
}

template <EventEngine Engine, typename Observer>
std::int64_t Fabric<Engine, Observer>::payload_bytes(LinkId link, Traffic traffic) const {
    const Port& port = ports_[link];
    const TimePs left_ps = port.busy_until_ps - engine_.now_ps();
    std::int64_t bytes = counters_[link].payload_bytes[traffic];
    if (left_ps <= 0 || port.last_traffic != traffic) return bytes;
    const TimePs duration_ps = port.busy_until_ps - port.busy_since_ps;
    return bytes - static_cast<std::int64_t>((Work{port.last_payload_bytes} * left_ps + duration_ps - 1) / duration_ps);
}

template <EventEngine Engine, typename Observer>
TimePs Fabric<Engine, Observer>::paused_ps(LinkId link) const {
    const TimePs running = ports_[link].paused != 0 ? engine_.now_ps() - paused_since_ps_[link] : 0;
    return counters_[link].paused_ps + running;
}

template <EventEngine Engine, typename Observer>
std::int64_t Fabric<Engine, Observer>::queued_bytes(LinkId link) const {
    std::int64_t bytes = 0;
    for (std::size_t priority = 0; priority < kPriorities; ++priority) {
        bytes += queues_[link * kPriorities + priority].bytes;
    }
    return bytes;
}

}  // namespace netsim::roce
