#include "candidates.hpp"

#include <algorithm>

namespace serving {

namespace {

// A data-parallel front end of vLLM counts a waiting request as four running ones
// (vllm/v1/engine/core_client.py, get_core_engine_for_request).
constexpr std::int64_t kWaitingWeight = 4;

}  // namespace

Candidates::Candidates(std::vector<std::vector<std::shared_ptr<RankState>>> candidates, Measure measure)
    : candidates_(std::move(candidates)),
      measure_(measure),
      changes_(std::make_shared<ChangeList>(candidates_.size())),
      loads_(candidates_.size()) {
    while (width_ <= candidates_.size()) width_ *= 2;
    open_.assign(2 * width_, 0);
    best_.assign(2 * width_, kNobody);
    for (std::size_t place = 0; place < candidates_.size(); ++place) {
        open_[width_ + place] = 1;
        best_[width_ + place] = static_cast<std::int32_t>(place);
        if (measure_ == Measure::kNone) continue;
        for (const auto& rank : candidates_[place]) rank->watch(changes_, static_cast<std::uint32_t>(place));
        loads_[place] = read(place);
    }
    for (std::size_t knot = width_; knot-- > 1;) {
        open_[knot] = open_[2 * knot] + open_[2 * knot + 1];
        best_[knot] = better(best_[2 * knot], best_[2 * knot + 1]);
    }
}

void Candidates::set_open(Place place, bool is_open) {
    const std::size_t leaf = width_ + static_cast<std::size_t>(place);
    open_[leaf] = is_open;
    best_[leaf] = is_open ? static_cast<std::int32_t>(place) : kNobody;
    update(leaf);
}

std::int64_t Candidates::open(const Spans& spans) const {
    std::int64_t open = 0;
    for (const auto& [first, last] : spans) open += open_before(last) - open_before(first);
    return open;
}

std::optional<Candidates::Place> Candidates::nth(const Spans& spans, std::int64_t number) const {
    for (const auto& [first, last] : spans) {
        const std::int64_t before = open_before(first), inside = open_before(last) - before;
        if (number >= inside) {
            number -= inside;
            continue;
        }
        number += before;
        std::size_t knot = 1;
        while (knot < width_) {
            knot *= 2;
            if (number >= open_[knot]) number -= open_[knot++];
        }
        return static_cast<Place>(knot - width_);
    }
    return std::nullopt;
}

std::optional<Candidates::Place> Candidates::next(const Spans& spans, Place from) const {
    Spans behind;
    for (const auto& [first, last] : spans) {
        if (last > from) behind.emplace_back(std::max(first, from), last);
    }
    const auto found = nth(behind, 0);
    return found ? found : nth(spans, 0);
}

std::optional<Candidates::Place> Candidates::least(const Spans& spans) {
    refresh();
    std::int32_t best = kNobody;
    for (const auto& [first, last] : spans) {
        std::size_t low = width_ + static_cast<std::size_t>(first), high = width_ + static_cast<std::size_t>(last);
        for (; low < high; low /= 2, high /= 2) {
            if (low % 2) best = better(best, best_[low++]);
            if (high % 2) best = better(best, best_[--high]);
        }
    }
    return best == kNobody ? std::nullopt : std::optional<Place>(best);
}

Load Candidates::read(std::size_t place) {
    ++loads_read_;
    Load load;
    for (const auto& rank : candidates_[place]) {
        load.requests += kWaitingWeight * rank->waiting_requests() + rank->running_requests();
        if (measure_ == Measure::kTokens) load.tokens += rank->load_tokens();
    }
    return load;
}

void Candidates::refresh() {
    for (const std::uint32_t place : changes_->take()) {
        const Load load = read(place);
        if (load == loads_[place]) continue;
        loads_[place] = load;
        update(width_ + place);
    }
}

// What stands above a leaf.
void Candidates::update(std::size_t leaf) {
    for (std::size_t knot = leaf / 2; knot > 0; knot /= 2) {
        open_[knot] = open_[2 * knot] + open_[2 * knot + 1];
        best_[knot] = better(best_[2 * knot], best_[2 * knot + 1]);
    }
}

std::int32_t Candidates::better(std::int32_t a, std::int32_t b) const {
    if (a == kNobody || b == kNobody) return std::max(a, b);
    const Load &of_a = loads_[static_cast<std::size_t>(a)], &of_b = loads_[static_cast<std::size_t>(b)];
    if (of_a == of_b) return std::min(a, b);
    return of_a < of_b ? a : b;
}

std::int64_t Candidates::open_before(Place place) const {
    std::int64_t open = 0;
    for (std::size_t knot = width_ + static_cast<std::size_t>(place); knot > 1; knot /= 2) {
        if (knot % 2) open += open_[knot - 1];
    }
    return open;
}

}  // namespace serving
