// Executes flow graphs on a carrier: dependencies, delays, completions and the clock.
#pragma once

#include <memory>
#include <netsim/stepped_network.hpp>
#include <optional>
#include <queue>

#include "carrier.hpp"

namespace netsim {

// Observer of graphs: called when one begins to run, and when one completes or is cancelled.
class GraphObserver {
  public:
    virtual ~GraphObserver() = default;
    virtual void begins(Handle graph, const FlowGraph& flows) = 0;
    virtual void ends(Handle graph) = 0;
};

// Executor of graphs with the semantics of netsim.backends.contract.NetworkBackend. All events of one instant are
// handled before the carrier settles, so the carrier sees the changes of an instant as one.
class Executor {
  public:
    Executor(Routing& routing, Carrier& carrier) : routing_(routing), carrier_(carrier) {}

    TimePs now_ps() const { return now_ps_; }
    // Reports graphs to an observer from now on; `nullptr`: to none.
    void tell(GraphObserver* observer) { observer_ = observer; }
    Handle submit(FlowGraph graph, TimePs at_ps);
    std::vector<Completion> advance(TimePs until_ps);
    // Earliest event of executor or carrier; kNever where nothing will happen by itself.
    TimePs next_event_ps();
    void cancel(Handle handle);
    void forget(Handle handle);
    // [flows] absolute times; kNotYet where it has not happened.
    const std::vector<TimePs>& start_ps(Handle handle) const { return record(handle).start_ps; }
    const std::vector<TimePs>& end_ps(Handle handle) const { return record(handle).end_ps; }
    // [flows] whether the carrier gave the flow up, or one that it waits for; empty where none failed.
    const std::vector<bool>& has_failed(Handle handle) const { return record(handle).has_failed; }
    // [flows] bytes delivered so far, of cancelled graphs and failed flows too.
    std::vector<std::int64_t> sent_bytes(Handle handle);
    std::size_t running_graphs() const { return running_graphs_; }

    static constexpr TimePs kNotYet = -1;

  private:
    enum class State : std::uint8_t { running, completed, cancelled };
    enum class Kind : std::uint8_t { start, arrive, credit, complete_empty };
    struct Record {
        FlowGraph graph;
        Dependents dependents;
        std::vector<const Path*> paths;                       // [flows]
        std::vector<std::int64_t> waiting;                    // [flows] arrivals and credits still missing
        std::vector<std::optional<Carrier::Ticket>> tickets;  // [flows] while the carrier has it
        std::vector<bool> has_left, is_held;                  // [flows] last byte sent; ready before the flow in front
        std::vector<TimePs> start_ps, end_ps;                 // [flows]
        std::vector<bool> has_failed;                         // [flows], or empty
        std::vector<std::int64_t> sent_bytes;                 // [flows] once the graph has ended or a flow has failed
        TimePs submitted_ps;
        std::size_t unfinished;
        State state = State::running;
    };
    struct Event {
        TimePs at_ps;
        std::uint64_t serial;
        FlowRef flow;
        Kind kind;
        bool operator>(const Event& other) const {
            return at_ps != other.at_ps ? at_ps > other.at_ps : serial > other.serial;
        }
    };

    Record& record(Handle handle) const;
    bool is_running(std::uint32_t graph) const;
    void drop_cancelled_events();
    void drop_all_but_times(Record& record);
    std::vector<std::int64_t> count_sent_bytes(const Record& record);
    void resolve_paths(Record& record);
    void push(TimePs at_ps, FlowRef flow, Kind kind);
    void release(FlowRef flow);
    void report(const Progress& progress);
    void run_instant();
    void handle(const Event& event);
    void start(FlowRef flow);
    void leave(FlowRef flow);
    void finish(FlowRef flow);
    void satisfy(std::uint32_t graph, std::span<const FlowIndex> waiting);
    void fail(FlowRef flow);
    void complete(std::uint32_t graph);

    Routing& routing_;
    Carrier& carrier_;
    GraphObserver* observer_ = nullptr;
    TimePs now_ps_ = 0;
    std::uint64_t next_serial_ = 0;
    std::vector<std::unique_ptr<Record>> records_;  // [handle]; empty once forgotten
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
    Progress progress_;
    std::size_t running_graphs_ = 0;
    std::vector<Completion> completions_;
};

}  // namespace netsim
