// The simulation loop: iterations of instances on one clock.
//
// Runs events until Python has to decide something: then it returns a notice, and goes on from there when run again.
// Python decides on requests that arrive or leave a prefill instance, transfers, couplings that time iterations by
// other traffic, and prices that the core does not know. All that an instance does by itself (batching, pricing by
// `aicb::IterationPricing`, decode runs, their results and records) happens here.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <netsim/link_log.hpp>
#include <netsim/periodic_loads.hpp>
#include <netsim/stepped_network.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "event_queue.hpp"
#include "iteration_log.hpp"
#include "notices.hpp"
#include "request_log.hpp"
#include "running_iteration.hpp"

namespace serving {

// The batches of the iteration that is being priced, one rank after another; of a run those of its first step.
struct PricedBatches {
    std::vector<Tokens> new_tokens, kv_tokens;       // [requests of all ranks]
    std::vector<std::int64_t> requests, logit_rows;  // [ranks]

    BatchSums sums() const;
};

class Loop {
  public:
    // `links`: log of the bytes that priced collectives put on links; none where nobody reads it.
    Loop(std::int64_t instances, bool keeps_runs, bool keeps_members, std::shared_ptr<netsim::LinkLog> links);

    // Adds the next instance; `pricing` is [stages], empty where Python prices.
    void add(InstancePtr instance, Traits traits, std::vector<Pricing> pricing);

    // Clients are behind a frontend; to be said before instances are added.
    void serve_through(std::int64_t servers, TokenWork work) { frontend_ = std::make_shared<Frontend>(servers, work); }
    // Gives a server of the frontend work on a request, now; returns when it will be done.
    TimePs work_of_server(std::int64_t server, TimePs work_ps);
    // A request gets a token that Python has kept back, or its prefill instance has sampled.
    void deliver(const RequestPtr& request);

    // A request arrives; what instances have done up to the last one is known apart.
    void note_arrival() { iterations.busy_at_arrival_ps = iterations.busy_ps; }

    // Python hears of requests that complete here from now on.
    void report_completions() { reports_completions_ = true; }

    // Advances a network together with the events: completions at an instant come before events at it.
    void advance_with(std::shared_ptr<netsim::SteppedNetwork> network) { network_ = std::move(network); }
    // The same for a network that is advanced elsewhere: graphs that have come to their end, and whether they failed.
    void arrive(TimePs at_ps, const std::vector<std::pair<std::int64_t, bool>>& graphs);

    // Runs the events before `before_ps`, up to the first one that Python has to handle.
    std::optional<Notice> run(TimePs before_ps);

    // Time of the next event of the queue (void ones left out) or of the network.
    std::optional<TimePs> next_event_ps();
    TimePs now_ps() const { return queue_.now_ps(); }
    // Queues a notice `CallDue`; returns its number.
    std::int64_t schedule_call(TimePs at_ps, Priority priority);
    std::int64_t executed() const { return executed_; }

    // Wakes an instance, as something new may be scheduled: at this instant, or as soon as the step in progress ends.
    void wake(std::int32_t instance);
    // The host of an instance is busy: no iteration of it begins before `until_ps`.
    void hold(std::int32_t instance, TimePs until_ps);
    // Records the KV blocks held from now on, and returns them.
    std::int64_t note_kv_use(std::int32_t instance);
    // (Re-)schedules the end of an iteration.
    //
    // While it waits for layers it has none, see `set_arrivals`.
    void schedule_end(const RunningIterationPtr& iteration);
    // Ends an iteration at this instant, before the loop goes on; one that waits for layers later.
    void end(const RunningIterationPtr& iteration);
    // Lets the batch that is planned wait until `set_arrivals`, before its first layer; none, where there is no batch
    // or stages follow each other.
    std::shared_ptr<LayerArrivals> await_write(std::int32_t instance);
    // All layers of a load have come at these times, or tokens that have not are computed for so long.
    void set_arrivals(std::int32_t instance, LayerArrivals& arrivals, std::vector<TimePs> at_ps, TimePs recomputing_ps);
    // Aborts an iteration of one step; returns its requests, which leave the instance.
    std::vector<RequestPtr> break_off(const RunningIterationPtr& iteration);
    // Fails an instance, which launches nothing until `resume`.
    //
    // Steps of a run that have ended by now count, with their tokens. The step in progress and all other running
    // iterations are aborted and not recorded. All requests leave, and all KV is gone, including KV held for transfers
    // and cached content. Returns the requests that ran or waited there (`RankState::clear`), rank by rank.
    std::vector<RequestPtr> halt(std::int32_t instance);
    // The instance is back, empty, and may launch from now on.
    void resume(std::int32_t instance);
    // Iterations launched from now on compute `factor` times as long; of those under way, a run ends with the step in
    // progress, and nothing else changes.
    void set_compute_slowdown(std::int32_t instance, double factor);
    // Answers to `PriceCollectives` and `AcceptDrafts`.
    void set_communication(std::int32_t instance, std::int64_t stage, std::int64_t number, Communicated communicated);
    // Forgets the prices of the instance's collectives: its next iterations ask again, those in progress keep theirs.
    void forget_communication(std::int32_t instance);
    // An answer to `DecideIteration`: each of the steps decodes all running requests.
    void decode_run() { work_.steps = work_.offered_steps; }
    // An answer to `PriceNextHost`.
    void set_next_host(const HostWork& work);
    void set_accepted(std::vector<std::vector<Tokens>> accepted, std::vector<std::vector<Tokens>> drafted) {
        draft_results_ = {std::move(accepted), std::move(drafted)};
    }

    // Coupling `fluid`.

    // Makes iterations loads on the links of the network, with their instances as sources: iterations and transfers
    // that share links slow each other down.
    void couple(std::shared_ptr<netsim::PeriodicLoads> loads) { placed_ = std::move(loads); }
    // Remembers the load that a list of collectives puts on links, under the next number.
    std::int32_t remember(netsim::LinkLoad load);
    // The load of transfers changes at `at_ps`: iterations and transfers are updated at the end of that instant.
    void traffic_changes(TimePs at_ps);

    // A request ends with its last token, or without it; its row is written.
    void complete(Request& request);
    void give_up(Request& request, Status status, const std::string& reason);

    std::vector<TimePs>& stage_free_ps(std::int32_t instance) { return at(instance).stage_free_ps; }
    const PricedBatches& batches() const { return batches_; }

    IterationLog iterations;
    RequestLog requests;

  private:
    enum class Step : std::uint8_t {
        kNone,
        kDispatch,
        kDecideAhead,
        kDecide,
        kPlan,
        kForm,
        kPrice,
        kLaunch,
        kLaunched,
        kAfterLaunch,
        kEnd,
        kNextHost,
        kCredit,
        kReport,
        kAfterEnd
    };
    // Work at hand: one iteration of one instance, between two steps.
    struct Work {
        Step step = Step::kNone;
        std::int32_t instance = 0;
        RunningIterationPtr iteration = nullptr;
        TimePs late_ps = 0;  // by how much tokens are handed out later than the device has them
        GroupOutcome outcome = {};
        std::size_t reported = 0;
        std::int64_t steps = 0;          // of the run of decode iterations that is next; 0: a batch is decided
        std::int64_t offered_steps = 0;  // of which a policy in Python can make a run
    };

    Instance& at(std::int32_t instance) { return *instances_.at(static_cast<std::size_t>(instance)); }
    const Instance& at(std::int32_t instance) const { return *instances_.at(static_cast<std::size_t>(instance)); }
    // Instance of the work at hand.
    const InstancePtr& here() const { return instances_[static_cast<std::size_t>(work_.instance)]; }
    bool counts(const Event& event) const;
    void begin(const Event& event);
    std::optional<Notice> proceed();
    void dispatch(Instance& instance);
    void dispatch_later(std::int32_t instance, TimePs at_ps);
    void decide_later(Instance& instance, TimePs at_ps);
    static TimePs decides_next_ps(const Instance& instance, const RunningIteration& iteration);
    std::optional<Notice> begin_decision(Instance& instance);
    std::optional<Notice> decide(Instance& instance);
    void plan(Instance& instance);
    RunningIterationPtr form(Instance& instance);
    static void await_layers(RunningIteration& iteration);
    std::optional<Notice> report_launch();
    std::optional<Notice> go_on_after_launch(Instance& instance);
    void collect(const RankGroup& group, const GroupBatch* batch);
    aicb::RankBatches collected(bool is_plain) const;
    std::optional<Notice> price(Instance& instance, RunningIteration& iteration);
    bool price_stage(Instance& instance, RunningIteration& iteration, std::size_t stage, aicb::IterationCost& cost);
    static void end_host(Instance& instance, const RunningIteration& iteration);
    std::optional<Notice> ask_next_host(Instance& instance, const RunningIteration& iteration);
    GroupOutcome credit(Instance& instance, RunningIteration& iteration, TimePs late_ps);
    void pass_tokens(RunningIteration* ending);
    static void cut_plan(Instance& instance);
    void cut_short(Instance& instance);
    std::optional<Notice> report();
    std::optional<Notice> launch(Instance& instance);
    std::optional<Notice> rest(Instance& instance);
    std::optional<netsim::Completion> take_completion();
    std::optional<TimePs> next_own_event_ps();
    void advance_network(TimePs network_ps, std::optional<TimePs> next_ps);
    void update_traffic();
    void launch_with_others(const RunningIterationPtr& iteration);
    void place_and_settle(const RunningIterationPtr& iteration);
    void update_loads();
    void update_affected();
    std::vector<double> slowdowns_of(const RunningIteration& iteration) const;
    void place(std::int32_t instance);
    void hold_back();
    // Gives running iterations in a pipeline, or the one iteration there is, new slowdowns:
    // [running iterations][stages].
    void retime(std::int32_t instance, const std::vector<std::vector<double>>& slowdowns);
    void remove(Instance& instance, const RunningIterationPtr& iteration);
    void book(RunningIteration& iteration, TimePs until_ps);

    bool reports_completions_ = false;
    std::size_t announced_;  // instances there will be
    EventQueue queue_;
    std::vector<InstancePtr> instances_;
    std::shared_ptr<Frontend> frontend_;      // none: clients are at the engines
    std::shared_ptr<netsim::LinkLog> links_;  // none: nobody wants to know, or collectives are flows on the network
    std::vector<std::shared_ptr<const netsim::LinkLoad>> loads_;
    std::shared_ptr<netsim::SteppedNetwork> network_;  // none: advanced elsewhere, or not at all
    std::deque<netsim::Completion> completions_;       // that nobody knows of yet
    std::shared_ptr<netsim::PeriodicLoads> placed_;    // in coupling `fluid`
    std::set<TimePs> updates_ps_;                      // instants at whose end both kinds of traffic are updated
    std::deque<RunningIterationPtr> ending_;
    Work work_;
    DraftResults draft_results_;  // of the iteration that ends
    std::int64_t executed_ = 0, calls_ = 0, launched_ = 0, ends_ = 0;
    PricedBatches batches_;
    std::vector<TimePs> stage_compute_ps_;
};

}  // namespace serving
