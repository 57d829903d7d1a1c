#include "trace_log.hpp"

#include <ns3/config.h>
#include <ns3/packet.h>
#include <ns3/simulator.h>
#include <ns3/string.h>
#include <ns3/trace-source-accessor.h>

#include <string_view>

namespace netsim {

namespace {

struct Named {
    ns3::Config::MatchContainer objects;
    std::string last;  // an attribute or trace source of theirs
};

[[noreturn]] void refuse(const std::string& path, const std::string& expected) {
    throw MisuseError("ns3: found path " + path + ", expected " + expected);
}

// ns-3 ends the process when a path names a type that does not exist.
void check_types(const std::string& path) {
    for (std::size_t at = path.find("/$"); at != std::string::npos; at = path.find("/$", at + 1)) {
        const std::string type = path.substr(at + 2, path.find('/', at + 1) - at - 2);
        ns3::TypeId id;
        if (!ns3::TypeId::LookupByNameFailSafe(type, &id)) refuse(path, "types that exist, unlike " + type);
    }
}

Named look_up(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    if (path.empty() || path.front() != '/' || slash == 0 || slash + 1 == path.size()) {
        refuse(path, "/NodeList/… or /ChannelList/… and a name");
    }
    check_types(path);
    Named named{ns3::Config::LookupMatches(path.substr(0, slash)), path.substr(slash + 1)};
    if (named.objects.GetN() == 0) refuse(path, "one that matches an object");
    return named;
}

std::string path_of(const Named& named, std::size_t i) {
    const std::string object = named.objects.GetMatchedPath(static_cast<std::uint32_t>(i));
    return object + (object.ends_with('/') ? "" : "/") + named.last;
}

std::uint32_t number_of(const ns3::Ptr<const ns3::Packet>& frame) { return frame->GetSize(); }
std::uint32_t number_of(std::uint32_t number) { return number; }

}  // namespace

std::vector<std::pair<std::string, std::string>> read_attributes(const std::string& path) {
    const Named named = look_up(path);
    std::vector<std::pair<std::string, std::string>> values;
    for (std::size_t i = 0; i < named.objects.GetN(); ++i) {
        ns3::StringValue value;
        if (!named.objects.Get(i)->GetAttributeFailSafe(named.last, value)) {
            refuse(path, "an attribute that can be read");
        }
        values.emplace_back(path_of(named, i), value.Get());
    }
    return values;
}

void TraceLog::connect(const std::string& path) {
    const Named named = look_up(path);
    for (std::size_t i = 0; i < named.objects.GetN(); ++i) {
        const ns3::Ptr<ns3::Object> object = named.objects.Get(i);
        ns3::TypeId::TraceSourceInformation information;
        if (object->GetInstanceTypeId().LookupTraceSourceByName(named.last, &information) == nullptr) {
            refuse(path, "a trace source");
        }
        Source* source = &sources_.emplace_back(Source{this, path_of(named, i)});
        const std::string_view signature = information.callback;
        if (signature == "ns3::Packet::TracedCallback") {
            object->TraceConnectWithoutContext(
                named.last, ns3::MakeBoundCallback(&TraceLog::note<ns3::Ptr<const ns3::Packet>>, source));
        } else if (signature == "netsim::RoceNetDevice::PriorityTrace") {
            object->TraceConnectWithoutContext(named.last,
                                               ns3::MakeBoundCallback(&TraceLog::note<std::uint8_t>, source));
        } else if (signature == "netsim::RoceNode::FlowTrace") {
            object->TraceConnectWithoutContext(
                named.last, ns3::MakeBoundCallback(&TraceLog::note<std::uint32_t, std::uint32_t>, source));
        } else {
            refuse(path, "a trace source of the model, not one with values of type " + information.callback);
        }
    }
}

void TraceLog::Source::add(std::vector<std::uint32_t> values) {
    log->rows_.push_back({ns3::Simulator::Now().GetTimeStep(), &path, std::move(values)});
}

template <typename... Values>
void TraceLog::note(Source* source, Values... values) {
    source->add({number_of(values)...});
}

}  // namespace netsim
