// Attributes and trace sources of the ns-3 objects, by the paths of ns3::Config.
#pragma once

#include <deque>
#include <netsim/types.hpp>
#include <string>
#include <utility>
#include <vector>

namespace netsim {

// Of every object that the path matches, the attribute at its end: full path and value as text. Throws MisuseError for
// a path that names no attribute of any object.
std::vector<std::pair<std::string, std::string>> read_attributes(const std::string& path);

struct TraceRow {
    TimePs at_ps;
    const std::string* path;            // in the log
    std::vector<std::uint32_t> values;  // bytes of a frame; a priority; graph and flow
};

// What trace sources have said, in order.
class TraceLog {
  public:
    TraceLog() = default;
    TraceLog(const TraceLog&) = delete;
    TraceLog& operator=(const TraceLog&) = delete;

    // Listens to a trace source of every object that the path matches, as long as the objects live. Throws MisuseError
    // for a path that names none, or one whose values are of another kind.
    void connect(const std::string& path);
    const std::vector<TraceRow>& rows() const { return rows_; }

  private:
    struct Source {
        TraceLog* log;
        std::string path;
        void add(std::vector<std::uint32_t> values);
    };
    template <typename... Values>
    static void note(Source* source, Values... values);

    std::deque<Source> sources_;
    std::vector<TraceRow> rows_;
};

}  // namespace netsim
