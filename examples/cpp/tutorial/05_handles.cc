// Handles: every holder of an actor's handle can call it: a task, another actor or the driver.
//
// Three workers report their progress to one board, and the driver looks at the board while they work.
#include <weft/weft.h>

#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

using namespace std::chrono_literals;

using Reports = std::map<std::string, std::vector<int>>;

class Board {
 public:
  void report(const std::string& worker, int step) { reports_[worker].push_back(step); }
  Reports snapshot() const { return reports_; }

 private:
  Reports reports_;
};

std::string work(std::string name, weft::Actor<Board> board, int steps) {
  weft::Ref<void> last;
  for (int step = 0; step < steps; ++step) {
    std::this_thread::sleep_for(15ms);
    // Not waited for: the calls of one caller arrive in the order in which they were made.
    last = board.call<&Board::report>(name, step);
  }
  weft::get(last);
  return name;
}

class Foreman {  // an actor that keeps the handle of another one, and passes it on
 public:
  explicit Foreman(weft::Actor<Board> board) : board_(std::move(board)) {}

  std::vector<std::string> hire(const std::vector<std::string>& names, int steps) const {
    std::vector<weft::Ref<std::string>> hired;
    for (const std::string& name : names) hired.push_back(weft::remote<work>(name, board_, steps));
    return weft::get(hired);
  }

 private:
  weft::Actor<Board> board_;
};

int main() {
  auto session = weft::init({.num_cpus = 4});

  auto board = weft::actor<Board>();
  auto foreman = weft::actor<Foreman>(board);
  std::vector<std::string> names = {"lea", "max", "tom"};
  weft::Ref<std::vector<std::string>> hired = foreman.call<&Foreman::hire>(names, 10);

  size_t seen = 0, looks = 0;
  while (!weft::try_get(hired, 20ms)) {
    size_t size = 0;
    for (const auto& [name, steps] : weft::get(board.call<&Board::snapshot>())) size += steps.size();
    check(size >= seen);  // a board only grows
    seen = size;
    ++looks;
  }
  check(weft::get(hired) == names);
  Reports reports = weft::get(board.call<&Board::snapshot>());
  check(reports.size() == 3);
  for (const auto& [name, steps] : reports) check(steps == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  std::printf("ok: three tasks wrote to one board in order, seen %zu times by the driver meanwhile\n", looks);
}
