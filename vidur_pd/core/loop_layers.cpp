// Ends of iterations; those of iterations that wait for layers of KV loads, or for writes of evicted chunks.
#include <utility>

#include "loop.hpp"

namespace serving {

// Takes over the layer-wise loads of requests that begin with this iteration.
void Loop::await_layers(RunningIteration& iteration) {
    for (const BatchPtr& batch : iteration.batch->batches) {
        if (!batch) continue;
        for (const RequestPtr& request : batch->admitted) {
            if (request->arrivals) iteration.awaited.emplace_back(request, std::exchange(request->arrivals, nullptr));
        }
    }
}

void Loop::schedule_end(const RunningIterationPtr& iteration) {
    iteration->end_event = ++ends_;
    if (!iteration->awaited.empty()) {
        iteration->is_timed = true;
        if (iteration->waits_for_layers()) return;
        wait_for_layers(*iteration);
    }
    queue_.schedule(iteration->ends_ps.back(), Priority::kCompletion, Event::Kind::kEnd, iteration->instance,
                    iteration->end_event);
}

void Loop::end(const RunningIterationPtr& iteration) {
    if (!iteration->awaited.empty()) return schedule_end(iteration);
    ending_.push_back(iteration);
}

std::shared_ptr<LayerArrivals> Loop::await_write(std::int32_t index) {
    Instance& instance = at(index);
    if (!instance.plan || !instance.plan->batch || instance.stage_free_ps.size() > 1) return nullptr;
    return instance.plan->awaited.emplace_back(std::make_shared<LayerArrivals>());
}

void Loop::set_arrivals(std::int32_t index, LayerArrivals& arrivals, std::vector<TimePs> at_ps, TimePs recomputing_ps) {
    ensure(!at_ps.empty() && !arrivals.have_come(), "layers come once");
    arrivals.at_ps = std::move(at_ps);
    arrivals.recomputing_ps = recomputing_ps;
    if (recomputing_ps) arrivals.tokens = 0;
    for (const RunningIterationPtr& iteration : at(index).running_iterations) {
        if (!iteration->is_timed || iteration->awaited.empty() || iteration->waits_for_layers()) continue;
        schedule_end(iteration);
    }
}

}  // namespace serving
