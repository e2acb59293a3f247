// The bytes that describe a C++ actor to its process and to its callers.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "weft/library.h"
#include "weft/value.h"

namespace weft::detail {

// For its process, beside its constructor (DefinedTemplate::actor_options): how many calls at once; the same for each
// concurrency group; its name; what callers know about it.
using ActorSettings = std::tuple<uint32_t, std::vector<std::pair<std::string, uint32_t>>, std::string, std::string>;
std::string PackActorSettings(const ActorSettings& settings);

// A method as other languages call it: name, number of results, and a letter for each parameter: r takes a reference, v
// a value.
using ActorMethod = std::tuple<std::string, uint32_t, std::string>;
ActorMethod DescribeMethod(const Export& method);

// For its callers, with every handle: its class as C++ writes it, max_pending_calls, max_task_retries,
// retry_exceptions; if other languages know the class, its name there and its methods, otherwise empty. So a program
// that only calls the actor does not need the library.
using ActorInfoFields = std::tuple<std::string, int32_t, int32_t, bool, std::string, std::vector<ActorMethod>>;
std::string PackActorInfo(const ActorInfoFields& content);

// The same of a Python class that C++ names: module, name, max_pending_calls, max_task_retries, retry_exceptions; and
// class, calls at once (0: the class decides), groups, name, namespace.
using ImportedActorInfo = std::tuple<std::string, std::string, int32_t, int32_t, bool>;
using ImportedActorSettings =
    std::tuple<std::string, uint32_t, std::vector<std::pair<std::string, uint32_t>>, std::string, std::string>;

}  // namespace weft::detail
