// The RoCE model: hosts, switches and links, driven by an event engine that it does not know.
#pragma once

#include <algorithm>
#include <concepts>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "carrier.hpp"
#include "network.hpp"
#include "packet.hpp"
#include "parameters.hpp"
#include "port.hpp"
#include "queue_pair.hpp"
#include "routing.hpp"
#include "shared_buffer.hpp"
#include "splitmix.hpp"

namespace netsim::roce {

// An event of the model, opaque to engines: its kind, a generation and an index.
using EventCode = std::uint64_t;

// Keeps events in order of (time, order of scheduling) and calls Fabric::handle when their time has come.
template <typename E>
concept EventEngine = requires(E engine, TimePs at, EventCode code) {
    { engine.now_ps() } -> std::same_as<TimePs>;
    engine.schedule(at, code);
};

// What may be watched. An observer derives from it and hides what it wants to see; calls are resolved while compiling.
struct SilentObserver {
    void on_enqueue(LinkId, const Packet&) {}
    void on_transmit(LinkId, const Packet&) {}
    void on_receive(LinkId, const Packet&) {}
    void on_drop(LinkId, const Packet&) {}
    void on_mark(LinkId, const Packet&) {}
    void on_pause(LinkId, std::uint8_t /*priority*/, bool /*is_pause*/) {}
    void on_delivered(const QueuePair&) {}
    void on_acknowledged(const QueuePair&) {}
};

// What has happened to flows since it was last taken.
struct News {
    std::vector<FlowRef> left;       // last byte sent by the network interface
    std::vector<FlowRef> delivered;  // last byte received
    std::vector<Loss> failed;        // given up

    bool empty() const { return left.empty() && delivered.empty() && failed.empty(); }
    void clear() {
        left.clear();
        delivered.clear();
        failed.clear();
    }
};

template <EventEngine Engine, typename Observer = SilentObserver>
class Fabric {
  public:
    // The network, routing and engine outlive the fabric.
    Fabric(const Network& network, Routing& routing, Parameters parameters, Engine& engine, Observer observer = {});
    Fabric(const Fabric&) = delete;
    Fabric& operator=(const Fabric&) = delete;

    // Throws MisuseError for a path on which the congestion control cannot work.
    void check(const Path& path) const;
    // Opens a queue pair that sends one message now.
    QueuePairIndex open(FlowRef flow, const Path& path, const Demand& demand);
    // Takes the message off; what is under way is thrown away where it arrives.
    void close(QueuePairIndex index);
    void handle(EventCode code);
    // A direction of a cable fails or is repaired; routes follow after the reroute delay.
    void set_link_up(LinkId link, bool is_up);
    // Packets on a link take as long as with this share of its capacity, from the next one that is sent.
    void set_capacity_share(LinkId link, double share);
    // The far end of a link sends pause frames for a priority all the time, as defective interfaces do (a PFC storm).
    void set_storm(LinkId link, std::uint8_t priority, bool is_storming);

    News& news() { return news_; }
    bool has_news() const { return !news_.empty(); }
    // Something is under way or will be sent.
    bool is_busy() const { return open_count_ > 0 || pool_.in_use() > 0 || !pending_reroutes_.empty(); }
    std::uint64_t packet_hops() const { return packet_hops_; }
    const LinkCounters& counters(LinkId link) const { return counters_[link]; }
    // Up to now; counters() counts a packet's time and bytes when it begins to be sent.
    TimePs busy_ps(LinkId link) const;
    std::int64_t payload_bytes(LinkId link, Traffic traffic) const;
    TimePs paused_ps(LinkId link) const;
    std::int64_t queued_bytes(LinkId link) const;
    const Port& port(LinkId link) const { return ports_[link]; }
    const Parameters& parameters() const { return parameters_; }

    // For what looks at the whole state, or moves it, at once.
    const std::vector<QueuePair>& queue_pairs() const { return queue_pairs_; }
    std::size_t link_count() const { return ports_.size(); }
    std::int64_t unit_bytes() const { return unit_bytes_; }
    std::int64_t unit_wire_bytes() const { return unit_wire_bytes_; }
    // Raised whenever a flow comes or goes.
    std::uint64_t changes() const { return changes_; }
    bool is_rerouting() const { return !pending_reroutes_.empty(); }
    // Every open queue pair, with all it has under way, is so many packets (or cells) further in its message.
    void move_on(const std::vector<std::int64_t>& packets);

  private:
    enum class Kind : std::uint8_t { arrive, transmit, pace, timeout, control, depart, reroute };

    static EventCode encode(Kind kind, std::uint32_t generation, std::uint32_t index) {
        return EventCode{static_cast<std::uint8_t>(kind)} << 60 | EventCode{generation & kGenerationMask} << 32 | index;
    }
    static constexpr std::uint32_t kGenerationMask = (1U << 28) - 1;
    void schedule(TimePs at_ps, Kind kind, std::uint32_t index, std::uint32_t generation) {
        if (at_ps == kNever) return;
        engine_.schedule(at_ps, encode(kind, generation, index));
    }
    TimePs now_ps() { return engine_.now_ps(); }

    // Links (fabric_links.hpp)
    void kick(LinkId link);
    void transmit(LinkId link);
    PacketIndex next_packet(LinkId link, std::uint8_t priority, QueuePairIndex& sender);
    void free_memory(LinkId out, const Packet& packet);
    void mark_and_measure(LinkId out, PacketIndex index);
    bool is_to_mark(LinkId link, std::int64_t queued_bytes);
    TimePs end_of_transmission(LinkId link, Packet& packet);
    void arrive(LinkId link);
    void enqueue(LinkId link, PacketIndex index);
    bool ends_at(LinkId link, const Packet& packet) const;
    void forward(LinkId input, PacketIndex index);
    LinkId choose_link(NodeId node, Packet& packet);
    const std::vector<LinkId>& candidates(NodeId node, NodeId dst);
    void drop(LinkId link, PacketIndex index);
    void send_pause_frame(LinkId input, std::uint8_t priority, bool is_pause);
    void obey_pause(LinkId input, const Packet& frame);
    void set_paused(LinkId link, int priorities);
    bool has_credit(LinkId link);
    void return_credit(LinkId input, std::int64_t bytes, TimePs left_ps);

    // Transport (fabric_transport.hpp)
    void offer(QueuePairIndex index);
    PacketIndex build_packet(QueuePairIndex index);
    void pace(QueuePairIndex index);
    void receive(PacketIndex index);
    void receive_data(PacketIndex index);
    void receive_selectively(PacketIndex index);
    void answer(PacketIndex index, PacketKind kind);
    void deliver(QueuePairIndex index);
    void receive_ack(PacketIndex index);
    bool acknowledge_selectively(QueuePair& qp, const Packet& ack);
    void finish_sender(QueuePairIndex index);
    void watch_for_timeout(QueuePairIndex index);
    void time_out(QueuePairIndex index);
    void schedule_control_timer(QueuePairIndex index);
    void run_control_timer(QueuePairIndex index);
    void apply_rate(QueuePairIndex index);
    std::int64_t wire_bytes(std::int64_t payload_bytes, bool has_transport) const;
    std::int64_t packets_in(std::int64_t payload_bytes) const;

    // Flows (fabric_flows.hpp)
    FlowLimits limits_of(const QueuePair& qp) const;
    void set_up_ports();
    struct Routes {
        const Path* forward;
        const Path* back;
    };
    std::optional<Routes> find_routes(const QueuePair& qp);
    static void set_routes(QueuePair& qp, const std::optional<Routes>& routes);
    bool is_intact(const Path& path) const;
    void free_if_unused(QueuePairIndex index);
    void give_up(QueuePairIndex index);
    template <typename Call>
    void for_packets_under_way(Call&& call);

    // Failures (fabric_failures.hpp)
    void flush(LinkId link);
    void fail_nvlink_flows(LinkId link);
    void reroute();
    void leave_ring(QueuePairIndex index);

    const Network& network_;
    Routing& routing_;
    Parameters parameters_;
    Engine& engine_;
    Observer observer_;
    std::int64_t unit_bytes_;  // payload of a packet or cell
    std::int64_t unit_wire_bytes_;
    std::int64_t held_back_bytes_;  // may have arrived and not be acknowledged

    PacketPool pool_;
    std::vector<Port> ports_;              // [link]
    std::vector<Queue> queues_;            // [link * kPriorities + priority]
    std::vector<LinkCounters> counters_;   // [link]
    std::vector<std::uint32_t> epochs_;    // [link] raised when it fails, so that its events are recognised as old
    std::vector<TimePs> paused_since_ps_;  // [link]
    std::vector<std::uint8_t> storms_;     // [link] bit per priority
    std::vector<SplitMix> red_draws_;      // [link]
    SharedBuffers buffers_;

    struct Ring {
        QueuePairIndex head = kNoQueuePair, tail = kNoQueuePair;
    };
    std::vector<Ring> rings_;                // [ring index * kPriorities + priority] queue pairs that may send
    std::vector<std::uint32_t> ring_index_;  // [link] where it has queue pairs

    struct CreditReturn {
        TimePs at_ps;
        std::int64_t bytes;
    };
    struct CreditAccount {
        std::int64_t available = 0;
        std::deque<CreditReturn> returning;
        bool is_blocked = false;
    };
    std::vector<CreditAccount> credits_;       // of links into NVSwitches
    std::vector<std::uint32_t> credit_index_;  // [link]

    std::vector<QueuePair> queue_pairs_;
    std::vector<QueuePairIndex> free_queue_pairs_;
    std::size_t open_count_ = 0;

    struct Flowlet {
        LinkId link;
        TimePs last_ps;
        std::uint32_t generation;  // of the queue pair
    };
    std::unordered_map<std::uint64_t, std::vector<LinkId>> candidates_;  // [node, destination]
    std::unordered_map<std::uint64_t, Flowlet> flowlets_;                // [node, queue pair]
    struct PendingReroute {
        LinkId link;
        bool is_up;
    };
    std::deque<PendingReroute> pending_reroutes_;
    bool has_rerouted_ = false;

    News news_;
    std::uint64_t packet_hops_ = 0;
    std::uint64_t changes_ = 0;
};

}  // namespace netsim::roce

#include "fabric_failures.hpp"
#include "fabric_flows.hpp"
#include "fabric_links.hpp"
#include "fabric_transport.hpp"
