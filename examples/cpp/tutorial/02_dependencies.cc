// Dependencies: a Ref given to a task as an argument arrives as its value.
//
// So a program writes a pipeline by passing on what the last step returned. Nothing is fetched in between: the texts
// below go from worker to worker, and only the counts come back. The three pipelines run side by side, the steps of
// each one after the other.
#include <weft/weft.h>

#include <cctype>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "check.h"

using Counts = std::map<std::string, int>;

const std::map<std::string, std::string> kBooks = {
    {"sea", "The sea is blue. The sea is deep."},
    {"wood", "The wood is green, the wood is dark."},
    {"town", "A town is a town is a town."},
};

std::string load(const std::string& title) { return kBooks.at(title); }

std::vector<std::string> split(const std::string& text) {  // sees a string, whether it was given one or a Ref to one
  std::vector<std::string> words(1);
  for (char c : text) {
    if (std::isalpha(static_cast<unsigned char>(c))) {
      words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

Counts count(const std::vector<std::string>& words) {
  Counts counts;
  for (const std::string& word : words) ++counts[word];
  return counts;
}

// References inside a container stay references: the task decides when to look at which.
Counts merge(const std::vector<weft::Ref<Counts>>& all) {
  Counts sum;
  for (const Counts& counts : weft::get(all)) {
    for (const auto& [word, number] : counts) sum[word] += number;
  }
  return sum;
}

// So does one that the parameter asks for.
bool is_there(weft::Ref<std::string> ref) { return !weft::get(ref).empty(); }

int main() {
  auto session = weft::init({.num_cpus = 3});

  std::vector<weft::Ref<Counts>> counts;
  for (const auto& [title, text] : kBooks) {
    counts.push_back(weft::remote<count>(weft::remote<split>(weft::remote<load>(title))));
  }
  Counts total = weft::get(weft::remote<merge>(counts));  // the only get
  check(total["is"] == 6 && total["town"] == 3 && total["sea"] == 2);

  // Plain values are fine as well.
  check(weft::get(weft::remote<count>(std::vector<std::string>{"a", "b", "a"})) == Counts{{"a", 2}, {"b", 1}});
  check(weft::get(weft::remote<is_there>(weft::remote<load>("sea"))));

  // What depends on a failure fails with it.
  auto lost = weft::try_get(weft::remote<split>(weft::remote<load>("desert")));
  check(!lost && lost.error_name() == "TaskError");
  std::printf("ok: 9 steps and a merge were one expression each, and \"is\" was counted %d times\n", total["is"]);
}
