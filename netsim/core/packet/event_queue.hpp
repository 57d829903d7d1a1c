// Pending events in order of (time, order of scheduling).
#pragma once

#include <bit>
#include <cstdint>
#include <netsim/types.hpp>
#include <vector>

#include "event_heap.hpp"

namespace netsim {

// A timing wheel with a heap behind it. Events within the reach of the wheel lie in buckets of 2^bucket_shift ps, each
// a short list sorted by time, and two levels of bitmaps find the next one; later events wait in an EventHeap and move
// to the wheel as it turns. Both are stable: equal times leave in the order in which they came. Cost is constant per
// event as long as buckets hold few events, so their width should be about the mean distance of pending events.
template <typename Payload>
class EventQueue {
  public:
    struct Event {
        TimePs at_ps;
        Payload payload;
    };

    // The wheel reaches 2^(bucket_shift + bucket_bits) ps ahead; bucket_bits is 6 to 18.
    EventQueue(int bucket_shift, int bucket_bits)
        : shift_(bucket_shift),
          mask_((std::uint64_t{1} << bucket_bits) - 1),
          buckets_(std::size_t{1} << bucket_bits),
          is_filled_(buckets_.size() / 64),
          has_filled_((is_filled_.size() + 63) / 64) {}

    bool empty() const { return size_ == 0; }

    // at_ps is not before the last event taken.
    void push(TimePs at_ps, const Payload& payload) {
        ++size_;
        const std::uint64_t bucket = static_cast<std::uint64_t>(at_ps) >> shift_;
        if (bucket - base_ <= mask_) {
            insert(bucket & mask_, at_ps, payload);
        } else {
            far_.push({at_ps, next_serial_++, payload});
        }
    }

    // Expects a non-empty queue.
    TimePs next_ps() const {
        const std::uint64_t bucket = first_filled();
        return bucket == kNone ? far_.top().at_ps : nodes_[buckets_[bucket].head].at_ps;
    }

    // Takes the first event if it is not later than `until_ps`.
    bool pop_until(TimePs until_ps, Event& event) {
        if (size_ == 0) return false;
        std::uint64_t bucket = first_filled();
        if (bucket == kNone) {
            if (far_.top().at_ps > until_ps) return false;
            turn_to(static_cast<std::uint64_t>(far_.top().at_ps) >> shift_);
            bucket = base_ & mask_;
        }
        Bucket& from = buckets_[bucket];
        const std::uint32_t index = from.head;
        if (nodes_[index].at_ps > until_ps) return false;
        turn_to(base_ + ((bucket - base_) & mask_));  // may move the nodes
        Node& node = nodes_[index];
        event = {node.at_ps, node.payload};
        from.head = node.next;
        if (from.head == kNoNode) clear_filled(bucket);
        node.next = free_;
        free_ = index;
        --size_;
        turn_to(base_ + ((bucket - base_) & mask_));
        return true;
    }

  private:
    static constexpr std::uint32_t kNoNode = ~std::uint32_t{0};
    static constexpr std::uint64_t kNone = ~std::uint64_t{0};

    struct Node {
        TimePs at_ps;
        Payload payload;
        std::uint32_t next;
    };
    struct Bucket {
        std::uint32_t head = kNoNode, tail = kNoNode;  // tail is only valid where there is a head
    };
    struct Far {
        TimePs at_ps;
        std::uint64_t serial;
        Payload payload;
        EventKey key() const { return event_key(at_ps, serial); }
    };

    void insert(std::uint64_t bucket, TimePs at_ps, const Payload& payload) {
        const std::uint32_t index = take_node();
        nodes_[index].at_ps = at_ps;
        nodes_[index].payload = payload;
        Bucket& into = buckets_[bucket];
        if (into.head == kNoNode) {
            nodes_[index].next = kNoNode;
            into = {index, index};
            is_filled_[bucket >> 6] |= std::uint64_t{1} << (bucket & 63);
            has_filled_[bucket >> 12] |= std::uint64_t{1} << ((bucket >> 6) & 63);
        } else if (nodes_[into.tail].at_ps <= at_ps) {
            nodes_[index].next = kNoNode;
            nodes_[into.tail].next = index;
            into.tail = index;
        } else {
            std::uint32_t* link = &into.head;
            while (nodes_[*link].at_ps <= at_ps) link = &nodes_[*link].next;
            nodes_[index].next = *link;
            *link = index;
        }
    }

    std::uint32_t take_node() {
        if (free_ == kNoNode) {
            nodes_.emplace_back();
            return static_cast<std::uint32_t>(nodes_.size() - 1);
        }
        const std::uint32_t index = free_;
        free_ = nodes_[index].next;
        return index;
    }

    void clear_filled(std::uint64_t bucket) {
        std::uint64_t& word = is_filled_[bucket >> 6];
        word &= ~(std::uint64_t{1} << (bucket & 63));
        if (word == 0) has_filled_[bucket >> 12] &= ~(std::uint64_t{1} << ((bucket >> 6) & 63));
    }

    // The first filled bucket at or after the base, around the wheel; kNone where all are empty.
    std::uint64_t first_filled() const {
        const std::uint64_t start = base_ & mask_;
        const std::uint64_t ahead = is_filled_[start >> 6] >> (start & 63);
        if (ahead != 0) return start + static_cast<std::uint64_t>(std::countr_zero(ahead));
        const std::uint64_t after = first_filled_word((start >> 6) + 1);
        const std::uint64_t word = after != kNone ? after : first_filled_word(0);
        return word == kNone ? kNone : (word << 6) + static_cast<std::uint64_t>(std::countr_zero(is_filled_[word]));
    }

    std::uint64_t first_filled_word(std::uint64_t from) const {
        if (from >= is_filled_.size()) return kNone;
        std::uint64_t summary = from >> 6;
        std::uint64_t words = has_filled_[summary] & (~std::uint64_t{0} << (from & 63));
        while (words == 0) {
            if (++summary == has_filled_.size()) return kNone;
            words = has_filled_[summary];
        }
        return (summary << 6) + static_cast<std::uint64_t>(std::countr_zero(words));
    }

    // Makes `bucket` the first one within reach. What comes within reach leaves the heap before anything can be
    // pushed directly to the same instant, so the order of equal times holds.
    void turn_to(std::uint64_t bucket) {
        if (bucket == base_) return;
        base_ = bucket;
        while (!far_.empty() && (static_cast<std::uint64_t>(far_.top().at_ps) >> shift_) - base_ <= mask_) {
            const Far next = far_.pop();
            insert((static_cast<std::uint64_t>(next.at_ps) >> shift_) & mask_, next.at_ps, next.payload);
        }
    }

    int shift_;
    std::uint64_t mask_;
    std::uint64_t base_ = 0;  // bucket number of the last event taken
    std::size_t size_ = 0;
    std::uint32_t free_ = kNoNode;
    std::uint64_t next_serial_ = 0;
    std::vector<Node> nodes_;
    std::vector<Bucket> buckets_;
    std::vector<std::uint64_t> is_filled_, has_filled_;
    EventHeap<Far> far_;
};

}  // namespace netsim
