#include "verbs_engine.hpp"

#include <arpa/inet.h>
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>

#include "clock.hpp"

namespace netsim::rdma {

namespace {

// Receives that lie ready; our choice: more than arrive while a thread that has been woken comes to run.
constexpr std::int64_t kReceives = 8192;

// Messages that a queue pair has under way; our choice: more than a link of 400 Gbit/s needs with messages of 4 KiB.
constexpr std::int64_t kMostUnderWay = 256;

// Completions that are taken at once.
constexpr int kBatch = 64;

// Longer flows are several messages; ports may allow less (2^31 bytes are the most of InfiniBand, 9.2.8).
constexpr std::int64_t kLongestMessage = 1LL << 30;

// Of parts of a flow that is split, as in NCCL (src/transport/net_ib.cc of 2.28).
constexpr std::int64_t kSplitAlignment = 128;

// Of the arena, and of flows in it: pages, and lines of caches.
constexpr std::int64_t kPageBytes = 4096;
constexpr std::int64_t kLineBytes = 64;

std::int64_t rounded_up(std::int64_t bytes, std::int64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Where a flow is written to in an arena that may be smaller than what arrives in a run; flows may then overlap.
std::int64_t offset_in_arena(std::int64_t place, std::int64_t bytes, std::int64_t arena_bytes) {
    return place % (arena_bytes - bytes + 1) / kLineBytes * kLineBytes;
}

}  // namespace

VerbsEngine::VerbsEngine(const EngineOptions& options, const VerbsOptions& verbs)
    : Engine(options), verbs_(verbs), device_(options.device, options.address, verbs.gid_index) {
    create_queues();
    post_receives(static_cast<std::uint32_t>(empty_receives_.size()));
    watch(notices_->fd);
    watch(device_.event_descriptor());
}

void VerbsEngine::create_queues() {
    const ibv_device_attr& limits = device_.limits();
    const auto pairs = std::int64_t{options_.ranks} * options_.channels * verbs_.queue_pairs;
    const auto receives = std::min({kReceives, std::int64_t{limits.max_srq_wr}, std::int64_t{limits.max_cqe} / 2});
    const auto room = (limits.max_cqe - receives) / pairs;
    most_under_way_ = static_cast<std::uint32_t>(std::min({kMostUnderWay, std::int64_t{limits.max_qp_wr}, room}));
    if (receives == 0 || most_under_way_ == 0) {
        throw EngineError("device " + device_.name() + ": found a shared queue of " +
                          std::to_string(limits.max_srq_wr) + " receives and " + std::to_string(limits.max_cqe) +
                          " completions, expected room for " + std::to_string(pairs) + " queue pairs");
    }
    const auto check = [&](bool is_made, const char* what) {
        if (!is_made) throw EngineError(std::string(what) + " at " + device_.name() + ": " + std::strerror(errno));
    };
    notices_.reset(ibv_create_comp_channel(device_.context()));
    check(notices_ != nullptr, "completion channel");
    fcntl(notices_->fd, F_SETFL, fcntl(notices_->fd, F_GETFL) | O_NONBLOCK);
    const auto completions = static_cast<int>(receives + pairs * most_under_way_);
    completions_.reset(ibv_create_cq(device_.context(), completions, nullptr, notices_.get(), 0));
    check(completions_ != nullptr, "completion queue");
    ibv_srq_init_attr shared{};
    shared.attr.max_wr = static_cast<std::uint32_t>(receives);
    shared.attr.max_sge = 1;
    receives_.reset(ibv_create_srq(device_.domain(), &shared));
    check(receives_ != nullptr, "shared receive queue");
    empty_receives_.resize(static_cast<std::size_t>(receives));
    for (std::size_t i = 0; i + 1 < empty_receives_.size(); ++i) empty_receives_[i].next = &empty_receives_[i + 1];
}

void VerbsEngine::post_receives(std::uint32_t count) {
    ibv_recv_wr& last = empty_receives_[count - 1];
    ibv_recv_wr* const behind = std::exchange(last.next, nullptr);
    ibv_recv_wr* refused = nullptr;
    const int error = ibv_post_srq_recv(receives_.get(), empty_receives_.data(), &refused);
    last.next = behind;
    if (error != 0) throw EngineError("receives at " + device_.name() + ": " + std::strerror(error));
}

Contacts VerbsEngine::offer(const std::vector<int>& out, const std::vector<int>& in) {
    out_ = out;
    in_ = in;
    std::unordered_map<int, VerbsContact> contacts;
    for (const int rank : out) {
        add_pairs(peers_[rank].out, rank);
        for (const auto& pair : peers_[rank].out) contacts[rank].senders.push_back(pair->address());
    }
    for (const int rank : in) {
        add_pairs(peers_[rank].in, rank);
        for (const auto& pair : peers_[rank].in) contacts[rank].receivers.push_back(pair->address());
    }
    Contacts offered;
    for (auto& [rank, contact] : contacts) {
        contact.port = {device_.port().lid,
                        device_.gid(),
                        device_.port().active_mtu,
                        reinterpret_cast<std::uint64_t>(arena_.get()),
                        arena_bytes_,
                        arena_memory_ ? arena_memory_->rkey : 0};
        offered[rank] = contact.as_text();
    }
    return offered;
}

void VerbsEngine::add_pairs(std::vector<std::unique_ptr<QueuePair>>& pairs, int rank) {
    const QueuePairResources resources{device_, completions_.get(), receives_.get(), most_under_way_};
    while (pairs.size() < static_cast<std::size_t>(options_.channels * verbs_.queue_pairs)) {
        pairs.push_back(std::make_unique<QueuePair>(resources, rank));
        pair_of_[pairs.back()->address().number] = pairs.back().get();
    }
    peers_[rank].turns.resize(static_cast<std::size_t>(options_.channels));
}

void VerbsEngine::connect(const Contacts& offered, Nanoseconds) {
    const auto connect_all = [&](const std::vector<int>& ranks, auto own, auto theirs) {
        for (const int rank : ranks) {
            const VerbsContact contact = VerbsContact::from_text(offered.at(rank));
            Peer& peer = peers_.at(rank);
            peer.port = contact.port;
            for (std::size_t i = 0; i < (peer.*own).size(); ++i) {
                QueuePair& pair = *(peer.*own)[i];
                if (pair.mtu_bytes() == 0) pair.connect(contact.port, (contact.*theirs).at(i), verbs_);
            }
        }
    };
    connect_all(out_, &Peer::out, &VerbsContact::receivers);
    connect_all(in_, &Peer::in, &VerbsContact::senders);
}

std::string VerbsEngine::lanes(int rank) const {
    const auto found = peers_.find(rank);
    if (found == peers_.end() || found->second.out.empty()) return {};
    return "rc/" + device_.name() + " gid " + std::to_string(device_.gid_index()) + " mtu " +
           std::to_string(found->second.out.front()->mtu_bytes()) + " queue_pairs " +
           std::to_string(verbs_.queue_pairs);
}

void VerbsEngine::register_memory() {
    std::int64_t all = 0;
    for (std::size_t i = 0; i < plan_.receives(); ++i) {
        all = std::max(all, plan_.receive_place[i] + plan_.receive_bytes[i]);
    }
    const std::int64_t most = std::max(kArenaBytes, largest(plan_.receive_bytes));
    arena_bytes_ = rounded_up(options_.must_verify ? all : std::min(all, most), kPageBytes);
    const auto bytes = static_cast<std::size_t>(arena_bytes_);
    if (bytes > 0) {
        arena_.reset(static_cast<char*>(std::aligned_alloc(kPageBytes, bytes)));
        if (!arena_) throw EngineError("memory: found none for the " + std::to_string(bytes) + " bytes that arrive");
        std::memset(arena_.get(), 0, bytes);
    }
    arena_memory_ = device_.registered(arena_.get(), bytes, true);
    pattern_memory_ = device_.registered(pattern_->data(), pattern_->bytes(), false);
    missing_bytes_ = plan_.receive_bytes;
}

void VerbsEngine::release_memory() {
    arena_memory_.reset();
    pattern_memory_.reset();
    arena_.reset();
}

void VerbsEngine::FreeMemory::operator()(char* memory) const { std::free(memory); }

void VerbsEngine::send(const Piece& piece) {
    Peer& peer = peers_.at(plan_.send_peer[piece.send]);
    const std::uint32_t flow = plan_.send_flow[piece.send];
    const std::int64_t each = message_bytes(piece.bytes);
    Transfer* const transfer =
        take_transfer({piece.send, piece.bytes, std::max<std::int64_t>(1, rounded_up(piece.bytes, each) / each)});
    const std::int64_t at =
        offset_in_arena(plan_.send_place[piece.send], plan_.send_bytes[piece.send], peer.port.arena_bytes) +
        piece.offset;
    under_way_ += transfer->messages;
    std::int64_t offset = 0;
    for (std::int64_t left = transfer->messages; left > 0; --left) {
        const std::int64_t bytes = std::min(each, piece.bytes - offset);
        ibv_sge element{reinterpret_cast<std::uint64_t>(pattern_->at(flow, piece.offset + offset)),
                        static_cast<std::uint32_t>(bytes), pattern_memory_->lkey};
        ibv_send_wr request{};
        request.wr_id = reinterpret_cast<std::uint64_t>(transfer);
        request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        request.imm_data = htonl(flow);
        request.sg_list = &element;
        request.num_sge = bytes > 0 ? 1 : 0;
        request.wr.rdma.remote_addr = peer.port.arena + static_cast<std::uint64_t>(at + offset);
        request.wr.rdma.rkey = peer.port.arena_key;
        next_pair(peer, plan_.send_label[piece.send]).post(request);
        offset += bytes;
    }
}

// Of a message: messages of a piece take turns on the queue pairs of their channel.
std::int64_t VerbsEngine::message_bytes(std::int64_t piece_bytes) const {
    const std::int64_t parts = verbs_.must_split ? verbs_.queue_pairs : 1;
    const std::int64_t part = parts == 1 ? piece_bytes : rounded_up((piece_bytes + parts - 1) / parts, kSplitAlignment);
    const std::int64_t longest = std::min(kLongestMessage, std::int64_t{device_.port().max_msg_sz});
    return std::clamp<std::int64_t>(part, 1, longest);
}

QueuePair& VerbsEngine::next_pair(Peer& peer, std::uint32_t label) {
    const std::size_t pairs = static_cast<std::size_t>(verbs_.queue_pairs);
    const std::size_t channel = label % peer.turns.size();
    return *peer.out[channel * pairs + peer.turns[channel]++ % pairs];
}

void VerbsEngine::inform(int rank, Event event) {
    ibv_send_wr request{};
    request.opcode = IBV_WR_SEND_WITH_IMM;
    request.imm_data = htonl(event);
    ++under_way_;
    peers_.at(rank).out.front()->post(request);
}

unsigned VerbsEngine::progress() {
    std::array<ibv_wc, kBatch> found;
    const int count = ibv_poll_cq(completions_.get(), kBatch, found.data());
    if (count < 0) throw EngineError("completion queue at " + device_.name() + ": " + std::strerror(errno));
    const Nanoseconds now = now_ns();
    std::uint32_t arrivals = 0;
    for (const ibv_wc& completion : std::span(found).first(static_cast<std::size_t>(count))) {
        if (completion.status != IBV_WC_SUCCESS) {
            fail("connection to rank " + std::to_string(pair_of_.at(completion.qp_num)->peer()) + ": " +
                 ibv_wc_status_str(completion.status));
        } else if ((completion.opcode & IBV_WC_RECV) != 0) {
            ++arrivals;
            take_arrival(completion, now);
        } else {
            finish_send(completion, now);
        }
    }
    if (arrivals > 0) post_receives(arrivals);
    return static_cast<unsigned>(count);
}

void VerbsEngine::take_arrival(const ibv_wc& completion, Nanoseconds now) {
    const std::uint32_t number = ntohl(completion.imm_data);
    if (completion.opcode == IBV_WC_RECV) {
        executor_->on_informed(number, now);
        return;
    }
    const std::int32_t found = executor_->receive_of(number);
    if (found < 0) {
        fail("flow " + std::to_string(number) + " arrived, which is not for this rank");
        return;
    }
    const auto receive = static_cast<std::uint32_t>(found);
    const std::int64_t bytes = plan_.receive_bytes[receive];
    missing_bytes_[receive] -= completion.byte_len;
    if (missing_bytes_[receive] == 0 && bytes > 0) {
        check_payload(number, 0, arena_.get() + offset_in_arena(plan_.receive_place[receive], bytes, arena_bytes_),
                      bytes);
    }
    executor_->on_arrived(receive, completion.byte_len, now);
}

void VerbsEngine::finish_send(const ibv_wc& completion, Nanoseconds now) {
    --under_way_;
    pair_of_.at(completion.qp_num)->on_completed();
    auto* const transfer = reinterpret_cast<Transfer*>(completion.wr_id);
    if (transfer == nullptr || --transfer->messages > 0) return;
    const Transfer done = *transfer;
    spare_.push_back(transfer);
    executor_->on_left(done.send, done.bytes, now);
}

bool VerbsEngine::arm() {
    if (was_readable(notices_->fd)) take_notices();
    if (was_readable(device_.event_descriptor())) {
        if (const std::string event = device_.fatal_event(); !event.empty()) fail(event);
    }
    const int error = ibv_req_notify_cq(completions_.get(), 0);
    if (error != 0) throw EngineError("completion queue at " + device_.name() + ": " + std::strerror(error));
    return progress() == 0 && failure_.empty();  // what came before the request makes nothing readable
}

void VerbsEngine::take_notices() {
    unsigned count = 0;
    ibv_cq* which = nullptr;
    void* context = nullptr;
    while (ibv_get_cq_event(notices_.get(), &which, &context) == 0) ++count;
    if (count > 0) ibv_ack_cq_events(completions_.get(), count);
}

VerbsEngine::Transfer* VerbsEngine::take_transfer(const Transfer& content) {
    if (spare_.empty()) {
        transfers_.emplace_back();
        spare_.push_back(&transfers_.back());
    }
    Transfer* const transfer = spare_.back();
    spare_.pop_back();
    *transfer = content;
    return transfer;
}

}  // namespace netsim::rdma
