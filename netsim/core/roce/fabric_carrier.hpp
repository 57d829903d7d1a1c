// A fabric and its engine as a carrier for the executor.
#pragma once

#include <utility>

#include "roce/fabric.hpp"
#include "roce/packet_carrier.hpp"

namespace netsim::roce {

// Keeps what happens, where wanted, and hands every call on to another observer.
template <typename Inner>
class LoggingObserver : public Inner {
  public:
    using Inner::Inner;

    struct Log {
        bool is_kept = false;
        TimePs (*now_ps)(const void* engine) = nullptr;
        const void* engine = nullptr;
        std::vector<PauseEvent> pauses;
        std::vector<Acknowledgement> acknowledgements;
    };
    Log* log = nullptr;

    void on_pause(LinkId link, std::uint8_t priority, bool is_pause) {
        if (log->is_kept) log->pauses.push_back({log->now_ps(log->engine), link, priority, is_pause});
        Inner::on_pause(link, priority, is_pause);
    }
    void on_acknowledged(const QueuePair& qp) {
        if (log->is_kept) log->acknowledgements.push_back({qp.flow, log->now_ps(log->engine)});
        Inner::on_acknowledged(qp);
    }
};

// An engine for carriers also runs events: `run(until_ps, fabric)` up to the first instant with news, and tells the
// time of the next one.
template <EventEngine Engine, typename Observer = SilentObserver>
class FabricCarrier final : public PacketCarrier {
  public:
    template <typename... EngineArguments>
    FabricCarrier(const Network& network, Routing& routing, const Parameters& parameters, EngineArguments&&... engine)
        : network_(network),
          engine_(std::forward<EngineArguments>(engine)...),
          fabric_(network, routing, parameters, engine_) {
        log_.engine = &engine_;
        log_.now_ps = [](const void* of) { return static_cast<const Engine*>(of)->now_ps(); };
        fabric_.observer().log = &log_;
    }

    Ticket start(FlowRef flow, const Path& path, const Demand& demand, TimePs now_ps) override {
        catch_up(now_ps);
        return fabric_.open(flow, path, demand);
    }
    void stop(Ticket ticket, TimePs now_ps) override {
        catch_up(now_ps);
        fabric_.close(ticket);
    }
    TimePs run(TimePs until_ps, Progress& progress) override {
        TimePs reached = engine_.now_ps();
        if (interval_ps_ > 0 && next_sample_ps_ == kNever && fabric_.is_busy()) next_sample_ps_ = reached;
        while (!fabric_.has_news() && (reached < until_ps || engine_.next_ps() <= until_ps)) {
            reached = engine_.run(std::min(until_ps, next_sample_ps_), fabric_);
            if (!fabric_.is_busy()) {
                next_sample_ps_ = kNever;
            } else if (reached == next_sample_ps_) {
                take_sample(reached);
            }
        }
        report(progress);
        return reached;
    }
    void settle(TimePs) override {}
    TimePs next_event_ps() override {
        if (fabric_.has_news()) return engine_.now_ps();
        return fabric_.is_busy() ? engine_.next_ps() : kNever;
    }
    LinkTotals totals(TimePs) const override {
        LinkTotals totals;
        for (LinkId link = 0; link < network_.link_count(); ++link) {
            totals.carried_bytes.push_back(static_cast<double>(fabric_.counters(link).payload_bytes));
            totals.busy_ps.push_back(fabric_.busy_ps(link));
        }
        return totals;
    }

    LinkFigures figures() override {
        LinkFigures figures;
        for (LinkId link = 0; link < network_.link_count(); ++link) {
            const LinkCounters& counters = fabric_.counters(link);
            figures.packets.push_back(counters.packets);
            figures.wire_bytes.push_back(counters.wire_bytes);
            figures.payload_bytes.push_back(counters.payload_bytes);
            figures.busy_ps.push_back(fabric_.busy_ps(link));
            figures.paused_ps.push_back(fabric_.paused_ps(link));
            figures.pauses.push_back(counters.pauses);
            figures.marks.push_back(counters.marks);
            figures.drops.push_back(counters.drops);
            figures.queued_bytes.push_back(fabric_.queued_bytes(link));
        }
        return figures;
    }
    std::uint64_t packet_hops() const override { return fabric_.packet_hops(); }
    void sample_every(TimePs interval_ps) override {
        interval_ps_ = interval_ps;
        next_sample_ps_ = kNever;
    }
    const TimeSeries& time_series() const override { return series_; }
    void keep_log(bool is_kept) override { log_.is_kept = is_kept; }
    const std::vector<PauseEvent>& pauses() const override { return log_.pauses; }
    const std::vector<Acknowledgement>& acknowledgements() const override { return log_.acknowledgements; }
    void set_link_up(LinkId link, bool is_up, TimePs now_ps) override {
        catch_up(now_ps);
        fabric_.set_link_up(link, is_up);
    }
    void set_storm(LinkId link, std::uint8_t priority, bool is_storming, TimePs now_ps) override {
        catch_up(now_ps);
        fabric_.set_storm(link, priority, is_storming);
    }

  private:
    // Brings the engine's clock to the executor's; nothing that makes news can be due.
    void catch_up(TimePs now_ps) {
        if (engine_.now_ps() < now_ps) engine_.run(now_ps, fabric_);
    }
    void report(Progress& progress) {
        News& news = fabric_.news();
        progress.left.insert(progress.left.end(), news.left.begin(), news.left.end());
        for (const FlowRef flow : news.delivered) progress.delivered.push_back({flow, engine_.now_ps()});
        progress.failed.insert(progress.failed.end(), news.failed.begin(), news.failed.end());
        news.clear();
    }
    void take_sample(TimePs now_ps) {
        series_.at_ps.push_back(now_ps);
        for (LinkId link = 0; link < network_.link_count(); ++link) {
            const LinkCounters& counters = fabric_.counters(link);
            series_.wire_bytes.push_back(counters.wire_bytes);
            series_.queued_bytes.push_back(fabric_.queued_bytes(link));
            series_.paused_ps.push_back(fabric_.paused_ps(link));
            series_.pauses.push_back(counters.pauses);
            series_.marks.push_back(counters.marks);
        }
        next_sample_ps_ = later(now_ps, interval_ps_);
    }

    const Network& network_;
    Engine engine_;
    typename LoggingObserver<Observer>::Log log_;
    Fabric<Engine, LoggingObserver<Observer>> fabric_;
    TimePs interval_ps_ = 0, next_sample_ps_ = kNever;
    TimeSeries series_;
};

}  // namespace netsim::roce
