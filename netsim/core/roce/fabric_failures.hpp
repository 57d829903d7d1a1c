// Fabric, part: links that fail, are repaired and lose capacity, and the new ways of flows.
#pragma once

#include <cmath>

#include "fabric.hpp"

namespace netsim::roce {

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::set_link_up(LinkId link, bool is_up) {
    if (ports_[link].is_up == is_up) return;
    ports_[link].is_up = is_up;
    if (is_up) {
        buffers_.forget_pauses(ports_[link].reverse);  // nobody heard of them
        kick(link);
    } else {
        flush(link);
        fail_nvlink_flows(link);
    }
    pending_reroutes_.push_back({link, is_up});
    schedule(now_ps() + parameters_.reroute_delay_ps, Kind::reroute, 0, 0);
}

// Buffers, thresholds and windows stay as they were set up.
template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::set_capacity_share(LinkId link, double share) {
    Port& port = ports_[link];
    const auto nominal_bps = static_cast<double>(network_.link(link).capacity_bps);
    port.capacity_bps = std::max<std::int64_t>(1, std::llround(nominal_bps * share));
    port.known_bytes[0] = port.known_bytes[1] = -1;
    ++changes_;
}

// NVLink has no transport that would try again.
template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::fail_nvlink_flows(LinkId link) {
    for (QueuePairIndex index = 0; index < queue_pairs_.size(); ++index) {
        const QueuePair& qp = queue_pairs_[index];
        if (qp.is_closed || qp.has_transport || std::ranges::count(qp.forward->links, link) == 0) continue;
        give_up(index);
    }
}

// All that was on the failed wire or waited for it is lost; so are the pauses that the ends of the cable had agreed
// on, which need both directions.
template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::flush(LinkId link) {
    Port& port = ports_[link];
    ++epochs_[link];
    port.is_transmit_scheduled = false;
    while (!port.wire.empty()) {
        const PacketIndex index = port.wire.pop(pool_);
        if (port.to == NodeRole::nvswitch) credits_[credit_index_[link]].available += pool_[index].wire_bytes;
        drop(link, index);
    }
    for (std::size_t priority = 0; priority < kPriorities; ++priority) {
        Queue& queue = queues_[link * kPriorities + priority];
        while (!queue.packets.empty()) {
            const PacketIndex index = queue.packets.pop(pool_);
            queue.bytes -= pool_[index].wire_bytes;
            if (pool_[index].ingress != kNoLink) free_memory(link, pool_[index]);
            drop(link, index);
        }
        if (!port.has_queue_pairs() || rings_[ring_index_[link] * kPriorities + priority].head == kNoQueuePair) {
            port.filled &= static_cast<std::uint8_t>(~(1U << priority));
        }
    }
    for (const LinkId direction : {link, port.reverse}) {
        buffers_.forget_pauses(direction);
        set_paused(direction, storms_[direction]);
    }
    counters_[link].payload_bytes[port.last_traffic] = payload_bytes(link, port.last_traffic);
    counters_[link].busy_ps = busy_ps(link);
    port.busy_until_ps = std::min(port.busy_until_ps, now_ps());
}

// Takes the queue pair out of the line at its former network interface.
template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::leave_ring(QueuePairIndex index) {
    QueuePair& qp = queue_pairs_[index];
    if (!qp.is_in_ring) return;
    Ring& ring = rings_[ring_index_[qp.port] * kPriorities + qp.priority];
    QueuePairIndex before = kNoQueuePair;
    for (QueuePairIndex at = ring.head; at != index; at = queue_pairs_[at].next_in_ring) before = at;
    (before == kNoQueuePair ? ring.head : queue_pairs_[before].next_in_ring) = qp.next_in_ring;
    if (ring.tail == index) ring.tail = before;
    const bool is_filled = ring.head != kNoQueuePair || !queues_[qp.port * kPriorities + qp.priority].packets.empty();
    if (!is_filled) ports_[qp.port].filled &= static_cast<std::uint8_t>(~(1U << qp.priority));
    qp.is_in_ring = false;
}

// The routing has heard of the failure or repair: flows get the routes that hold now. Where there is none, a flow
// waits for one until its retries are used up. A flow keeps its transport, also where it moves to NVLink.
template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::reroute() {
    const PendingReroute change = pending_reroutes_.front();
    pending_reroutes_.pop_front();
    routing_.set_link_up(change.link, change.is_up);
    has_rerouted_ = true;
    candidates_.clear();
    flowlets_.clear();
    for (QueuePairIndex index = 0; index < queue_pairs_.size(); ++index) {
        QueuePair& qp = queue_pairs_[index];
        if (qp.is_closed || !qp.has_transport) continue;
        const std::optional<Routes> routes = find_routes(qp);
        if (!routes || routes->forward->links.front() != qp.port) leave_ring(index);
        set_routes(qp, routes);
        offer(index);
        kick(qp.port);
    }
    kick(change.link);
}

}  // namespace netsim::roce
