// Packets in flight, in one pool.
#pragma once

#include <cstdint>
#include <memory>
#include <netsim/link_log.hpp>
#include <netsim/types.hpp>
#include <vector>

#include "roce/congestion/telemetry.hpp"

namespace netsim::roce {

using PacketIndex = std::uint32_t;
using QueuePairIndex = std::uint32_t;
inline constexpr PacketIndex kNoPacket = ~PacketIndex{0};
inline constexpr LinkId kNoLink = ~LinkId{0};
inline constexpr QueuePairIndex kNoQueuePair = ~QueuePairIndex{0};

enum class PacketKind : std::uint8_t { data, ack, nack, pause, resume };

// One cache line. A data packet becomes its own acknowledgement at the receiver, so it keeps its timestamp and
// telemetry.
struct Packet {
    PacketIndex next;  // in a queue or on a wire
    QueuePairIndex qp;
    std::int64_t seq;   // data: first byte; acknowledgement: all bytes before it have arrived
    TimePs arrives_ps;  // on a wire: when it can be forwarded
    TimePs sent_ps;     // by the network interface of the sender
    union {
        TimePs tail_ps;          // data: when its last byte reaches the node where it is
        std::int64_t selective;  // acknowledgement with selective repeat: first byte of the packet it answers
        std::int64_t epoch;      // pause frame: of the link it is about
    };
    const LinkId* next_link;     // rest of its route; null: chosen at every node
    std::int32_t payload_bytes;  // 0 but for data
    std::int32_t wire_bytes;
    LinkId ingress;  // by which it came to the node where it is
    PacketKind kind;
    std::uint8_t priority;
    bool is_marked : 1;
    Traffic traffic : 7;
    std::uint8_t telemetry_hops;
};
static_assert(sizeof(Packet) == 64);

struct Telemetry {
    IntHop hops[kMaxIntHops];
};

// In chunks, so that references stay valid while the pool grows.
class PacketPool {
  public:
    explicit PacketPool(bool collects_telemetry) : collects_telemetry_(collects_telemetry) {}

    PacketIndex take() {
        ++in_use_;
        if (free_ == kNoPacket) return grow();
        const PacketIndex index = free_;
        free_ = (*this)[index].next;
        return index;
    }
    void give_back(PacketIndex index) {
        --in_use_;
        (*this)[index].next = free_;
        free_ = index;
    }

    Packet& operator[](PacketIndex index) { return chunks_[index >> kChunkBits][index & kChunkMask]; }
    bool collects_telemetry() const { return collects_telemetry_; }
    IntHop* telemetry(PacketIndex index) { return telemetry_[index >> kChunkBits][index & kChunkMask].hops; }
    std::size_t in_use() const { return in_use_; }

  private:
    static constexpr int kChunkBits = 10;
    static constexpr PacketIndex kChunkMask = (PacketIndex{1} << kChunkBits) - 1;

    PacketIndex grow() {
        if ((size_ & kChunkMask) == 0) {
            chunks_.push_back(std::make_unique<Packet[]>(kChunkMask + 1));
            if (collects_telemetry_) telemetry_.push_back(std::make_unique<Telemetry[]>(kChunkMask + 1));
        }
        return size_++;
    }

    bool collects_telemetry_;
    std::size_t in_use_ = 0;
    PacketIndex size_ = 0, free_ = kNoPacket;
    std::vector<std::unique_ptr<Packet[]>> chunks_;
    std::vector<std::unique_ptr<Telemetry[]>> telemetry_;  // parallel to the packets
};

// First in, first out; links are in the packets.
struct PacketFifo {
    PacketIndex head = kNoPacket, tail = kNoPacket;

    bool empty() const { return head == kNoPacket; }
    void push(PacketPool& pool, PacketIndex packet) {
        pool[packet].next = kNoPacket;
        if (empty()) {
            head = packet;
        } else {
            pool[tail].next = packet;
        }
        tail = packet;
    }
    PacketIndex pop(PacketPool& pool) {
        const PacketIndex packet = head;
        head = pool[packet].next;
        return packet;
    }
};

}  // namespace netsim::roce
