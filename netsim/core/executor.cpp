#include "executor.hpp"

#include <algorithm>
#include <string>
#include <tuple>

namespace netsim {

namespace {

void check_on_clock(TimePs at_ps) {
    if (at_ps == kNever) {
        throw MisuseError("time: found an instant beyond 2^63 - 2 ps, expected less (106 days)");
    }
}

TimePs sum_ps(TimePs a, TimePs b) {
    const TimePs sum = later(a, b);
    check_on_clock(sum);
    return sum;
}

}  // namespace

Handle Executor::submit(FlowGraph graph, TimePs at_ps) {
    if (at_ps < now_ps_) {
        throw MisuseError("submit: found a start at " + std::to_string(at_ps) + " ps, expected no time before now, " +
                          std::to_string(now_ps_) + " ps");
    }
    check_on_clock(at_ps);
    const std::size_t flows = graph.size();
    auto record = std::make_unique<Record>();
    record->dependents = dependents_of(graph);
    record->graph = std::move(graph);
    record->submitted_ps = at_ps;
    record->unfinished = flows;
    record->start_ps.assign(flows, kNotYet);
    record->end_ps.assign(flows, kNotYet);
    record->tickets.resize(flows);
    record->has_left.resize(flows);
    record->is_held.resize(flows);
    resolve_paths(*record);

    const auto handle = static_cast<std::uint32_t>(records_.size());
    Record& kept = *records_.emplace_back(std::move(record));
    ++running_graphs_;
    kept.waiting.resize(flows);
    for (FlowIndex flow = 0; flow < flows; ++flow) {
        kept.waiting[flow] = kept.graph.dep_offsets[flow + 1] - kept.graph.dep_offsets[flow] +
                             kept.graph.credit_offsets[flow + 1] - kept.graph.credit_offsets[flow];
        if (kept.waiting[flow] == 0) release({handle, flow});
    }
    if (flows == 0) push(at_ps, {handle, 0}, Kind::complete_empty);
    if (observer_) observer_->begins(handle, kept.graph);
    return handle;
}

void Executor::resolve_paths(Record& record) {
    const FlowGraph& graph = record.graph;
    record.paths.resize(graph.size());
    for (FlowIndex flow = 0; flow < graph.size(); ++flow) {
        record.paths[flow] = &routing_.path(static_cast<NodeId>(graph.src[flow]), static_cast<NodeId>(graph.dst[flow]),
                                            graph.flow_label[flow]);
        carrier_.check(*record.paths[flow]);
        // Instants this late would only be found while running.
        sum_ps(sum_ps(record.submitted_ps, graph.ready_ps[flow]), graph.delay_ps[flow]);
    }
}

std::vector<Completion> Executor::advance(TimePs until_ps) {
    if (until_ps < now_ps_) {
        throw MisuseError("advance: found " + std::to_string(until_ps) + " ps, expected no time before now, " +
                          std::to_string(now_ps_) + " ps");
    }
    check_on_clock(until_ps);
    completions_.clear();
    for (bool is_over = false; completions_.empty() && !is_over;) {
        drop_cancelled_events();
        const TimePs own = events_.empty() ? kNever : events_.top().at_ps;
        progress_.clear();
        now_ps_ = carrier_.run(std::min(own, until_ps), progress_);
        is_over = now_ps_ == until_ps && own > until_ps && progress_.empty();
        run_instant();
    }
    std::ranges::sort(completions_, {}, [](const Completion& c) {
        return std::tuple(c.graph, static_cast<std::uint64_t>(c.flow));  // kWholeGraph becomes the largest
    });
    return completions_;
}

TimePs Executor::next_event_ps() {
    drop_cancelled_events();
    return std::min(events_.empty() ? kNever : events_.top().at_ps, carrier_.next_event_ps());
}

// Events of graphs that were cancelled are left in the queue until they come up.
void Executor::drop_cancelled_events() {
    while (!events_.empty()) {
        if (is_running(events_.top().flow.graph)) break;
        events_.pop();
    }
}

void Executor::cancel(Handle handle) {
    Record& cancelled = record(handle);
    if (cancelled.state != State::running) return;
    cancelled.state = State::cancelled;
    --running_graphs_;
    if (observer_) observer_->ends(handle);
    cancelled.sent_bytes = count_sent_bytes(cancelled);
    for (const std::optional<Carrier::Ticket>& ticket : cancelled.tickets) {
        if (ticket) carrier_.stop(*ticket, now_ps_);
    }
    drop_all_but_times(cancelled);
    carrier_.settle(now_ps_);
}

std::vector<std::int64_t> Executor::sent_bytes(Handle handle) {
    const Record& owner = record(handle);
    return owner.state == State::running ? count_sent_bytes(owner) : owner.sent_bytes;
}

// Of a graph whose flows are still known. A flow that has left its sender has got through, although it is on its way.
std::vector<std::int64_t> Executor::count_sent_bytes(const Record& record) {
    std::vector<std::int64_t> sent = record.sent_bytes;
    sent.resize(record.graph.size());
    for (FlowIndex flow = 0; flow < sent.size(); ++flow) {
        if (!record.has_failed.empty() && record.has_failed[flow]) continue;
        if (record.tickets[flow]) {
            sent[flow] = carrier_.sent_bytes(*record.tickets[flow], now_ps_);
        } else if (record.start_ps[flow] != kNotYet) {
            sent[flow] = record.graph.size_bytes[flow];
        }
    }
    return sent;
}

void Executor::forget(Handle handle) {
    if (record(handle).state == State::running) {
        throw MisuseError("forget: graph " + std::to_string(handle) +
                          " is running, expected a completed or cancelled one");
    }
    records_[static_cast<std::size_t>(handle)].reset();
}

Executor::Record& Executor::record(Handle handle) const {
    if (handle < 0 || handle >= static_cast<Handle>(records_.size()) ||
        records_[static_cast<std::size_t>(handle)] == nullptr) {
        throw MisuseError("unknown handle: found " + std::to_string(handle) + ", expected one that submit returned");
    }
    return *records_[static_cast<std::size_t>(handle)];
}

void Executor::push(TimePs at_ps, FlowRef flow, Kind kind) { events_.push({at_ps, next_serial_++, flow, kind}); }

// All dependencies of the flow have arrived (or it has none): schedules its start.
void Executor::release(FlowRef flow) {
    const Record& owner = *records_[flow.graph];
    const TimePs ready = std::max(sum_ps(owner.submitted_ps, owner.graph.ready_ps[flow.flow]), now_ps_);
    push(sum_ps(ready, owner.graph.delay_ps[flow.flow]), flow, Kind::start);
}

// What the carrier has found out at this instant, also about graphs that were cancelled before it could say so.
void Executor::report(const Progress& progress) {
    for (const FlowRef flow : progress.left) {
        if (is_running(flow.graph)) leave(flow);
    }
    for (const Delivery& delivery : progress.delivered) {
        if (!is_running(delivery.flow.graph)) continue;
        records_[delivery.flow.graph]->tickets[delivery.flow.flow].reset();
        push(delivery.arrives_at_ps, delivery.flow, Kind::arrive);
    }
    for (const Loss& loss : progress.failed) {
        if (!is_running(loss.flow.graph)) continue;
        Record& owner = *records_[loss.flow.graph];
        owner.tickets[loss.flow.flow].reset();
        owner.sent_bytes.resize(owner.graph.size());
        owner.sent_bytes[loss.flow.flow] = loss.sent_bytes;
        fail(loss.flow);
    }
}

bool Executor::is_running(std::uint32_t graph) const {
    return records_[graph] != nullptr && records_[graph]->state == State::running;
}

void Executor::run_instant() {
    report(progress_);
    while (!events_.empty() && events_.top().at_ps == now_ps_) {
        const Event event = events_.top();
        events_.pop();
        if (is_running(event.flow.graph)) handle(event);
    }
    carrier_.settle(now_ps_);
}

void Executor::handle(const Event& event) {
    switch (event.kind) {
        case Kind::start:
            return start(event.flow);
        case Kind::arrive:
            return finish(event.flow);
        case Kind::credit:
            return satisfy(event.flow.graph, records_[event.flow.graph]->dependents.credit.of(event.flow.flow));
        case Kind::complete_empty:
            return complete(event.flow.graph);
    }
}

void Executor::start(FlowRef flow) {
    Record& owner = *records_[flow.graph];
    const std::int64_t in_front = owner.graph.after[flow.flow];
    if (in_front != kNoFlow && !owner.has_left[static_cast<std::size_t>(in_front)]) {
        owner.is_held[flow.flow] = true;
        return;
    }
    owner.start_ps[flow.flow] = now_ps_;
    const Path& path = *owner.paths[flow.flow];
    const std::int64_t bytes = owner.graph.size_bytes[flow.flow];
    if (bytes == 0 || path.links.empty()) {
        leave(flow);
        return finish(flow);
    }
    const Demand demand{.src = static_cast<NodeId>(owner.graph.src[flow.flow]),
                        .dst = static_cast<NodeId>(owner.graph.dst[flow.flow]),
                        .flow_label = owner.graph.flow_label[flow.flow],
                        .size_bytes = bytes,
                        .max_rate_bps = owner.graph.max_rate_bps[flow.flow],
                        .priority = owner.graph.priority[flow.flow],
                        .traffic = owner.graph.traffic,
                        .wants_departure = owner.dependents.next[flow.flow] != kNoFlow};
    owner.tickets[flow.flow] = carrier_.start(flow, path, demand, now_ps_);
}

// The last byte of the flow has been sent: the flow behind it may start at this instant.
void Executor::leave(FlowRef flow) {
    Record& owner = *records_[flow.graph];
    owner.has_left[flow.flow] = true;
    const std::int64_t next = owner.dependents.next[flow.flow];
    if (next != kNoFlow && owner.is_held[static_cast<std::size_t>(next)]) {
        push(now_ps_, {flow.graph, static_cast<FlowIndex>(next)}, Kind::start);
    }
}

void Executor::finish(FlowRef flow) {
    Record& owner = *records_[flow.graph];
    owner.end_ps[flow.flow] = now_ps_;
    if (owner.graph.notify[flow.flow]) completions_.push_back({flow.graph, flow.flow, now_ps_, false});
    satisfy(flow.graph, owner.dependents.data.of(flow.flow));
    if (!owner.dependents.credit.of(flow.flow).empty()) {
        push(sum_ps(now_ps_, owner.paths[flow.flow]->latency_ps), flow, Kind::credit);
    }
    if (--owner.unfinished == 0) complete(flow.graph);
}

// One of the things that the flows wait for has happened.
void Executor::satisfy(std::uint32_t graph, std::span<const FlowIndex> waiting) {
    for (const FlowIndex flow : waiting) {
        if (--records_[graph]->waiting[flow] == 0) release({graph, flow});
    }
}

// The flow was given up: so are all that wait for it, directly or not. The others go on.
void Executor::fail(FlowRef flow) {
    Record& owner = *records_[flow.graph];
    owner.has_failed.resize(owner.graph.size());
    std::vector<FlowIndex> lost{flow.flow};
    owner.has_failed[flow.flow] = true;
    const auto lose = [&](FlowIndex dependent) {
        if (owner.has_failed[dependent]) return;
        owner.has_failed[dependent] = true;
        lost.push_back(dependent);
    };
    for (std::size_t i = 0; i < lost.size(); ++i) {
        std::ranges::for_each(owner.dependents.data.of(lost[i]), lose);
        std::ranges::for_each(owner.dependents.credit.of(lost[i]), lose);
        const std::int64_t next = owner.dependents.next[lost[i]];
        if (next != kNoFlow && !owner.has_left[lost[i]]) lose(static_cast<FlowIndex>(next));
    }
    owner.unfinished -= lost.size();
    if (owner.unfinished == 0) complete(flow.graph);
}

void Executor::complete(std::uint32_t graph) {
    Record& owner = *records_[graph];
    owner.state = State::completed;
    --running_graphs_;
    if (observer_) observer_->ends(graph);
    owner.sent_bytes = count_sent_bytes(owner);
    completions_.push_back({graph, kWholeGraph, now_ps_, !owner.has_failed.empty()});
    drop_all_but_times(owner);
}

void Executor::drop_all_but_times(Record& record) {
    record.graph = {};
    record.dependents = {};
    record.paths = {};
    record.waiting = {};
    record.tickets = {};
    record.has_left = {};
    record.is_held = {};
}

}  // namespace netsim
