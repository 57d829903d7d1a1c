// Engine `verbs`: flows as RDMA writes with immediate data over reliable connections, as NCCL has them.
//
// A connection is one or more queue pairs, a channel of an ordered pair of ranks. The receiver's memory is laid out
// before the run, so that nobody has to ask where to write; the immediate data are the number of the flow. Events
// travel as empty sends with immediate data. All arrivals take from one shared queue of receives.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine.hpp"
#include "verbs_contact.hpp"
#include "verbs_device.hpp"
#include "verbs_queue_pair.hpp"

namespace netsim::rdma {

class VerbsEngine final : public Engine {
  public:
    VerbsEngine(const EngineOptions& options, const VerbsOptions& verbs);
    ~VerbsEngine() override = default;

    Contacts offer(const std::vector<int>& out, const std::vector<int>& in) override;
    // Returns at once: whoever starts a run does so when all ranks have connected.
    void connect(const Contacts& offered, Nanoseconds timeout_ns) override;
    std::string lanes(int rank) const override;
    std::string device() const override { return device_.name(); }

    void send(const Piece& piece) override;
    void inform(int rank, Event event) override;

  protected:
    unsigned progress() override;
    bool arm() override;
    void register_memory() override;
    void release_memory() override;

  private:
    struct Peer {
        std::vector<std::unique_ptr<QueuePair>> out, in;  // [channels * queue_pairs]
        std::vector<std::size_t> turns;                   // [channels] messages up to now
        PortAddress port;
    };
    struct Transfer {  // a piece under way
        std::uint32_t send = 0;
        std::int64_t bytes = 0, messages = 0;  // messages: not acknowledged yet
    };
    struct FreeMemory {
        void operator()(char* memory) const;
    };

    void create_queues();
    void add_pairs(std::vector<std::unique_ptr<QueuePair>>& pairs, int rank);
    QueuePair& next_pair(Peer& peer, std::uint32_t label);
    std::int64_t message_bytes(std::int64_t piece_bytes) const;
    void post_receives(std::uint32_t count);
    void take_arrival(const ibv_wc& completion, Nanoseconds now);
    void finish_send(const ibv_wc& completion, Nanoseconds now);
    void take_notices();
    Transfer* take_transfer(const Transfer& content);

    const VerbsOptions verbs_;
    VerbsDevice device_;
    std::unique_ptr<ibv_comp_channel, VerbsDeleter<ibv_destroy_comp_channel>> notices_;
    VerbsCompletions completions_;
    VerbsReceives receives_;
    std::uint32_t most_under_way_ = 0;         // messages of a queue pair
    std::vector<ibv_recv_wr> empty_receives_;  // a chain
    std::vector<int> out_, in_;                // ranks of the last offer
    std::unordered_map<int, Peer> peers_;
    std::unordered_map<std::uint32_t, QueuePair*> pair_of_;  // by number

    std::unique_ptr<char, FreeMemory> arena_;
    std::int64_t arena_bytes_ = 0;
    VerbsMemory pattern_memory_, arena_memory_;
    std::vector<std::int64_t> missing_bytes_;  // [receives]
    std::deque<Transfer> transfers_;           // stable addresses
    std::vector<Transfer*> spare_;
};

}  // namespace netsim::rdma
