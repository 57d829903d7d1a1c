#include "executor.hpp"

#include <algorithm>
#include <string>
#include <tuple>

namespace netsim {

namespace {

TimePs sum_ps(TimePs a, TimePs b) {
    TimePs sum = 0;
    if (__builtin_add_overflow(a, b, &sum) || sum == kNever) {
        throw MisuseError("time: found an instant beyond 2^63 ps, expected less (106 days)");
    }
    return sum;
}

}  // namespace

Handle Executor::submit(FlowGraph graph, TimePs at_ps) {
    if (at_ps < now_ps_) {
        throw MisuseError("submit: found a start at " + std::to_string(at_ps) + " ps, expected no time before now, " +
                          std::to_string(now_ps_) + " ps");
    }
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
    kept.waiting.resize(flows);
    for (FlowIndex flow = 0; flow < flows; ++flow) {
        kept.waiting[flow] = kept.graph.dep_offsets[flow + 1] - kept.graph.dep_offsets[flow];
        if (kept.waiting[flow] == 0) release({handle, flow});
    }
    if (flows == 0) push(at_ps, {handle, 0}, Kind::complete_empty);
    return handle;
}

void Executor::resolve_paths(Record& record) {
    const FlowGraph& graph = record.graph;
    record.paths.resize(graph.size());
    for (FlowIndex flow = 0; flow < graph.size(); ++flow) {
        record.paths[flow] = &routing_.path(static_cast<NodeId>(graph.src[flow]), static_cast<NodeId>(graph.dst[flow]),
                                            graph.flow_label[flow]);
        // Instants this late would only be found while running.
        sum_ps(sum_ps(record.submitted_ps, graph.ready_ps[flow]), graph.delay_ps[flow]);
    }
}

std::vector<Completion> Executor::advance(TimePs until_ps) {
    if (until_ps < now_ps_) {
        throw MisuseError("advance: found " + std::to_string(until_ps) + " ps, expected no time before now, " +
                          std::to_string(now_ps_) + " ps");
    }
    completions_.clear();
    while (completions_.empty()) {
        const TimePs next = next_event_ps();
        if (next > until_ps || next == kNever) {
            now_ps_ = until_ps;
            break;
        }
        now_ps_ = next;
        run_instant();
    }
    std::ranges::sort(completions_, {}, [](const Completion& c) {
        return std::tuple(c.graph, static_cast<std::uint64_t>(c.flow));  // kWholeGraph becomes the largest
    });
    return completions_;
}

TimePs Executor::next_event_ps() {
    // Events of graphs that were cancelled are left in the queue and dropped here.
    while (!events_.empty()) {
        const auto& record = records_[events_.top().flow.graph];
        if (record != nullptr && record->state == State::running) break;
        events_.pop();
    }
    return std::min(events_.empty() ? kNever : events_.top().at_ps, carrier_.next_event_ps());
}

void Executor::cancel(Handle handle) {
    Record& cancelled = record(handle);
    if (cancelled.state != State::running) return;
    cancelled.state = State::cancelled;
    for (const std::optional<Carrier::Ticket>& ticket : cancelled.tickets) {
        if (ticket) carrier_.stop(*ticket, now_ps_);
    }
    drop_all_but_times(cancelled);
    carrier_.settle(now_ps_);
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

void Executor::run_instant() {
    delivered_.clear();
    carrier_.run(now_ps_, delivered_);
    for (const Delivery& delivery : delivered_) {
        records_[delivery.flow.graph]->tickets[delivery.flow.flow].reset();
        leave(delivery.flow);
        push(delivery.arrives_at_ps, delivery.flow, Kind::arrive);
    }
    while (!events_.empty() && events_.top().at_ps == now_ps_) {
        const Event event = events_.top();
        events_.pop();
        const auto& owner = records_[event.flow.graph];
        if (owner != nullptr && owner->state == State::running) handle(event);
    }
    carrier_.settle(now_ps_);
}

void Executor::handle(const Event& event) {
    switch (event.kind) {
        case Kind::start:
            return start(event.flow);
        case Kind::arrive:
            return finish(event.flow);
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
    owner.tickets[flow.flow] = carrier_.start(flow, path, {bytes, owner.graph.max_rate_bps[flow.flow]}, now_ps_);
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
    if (owner.graph.notify[flow.flow]) completions_.push_back({flow.graph, flow.flow, now_ps_});
    for (std::size_t i = owner.dependents.offsets[flow.flow]; i < owner.dependents.offsets[flow.flow + 1]; ++i) {
        const FlowIndex dependent = owner.dependents.flows[i];
        if (--owner.waiting[dependent] == 0) release({flow.graph, dependent});
    }
    if (--owner.unfinished == 0) complete(flow.graph);
}

void Executor::complete(std::uint32_t graph) {
    Record& owner = *records_[graph];
    owner.state = State::completed;
    completions_.push_back({graph, kWholeGraph, now_ps_});
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
