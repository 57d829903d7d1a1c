// What every engine does: executes the plan of a rank, sleeps between events, compares payloads.
//
// How connections are made and bytes are moved is for the engines. One is used by one thread at a time.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "payload_pattern.hpp"
#include "rank_executor.hpp"
#include "rank_plan.hpp"

namespace netsim::rdma {

// Bytes that may arrive at once share so much memory; a bound of what a rank registers, our choice.
inline constexpr std::int64_t kArenaBytes = 256LL << 20;

// A transfer or a connection failed; what() is one clause.
struct EngineError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct EngineOptions {
    int rank = 0, ranks = 1;
    std::string address;       // of the NIC, numeric: flows leave from there and arrive there
    std::string device;        // as the engine's library calls it; empty: any that fits
    int channels = 1;          // connections per ordered pair of ranks; flow labels choose
    bool spin = false;         // never sleep
    bool must_verify = false;  // payloads are compared with what was sent
};

// What a rank has to know of another one to connect to it; text that engines of one kind understand.
using Contacts = std::map<int, std::string>;  // by rank

class Engine : public Wire {
  public:
    explicit Engine(const EngineOptions& options);
    ~Engine() override;
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    // Prepares the memory for a run.
    void load(RankPlan plan);

    // For those that this rank sends to (out) or receives from (in): what they have to know of it. After load().
    virtual Contacts offer(const std::vector<int>& out, const std::vector<int>& in) = 0;

    // Connects to the ranks of the last offer, by theirs; what is connected stays so.
    virtual void connect(const Contacts& offered, Nanoseconds timeout_ns) = 0;

    // Transports and devices of the connections to a rank, such as "tcp/eth0"; each once.
    virtual std::string lanes(int rank) const = 0;

    // The only RDMA device that it uses; empty where there may be others.
    virtual std::string device() const = 0;

    // Runs the plan from t0 on and then serves the others, until stop() is called; throws EngineError.
    void run(Nanoseconds t0_ns);

    // From any thread: ends the present run, or the next.
    void stop();
    // Becomes readable when all is done here.
    int done_descriptor() const { return done_fd_; }

    RankTimes times() const;

  protected:
    // Takes what has come; the number of events.
    virtual unsigned progress() = 0;
    // From now on an event makes a watched descriptor readable; false where one has come in between.
    virtual bool arm() = 0;
    // Of what the plan sends and receives.
    virtual void register_memory() = 0;
    virtual void release_memory() = 0;

    void watch(int descriptor);
    // Whether the descriptor was, after the last sleep.
    bool was_readable(int descriptor) const;
    void sleep_until(Nanoseconds at);
    void check_payload(std::uint32_t flow, std::int64_t offset, const void* data, std::int64_t bytes);
    void fail(const std::string& message);

    const EngineOptions options_;
    RankPlan plan_;
    std::unique_ptr<RankExecutor> executor_;
    std::unique_ptr<PayloadPattern> pattern_;
    std::int64_t under_way_ = 0;  // messages, in either direction
    std::string failure_;
    std::atomic<bool> must_stop_ = false;

  private:
    int wake_fd_ = -1, done_fd_ = -1;
    std::vector<pollfd> watched_;
};

// Of the engines' arenas and patterns.
std::int64_t largest(const std::vector<std::int64_t>& values);
std::int64_t sum(const std::vector<std::int64_t>& values);

}  // namespace netsim::rdma
