// Fabric, part: set-up, flows that come, go and move on.
#pragma once

#include "fabric.hpp"

namespace netsim::roce {

template <EventEngine Engine, typename Observer>
Fabric<Engine, Observer>::Fabric(const Network& network, Routing& routing, Parameters parameters, Engine& engine,
                                 Observer observer)
    : network_(network),
      routing_(routing),
      parameters_(std::move(parameters)),
      engine_(engine),
      observer_(std::move(observer)),
      unit_bytes_(parameters_.wire.mtu_bytes * parameters_.cell_packets),
      unit_wire_bytes_(wire_bytes(unit_bytes_, true)),
      held_back_bytes_(std::max(parameters_.wire.packets_per_ack, parameters_.cell_packets) *
                       parameters_.wire.mtu_bytes),
      pool_(std::holds_alternative<HpccParameters>(parameters_.congestion)),
      ports_(network.link_count()),
      queues_(network.link_count() * kPriorities),
      counters_(network.link_count()),
      epochs_(network.link_count()),
      paused_since_ps_(network.link_count()),
      storms_(network.link_count()),
      buffers_(network, parameters_),
      ring_index_(network.link_count()),
      credit_index_(network.link_count()) {
    netsim::check(parameters_.congestion);
    set_up_ports();
    for (LinkId link = 0; link < network.link_count(); ++link) red_draws_.emplace_back(parameters_.seed, link);
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::check(const Path& path) const {
    if (path.links.empty()) return;
    const Port& first = ports_[path.links.front()];
    const Port& last = ports_[path.links.back()];
    if (first.from == NodeRole::packet_switch || last.to == NodeRole::packet_switch) {
        const NodeId found =
            first.from == NodeRole::packet_switch ? network_.link(path.links.front()).src : last.to_node;
        throw MisuseError("flow: found an end at node " + std::to_string(found) +
                          ", a switch; expected GPUs, or NVSwitches");
    }
    if (!pool_.collects_telemetry()) return;
    const auto measures = [&](LinkId link) { return ports_[link].from == NodeRole::packet_switch; };
    const auto hops = static_cast<std::size_t>(std::ranges::count_if(path.links, measures));
    if (hops > kMaxIntHops) {
        throw MisuseError("congestion control hpcc: found a path through " + std::to_string(hops) +
                          " switches, expected at most " + std::to_string(kMaxIntHops) + ", as packets have room for");
    }
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::set_up_ports() {
    const auto role = [&](NodeId node) {
        if (!network_.forwards(node)) return NodeRole::host;
        return network_.is_inside_server(node) ? NodeRole::nvswitch : NodeRole::packet_switch;
    };
    const std::vector<LinkId> reverse = reverse_links(network_);
    for (LinkId id = 0; id < network_.link_count(); ++id) {
        const Link& link = network_.link(id);
        Port& port = ports_[id];
        port.latency_ps = link.latency_ps;
        port.capacity_bps = link.capacity_bps;
        port.to_node = link.dst;
        port.from = role(link.src);
        port.to = role(link.dst);
        port.reverse = reverse[id];
        if (port.has_queue_pairs()) {
            ring_index_[id] = static_cast<std::uint32_t>(rings_.size() / kPriorities);
            rings_.resize(rings_.size() + kPriorities);
        }
        if (port.to == NodeRole::nvswitch) {
            credit_index_[id] = static_cast<std::uint32_t>(credits_.size());
            credits_.emplace_back().available = parameters_.credit_bytes[id];
        }
    }
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::handle(EventCode code) {
    const auto kind = static_cast<Kind>(code >> 60);
    const auto generation = static_cast<std::uint32_t>(code >> 32) & kGenerationMask;
    const auto index = static_cast<std::uint32_t>(code);
    if (kind == Kind::arrive || kind == Kind::transmit) {
        if (generation != (epochs_[index] & kGenerationMask)) return;  // the link has failed since
        if (kind == Kind::arrive) return arrive(index);
        ports_[index].is_transmit_scheduled = false;
        return kick(index);
    }
    if (kind == Kind::reroute) return reroute();
    if (generation != (queue_pairs_[index].generation & kGenerationMask)) return;  // of an earlier user of the slot
    switch (kind) {
        case Kind::pace:
            return pace(index);
        case Kind::timeout:
            return time_out(index);
        case Kind::control:
            return run_control_timer(index);
        default:
            if (!queue_pairs_[index].is_closed) news_.left.push_back(queue_pairs_[index].flow);
    }
}

template <EventEngine Engine, typename Observer>
QueuePairIndex Fabric<Engine, Observer>::open(FlowRef flow, const Path& path, const Demand& demand) {
    QueuePairIndex index = static_cast<QueuePairIndex>(queue_pairs_.size());
    if (free_queue_pairs_.empty()) {
        queue_pairs_.emplace_back();
    } else {
        index = free_queue_pairs_.back();
        free_queue_pairs_.pop_back();
    }
    QueuePair& qp = queue_pairs_[index];
    const std::uint32_t generation = qp.generation + 1;
    qp = QueuePair{};
    qp.generation = generation;
    qp.flow = flow;
    qp.src = demand.src;
    qp.dst = demand.dst;
    qp.flow_label = demand.flow_label;
    qp.size_bytes = demand.size_bytes;
    qp.priority = demand.priority;
    qp.traffic = demand.traffic;
    qp.wants_departure = demand.wants_departure;
    qp.last_nack_seq = -1;
    qp.control_timer_ps = kNever;
    qp.forward = &path;
    qp.port = path.links.front();
    set_routes(qp, find_routes(qp));
    qp.has_transport = !std::ranges::all_of(qp.forward->links, [&](LinkId link) {
        return ports_[link].from == NodeRole::nvswitch || ports_[link].to == NodeRole::nvswitch;
    });
    const std::int64_t line_bps = ports_[qp.port].capacity_bps;
    qp.rate_cap_bps = demand.max_rate_bps > 0 ? std::min(demand.max_rate_bps, line_bps) : line_bps;
    const FlowLimits limits = limits_of(qp);
    const bool is_bounded = qp.has_transport && parameters_.transport.window != SendWindow::unbounded;
    qp.base_window_bytes = is_bounded ? limits.window_bytes : kNoWindow;
    qp.window_bytes = qp.base_window_bytes;
    // Slow links and long cables would time out by themselves.
    qp.timeout_ps = std::max(parameters_.retransmission_timeout_ps, later(limits.base_rtt_ps, limits.base_rtt_ps));
    qp.control = CongestionControl(qp.has_transport ? parameters_.congestion : kNoCongestionControl, limits, now_ps());
    if (qp.has_transport && parameters_.recovery == Recovery::selective_repeat) {
        qp.selective = std::make_unique<SelectiveRepeat>(qp.size_bytes, unit_bytes_);
    }
    ++open_count_;
    ++changes_;
    if (!qp.has_transport && !is_intact(*qp.forward)) {
        give_up(index);
        return index;
    }
    offer(index);
    kick(qp.port);
    return index;
}

// What holds now; none where failures have left no way there or back.
template <EventEngine Engine, typename Observer>
std::optional<typename Fabric<Engine, Observer>::Routes> Fabric<Engine, Observer>::find_routes(const QueuePair& qp) {
    if (!has_rerouted_) return Routes{qp.forward, &routing_.reverse_path(qp.src, qp.dst, qp.flow_label)};
    try {
        return Routes{&routing_.path(qp.src, qp.dst, qp.flow_label),
                      &routing_.reverse_path(qp.src, qp.dst, qp.flow_label)};
    } catch (const MisuseError&) {
        return std::nullopt;
    }
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::set_routes(QueuePair& qp, const std::optional<Routes>& routes) {
    qp.is_stranded = !routes.has_value();
    if (qp.is_stranded) return;
    qp.forward = routes->forward;
    qp.back = routes->back;
    qp.port = qp.forward->links.front();
}

template <EventEngine Engine, typename Observer>
bool Fabric<Engine, Observer>::is_intact(const Path& path) const {
    return std::ranges::all_of(path.links, [&](LinkId link) { return ports_[link].is_up; });
}

// The round trip of a full packet and its acknowledgement through idle queues, and what it takes to fill it. What
// acknowledgements hold back is added to the window, or they would slow the flow down.
template <EventEngine Engine, typename Observer>
FlowLimits Fabric<Engine, Observer>::limits_of(const QueuePair& qp) const {
    const std::int64_t full = wire_bytes(parameters_.wire.mtu_bytes, true);
    TimePs rtt = 0;
    for (const LinkId link : qp.forward->links) {
        rtt = later(rtt, later(ports_[link].latency_ps, ports_[link].exact_serialization_ps(full)));
    }
    // A flow that finds no way as it starts is taken to return by the links it came by.
    for (const LinkId link : qp.back != nullptr ? qp.back->links : qp.forward->links) {
        const Port& port = ports_[qp.back != nullptr ? link : ports_[link].reverse];
        rtt = later(rtt, later(port.latency_ps, port.exact_serialization_ps(parameters_.wire.ack_bytes)));
    }
    // Packets that take all ways together are only bound by the links at both ends.
    const bool is_sprayed = parameters_.load_balancing == LoadBalancing::adaptive;
    const std::int64_t ends_bps = std::min(ports_[qp.port].capacity_bps, ports_[qp.forward->links.back()].capacity_bps);
    const Work product = Work{rtt} * (is_sprayed ? ends_bps : qp.forward->bottleneck_bps) / (8 * kPsPerSecond);
    return {ports_[qp.port].capacity_bps, rtt, parameters_.wire.mtu_bytes,
            static_cast<std::int64_t>(std::min<Work>(product + held_back_bytes_, kNoWindow))};
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::close(QueuePairIndex index) {
    QueuePair& qp = queue_pairs_[index];
    if (qp.is_closed) return;
    qp.is_closed = true;
    --open_count_;
    ++changes_;
    free_if_unused(index);
}

// The slot can have a new user when nothing refers to it any more; events do, but they know their generation.
template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::free_if_unused(QueuePairIndex index) {
    QueuePair& qp = queue_pairs_[index];
    if (!qp.is_closed || qp.in_network > 0 || qp.is_in_ring || qp.is_free) return;
    qp.is_free = true;
    ++qp.generation;
    qp.selective.reset();
    free_queue_pairs_.push_back(index);
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::give_up(QueuePairIndex index) {
    QueuePair& qp = queue_pairs_[index];
    if (qp.is_closed) return free_if_unused(index);
    if (!qp.is_delivered) news_.failed.push_back({qp.flow, qp.received_bytes()});
    close(index);
}

template <EventEngine Engine, typename Observer>
template <typename Call>
void Fabric<Engine, Observer>::for_packets_under_way(Call&& call) {
    const auto walk = [&](const PacketFifo& fifo) {
        if (fifo.empty()) return;
        for (PacketIndex index = fifo.head;; index = pool_[index].next) {
            if (pool_[index].qp != kNoQueuePair) call(pool_[index]);
            if (index == fifo.tail) return;
        }
    };
    for (const Port& port : ports_) walk(port.wire);
    for (const Queue& queue : queues_) walk(queue.packets);
}

template <EventEngine Engine, typename Observer>
void Fabric<Engine, Observer>::move_on(const std::vector<std::int64_t>& packets) {
    for_packets_under_way([&](Packet& packet) { packet.seq += packets[packet.qp] * unit_bytes_; });
    for (QueuePairIndex index = 0; index < packets.size(); ++index) {
        QueuePair& qp = queue_pairs_[index];
        const std::int64_t bytes = packets[index] * unit_bytes_;
        if (qp.is_closed || bytes == 0) continue;
        qp.next_seq += bytes;
        qp.acked_seq += bytes;
        qp.expected_seq += bytes;
        qp.control.move_on(bytes);
    }
}

}  // namespace netsim::roce
