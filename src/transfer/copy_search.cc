#include "transfer/copy_search.h"

namespace weft::core {

CopySearch::Searches::iterator CopySearch::End(Searches::iterator entry, NodeNumber holder,
                                               std::vector<SearchAction>& out) {
  const Search& search = entry->second;
  out.emplace_back(EndSearch{search.object, holder, {search.seekers.begin(), search.seekers.end()}, search.for_pull});
  return searches_.erase(entry);
}

void CopySearch::Handle(const CopySought& event, std::vector<SearchAction>& out) {
  auto [entry, added] = searches_.try_emplace(KeyOf(event.object));
  Search& search = entry->second;
  if (added) {
    search.object = event.object;
    search.awaited.insert(event.nodes.begin(), event.nodes.end());
    for (NodeNumber node : search.awaited) out.emplace_back(AskHolder{node, event.object});
  }
  if (event.process.value == 0) {
    search.for_pull = true;
  } else {
    search.seekers.emplace(event.process, event.request);
  }
  if (search.awaited.empty()) End(entry, {}, out);
}

void CopySearch::Handle(const HolderAnswered& event, std::vector<SearchAction>& out) {
  auto found = searches_.find(KeyOf(event.object));
  if (found == searches_.end() || !found->second.awaited.contains(event.node)) return;
  if (event.complete) {
    End(found, event.node, out);
  } else if (event.gone) {
    found->second.awaited.erase(event.node);
    if (found->second.awaited.empty()) End(found, {}, out);
  }
}

void CopySearch::Handle(const SeekerLeft& event, std::vector<SearchAction>& out) {
  for (auto entry = searches_.begin(); entry != searches_.end();) {
    Search& search = entry->second;
    const bool left = search.seekers.erase({event.process, event.request}) > 0;
    entry = left && search.seekers.empty() && !search.for_pull ? End(entry, {}, out) : std::next(entry);
  }
}

void CopySearch::Handle(const SeekerDied& event, std::vector<SearchAction>& out) {
  for (auto entry = searches_.begin(); entry != searches_.end();) {
    Search& search = entry->second;
    const bool left =
        std::erase_if(search.seekers, [&](const auto& seeker) { return seeker.first == event.process; }) > 0;
    entry = left && search.seekers.empty() && !search.for_pull ? End(entry, {}, out) : std::next(entry);
  }
}

void CopySearch::Handle(const AskedNodeLost& event, std::vector<SearchAction>& out) {
  for (auto entry = searches_.begin(); entry != searches_.end();) {
    const bool awaited = entry->second.awaited.erase(event.node) > 0;
    entry = awaited && entry->second.awaited.empty() ? End(entry, {}, out) : std::next(entry);
  }
}

void CopySearch::Handle(const SearchTimedOut& event, std::vector<SearchAction>& out) {
  auto found = searches_.find(KeyOf(event.object));
  if (found != searches_.end()) End(found, {}, out);
}

}  // namespace weft::core
