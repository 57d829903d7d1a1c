// What comes to a loop from outside: requests that end, and faults.
#include <algorithm>

#include "loop.hpp"

namespace serving {

void Loop::wake(std::int32_t index) {
    Instance& instance = at(index);
    cut_plan(instance);
    if (!instance.is_full()) {
        dispatch_later(index, now_ps());
    } else if (instance.running_iterations[0]->is_run() && truncate(*instance.running_iterations[0], now_ps())) {
        schedule_end(instance.running_iterations[0]);
    }
}

std::int64_t Loop::note_kv_use(std::int32_t instance) {
    const std::int64_t used = at(instance).group.used_blocks();
    iterations.kv_use().hold(instance, now_ps(), used);
    return used;
}

std::vector<RequestPtr> Loop::break_off(const RunningIterationPtr& iteration) {
    Instance& instance = at(iteration->instance);
    if (placed_) traffic_changes(now_ps());
    remove(instance, iteration);
    ensure(iteration->batch != nullptr, "what may fail has one step");
    if (iteration->ends_ps[0] > iteration->start_ps) {
        iteration->compute_ps[0] = std::min(iteration->compute_ps[0], iteration->ends_ps[0] - iteration->start_ps);
        const InstanceTime took = iterations.add(*iteration);
        instance.group.done.compute_ps += took.compute_ps;
        instance.group.done.communication_ps += took.communication_ps;
        iterations.keep(*iteration, {iteration->batch->requests, iteration->batch->prefill_tokens,
                                     iteration->batch->decode_tokens, instance.group.waiting_requests(),
                                     instance.group.running_requests(), instance.group.used_blocks()});
    }
    instance.decide_at_ps.reset();
    std::vector<RequestPtr> lost = instance.group.abandon(*iteration->batch);
    cut_plan(instance);
    if (instance.plan) {
        const std::shared_ptr<GroupBatch>& next = instance.plan->batch;
        const bool is_left = next ? instance.group.keep_running_in(*next) : instance.group.running_requests() > 0;
        if (!is_left) instance.plan.reset();
    }
    note_kv_use(iteration->instance);
    dispatch_later(iteration->instance, now_ps());
    return lost;
}

std::vector<RequestPtr> Loop::halt(std::int32_t index) {
    Instance& instance = at(index);
    instance.is_up = false;
    instance.dispatch_at_ps.reset();
    instance.decide_at_ps.reset();
    instance.plan.reset();
    if (placed_ && !instance.running_iterations.empty()) traffic_changes(now_ps());
    for (const RunningIterationPtr& iteration : std::exchange(instance.running_iterations, {})) {
        book(*iteration, now_ps());
        if (iteration->is_run() && keep_ended(*iteration, now_ps())) credit(instance, *iteration, 0);
    }
    std::vector<RequestPtr> lost = instance.group.clear();
    note_kv_use(index);
    return lost;
}

void Loop::resume(std::int32_t index) {
    Instance& instance = at(index);
    instance.is_up = true;
    instance.held_until_ps = 0;
    std::fill(instance.stage_free_ps.begin(), instance.stage_free_ps.end(), now_ps());
    dispatch_later(index, now_ps());
}

void Loop::set_compute_slowdown(std::int32_t index, double factor) {
    at(index).compute_slowdown = factor;
    cut_short(at(index));
}

void Loop::hold(std::int32_t index, TimePs until_ps) {
    at(index).held_until_ps = std::max(at(index).held_until_ps, until_ps);
}

// Of a run that has not begun, only the first iteration is decided.
void Loop::cut_plan(Instance& instance) {
    if (instance.plan) instance.plan->steps = 0;
}

// A run ends with the iteration in progress.
void Loop::cut_short(Instance& instance) {
    if (!instance.running_iterations.empty() && truncate(*instance.running_iterations[0], now_ps()))
        schedule_end(instance.running_iterations[0]);
}

void Loop::set_communication(std::int32_t instance, std::int64_t stage, std::int64_t number,
                             Communicated communicated) {
    auto& known = at(instance).communicated.at(static_cast<std::size_t>(stage));
    if (static_cast<std::size_t>(number) >= known.size()) known.resize(static_cast<std::size_t>(number) + 1);
    known[static_cast<std::size_t>(number)] = communicated;
}

void Loop::forget_communication(std::int32_t index) {
    for (auto& known : at(index).communicated) known.clear();
    cut_short(at(index));
}

TimePs Loop::work_of_server(std::int64_t server, TimePs work_ps) {
    ensure(frontend_ != nullptr, "servers belong to a frontend");
    pass_tokens(nullptr);
    return frontend_->take(server, now_ps(), work_ps);
}

void Loop::deliver(const RequestPtr& request) {
    if (!frontend_) return get_tokens(*request, now_ps(), now_ps(), *iterations.gaps());
    pass_tokens(nullptr);
    frontend_->deliver({request}, now_ps(), *iterations.gaps());
}

void Loop::complete(Request& request) {
    request.status = Status::kCompleted;
    request.completed_ps = std::max(now_ps(), request.last_token_ps.value_or(now_ps()));
    if (frontend_) {
        request.sampled_ps = now_ps();
        request.completed_ps = request.last_token_ps;
    }
    requests.add(request);
}

void Loop::give_up(Request& request, Status status, const std::string& reason) {
    request.status = status;
    request.status_reason = reason;
    requests.add(request);
}

}  // namespace serving
