// A fabric and its engine as a carrier for the executor.
#pragma once

#include <optional>
#include <utility>

#include "roce/fabric.hpp"
#include "roce/link_sampler.hpp"
#include "roce/logging_observer.hpp"
#include "roce/packet_carrier.hpp"
#include "roce/steady_state.hpp"

namespace netsim::roce {

// An engine for carriers also runs events: `run(until_ps, fabric)` up to the first instant with news, and tells the
// time of the next one.
//
// The fabric has a clock of its own. Where skipping is allowed and a SteadyState sees that everything goes on as it is,
// that clock stands still while the executor's runs on, and the flows are moved on by what they would have received.
// A skip is decided on by the state of the fabric alone and is broken off when something comes from outside.
template <EventEngine Engine, typename Observer = SilentObserver>
class FabricCarrier : public PacketCarrier {
  public:
    template <typename... EngineArguments>
    FabricCarrier(const Network& network, Routing& routing, const Parameters& parameters, Observer observer,
                  EngineArguments&&... engine)
        : engine_(std::forward<EngineArguments>(engine)...),
          fabric_(network, routing, parameters, engine_, {std::move(observer), log_}) {
        log_.engine = &engine_;
        log_.now_ps = [](const void* of) { return static_cast<const Engine*>(of)->now_ps(); };
        skipped_.resize(fabric_.link_count());
        if (parameters.skip_tolerance > 0) steady_.emplace(fabric_, parameters.skip_tolerance);
    }

    void check(const Path& path) const override { fabric_.check(path); }
    Ticket start(FlowRef flow, const Path& path, const Demand& demand, TimePs now_ps) override {
        catch_up(now_ps);
        return fabric_.open(flow, path, demand);
    }
    void stop(Ticket ticket, TimePs now_ps) override {
        catch_up(now_ps);
        fabric_.close(ticket);
    }

    std::int64_t sent_bytes(Ticket ticket, TimePs now_ps) override {
        catch_up(now_ps);
        return fabric_.queue_pairs()[ticket].received_bytes();
    }

    TimePs run(TimePs until_ps, Progress& progress) override {
        if (!fabric_.is_busy() && !fabric_.has_news()) {
            if (sampler_.next_ps() <= until_ps) {
                catch_up(sampler_.next_ps());
                take_sample();
            }
            catch_up(until_ps);
            return until_ps;
        }
        sampler_.wake(now_ps_);
        if (log_window_end_ps() <= now_ps_) log_window();
        while (!fabric_.has_news()) {
            if (!skipping_) pass_quiet_windows(until_ps);
            const TimePs own_until_ps = std::min(sampler_.next_ps(), log_window_end_ps());
            if (skipping_) {
                now_ps_ = std::min({until_ps, skipping_->end_ps, own_until_ps});
                if (now_ps_ == skipping_->end_ps) end_skip();
            } else {
                const TimePs own = next_own_ps();
                if (now_ps_ >= until_ps && engine_.next_ps() > until_ps - offset_ps()) break;
                now_ps_ = offset_ps() + engine_.run(std::min({until_ps, own_until_ps, own}) - offset_ps(), fabric_);
                if (now_ps_ == next_look_ps_ && !fabric_.has_news()) look();
            }
            if (now_ps_ == sampler_.next_ps()) take_sample();
            if (now_ps_ == log_window_end_ps()) log_window();
            if (skipping_ && now_ps_ == until_ps) break;
        }
        report(progress);
        return now_ps_;
    }
    void settle(TimePs) override {}
    TimePs next_event_ps() override {
        if (fabric_.has_news()) return now_ps_;
        if (skipping_) return skipping_->end_ps;
        const TimePs next = fabric_.is_busy() ? engine_.next_ps() : kNever;
        return next == kNever ? kNever : next + offset_ps();
    }

    LinkTotals totals(std::span<const LinkId> links, TimePs) const override {
        LinkTotals totals;
        for (const LinkId link : links) {
            const LinkCounters counters = counters_of(link);
            totals.carried_bytes.push_back(static_cast<double>(counters.all_payload_bytes()));
            totals.busy_ps.push_back(counters.busy_ps);
        }
        return totals;
    }

    void log_links(std::shared_ptr<LinkLog> log, TimePs now_ps) override {
        catch_up(now_ps);
        link_log_ = std::move(log);
        logged_ps_ = now_ps;
        logged_bytes_.clear();
        for (LinkId link = 0; link < fabric_.link_count(); ++link) logged_bytes_.push_back(payload_bytes(link));
    }
    void update_link_log(TimePs) override {
        if (link_log_) log_window();
    }

    LinkFigures figures() override {
        LinkFigures figures;
        for (LinkId link = 0; link < fabric_.link_count(); ++link) {
            const LinkCounters counters = counters_of(link);
            figures.packets.push_back(counters.packets);
            figures.wire_bytes.push_back(counters.wire_bytes);
            figures.payload_bytes.push_back(counters.all_payload_bytes());
            figures.busy_ps.push_back(counters.busy_ps);
            figures.paused_ps.push_back(counters.paused_ps);
            figures.pauses.push_back(counters.pauses);
            figures.marks.push_back(counters.marks);
            figures.drops.push_back(counters.drops);
            figures.queued_bytes.push_back(fabric_.queued_bytes(link));
        }
        return figures;
    }
    std::vector<std::int64_t> largest_queues_bytes() const override {
        std::vector<std::int64_t> bytes;
        for (LinkId link = 0; link < fabric_.link_count(); ++link) {
            bytes.push_back(fabric_.counters(link).largest_queue_bytes);
        }
        return bytes;
    }
    std::uint64_t packet_hops() const override { return fabric_.packet_hops(); }
    TimePs skipped_ps() const override { return offset_ps() + (skipping_ ? now_ps_ - skipping_->begin_ps : 0); }
    LookEffort look_effort() const override { return steady_ ? steady_->effort() : LookEffort{}; }
    void sample_every(TimePs interval_ps) override {
        if (interval_ps > 0) take_sample();
        sampler_.sample_every(interval_ps);
    }
    const TimeSeries& time_series() const override { return sampler_.series(); }
    void keep_log(bool is_kept) override { log_.is_kept = is_kept; }
    const std::vector<PauseEvent>& pauses() const override { return log_.pauses; }
    const std::vector<Acknowledgement>& acknowledgements() const override { return log_.acknowledgements; }
    void set_link_up(LinkId link, bool is_up, TimePs now_ps) override {
        catch_up(now_ps);
        fabric_.set_link_up(link, is_up);
    }
    void set_capacity_share(LinkId link, double share, TimePs now_ps) override {
        catch_up(now_ps);
        fabric_.set_capacity_share(link, share);
    }
    void set_storm(LinkId link, std::uint8_t priority, bool is_storming, TimePs now_ps) override {
        catch_up(now_ps);
        fabric_.set_storm(link, priority, is_storming);
    }

  protected:
    const Fabric<Engine, LoggingObserver<Observer>>& fabric() const { return fabric_; }

  private:
    struct Skipping {
        Skip skip;
        TimePs begin_ps, end_ps;
    };

    TimePs offset_ps() const { return log_.offset_ps; }

    // Brings the clock to the executor's; nothing that makes news can be due.
    void catch_up(TimePs now_ps) {
        now_ps_ = now_ps;
        if (skipping_) end_skip();
        if (engine_.now_ps() + offset_ps() < now_ps) engine_.run(now_ps - offset_ps(), fabric_);
    }
    void report(Progress& progress) {
        News& news = fabric_.news();
        progress.left.insert(progress.left.end(), news.left.begin(), news.left.end());
        for (const FlowRef flow : news.delivered) progress.delivered.push_back({flow, now_ps_});
        progress.failed.insert(progress.failed.end(), news.failed.begin(), news.failed.end());
        news.clear();
    }

    // The next instant at which this carrier wants to act; never where it does not skip.
    TimePs next_own_ps() {
        if (!steady_ || !fabric_.is_busy()) return kNever;
        next_look_ps_ = steady_->next_look_ps(engine_.now_ps()) + offset_ps();
        return next_look_ps_;
    }
    void look() {
        std::optional<Skip> skip = steady_->look(engine_.now_ps());
        if (!skip) return;
        const TimePs end_ps = later(now_ps_, skip->longest_ps);
        skipping_ = Skipping{std::move(*skip), now_ps_, end_ps};
    }
    void end_skip() {
        const Skip& skip = skipping_->skip;
        const TimePs length_ps = now_ps_ - skipping_->begin_ps;
        std::vector<std::int64_t> packets;
        for (const std::int64_t bytes : skip.flow_bytes) {
            const std::int64_t unit_time = fabric_.unit_bytes() * skip.window_ps;
            packets.push_back(static_cast<std::int64_t>((Work{bytes} * length_ps + unit_time / 2) / unit_time));
        }
        for (LinkId link = 0; link < fabric_.link_count(); ++link) {
            const auto payload_bytes = skipped_[link].payload_bytes;
            skipped_[link].add(skip.link_change[link], share_of(skip, length_ps));
            skipped_[link].payload_bytes = payload_bytes;
        }
        for (std::size_t i = 0; i < packets.size(); ++i) {
            if (packets[i] == 0) continue;
            const QueuePair& qp = fabric_.queue_pairs()[i];
            for (const LinkId link : qp.forward->links) {
                skipped_[link].payload_bytes[qp.traffic] += packets[i] * fabric_.unit_bytes();
            }
        }
        fabric_.move_on(packets);
        log_.offset_ps += length_ps;
        skipping_.reset();
        steady_->forget();
    }
    static double share_of(const Skip& skip, TimePs length_ps) {
        return static_cast<double>(length_ps) / static_cast<double>(skip.window_ps);
    }

    LinkCounters counters_of(LinkId link) const {
        LinkCounters counters = fabric_.counters(link);
        counters.busy_ps = fabric_.busy_ps(link);
        counters.paused_ps = fabric_.paused_ps(link);
        counters.add(skipped_[link], 1);
        if (skipping_) {
            counters.add(skipping_->skip.link_change[link], share_of(skipping_->skip, now_ps_ - skipping_->begin_ps));
        }
        return counters;
    }
    // Up to now, by traffic.
    std::array<std::int64_t, kTrafficKinds> payload_bytes(LinkId link) const {
        LinkCounters counters;
        for (Traffic traffic = 0; traffic < kTrafficKinds; ++traffic) {
            counters.payload_bytes[traffic] = fabric_.payload_bytes(link, traffic);
        }
        counters.add(skipped_[link], 1);
        if (skipping_) {
            counters.add(skipping_->skip.link_change[link], share_of(skipping_->skip, now_ps_ - skipping_->begin_ps));
        }
        return counters.payload_bytes;
    }
    // Nothing is carried beyond it unlogged: `run` stops there while something is under way.
    TimePs log_window_end_ps() const {
        return link_log_ && fabric_.is_busy() ? link_log_->burst_end_ps(logged_ps_) : kNever;
    }
    // Where nothing happens any more, as under a storm of pauses, windows are not looked at one by one.
    void pass_quiet_windows(TimePs until_ps) {
        if (engine_.next_ps() != kNever || log_window_end_ps() >= until_ps) return;
        log_window();
        logged_ps_ = until_ps;
    }
    void log_window() {
        for (LinkId link = 0; link < fabric_.link_count(); ++link) {
            const auto bytes = payload_bytes(link);
            for (Traffic traffic = 0; traffic < kTrafficKinds; ++traffic) {
                const std::int64_t more = bytes[traffic] - logged_bytes_[link][traffic];
                if (more != 0) link_log_->add(traffic, link, static_cast<double>(more), logged_ps_);
            }
            logged_bytes_[link] = bytes;
        }
        logged_ps_ = now_ps_;
    }
    void take_sample() {
        sampler_.begin(now_ps_, fabric_.is_busy());
        for (LinkId link = 0; link < fabric_.link_count(); ++link) {
            sampler_.add(counters_of(link), fabric_.queued_bytes(link));
        }
    }

    Engine engine_;
    EventLog log_;
    Fabric<Engine, LoggingObserver<Observer>> fabric_;
    TimePs now_ps_ = 0;  // the executor's; the engine's is behind by what was skipped
    TimePs next_look_ps_ = kNever;
    LinkSampler sampler_;
    std::optional<SteadyState<Fabric<Engine, LoggingObserver<Observer>>>> steady_;
    std::optional<Skipping> skipping_;
    std::vector<LinkCounters> skipped_;  // [link]
    std::shared_ptr<LinkLog> link_log_;  // none: links are not logged
    TimePs logged_ps_ = 0;
    std::vector<std::array<std::int64_t, kTrafficKinds>> logged_bytes_;  // [link] by then, by traffic
};

}  // namespace netsim::roce
