// Actors: an object that lives in a worker of its own and keeps its state between calls.
//
// Any class will do. The calls that one caller makes run one at a time, in the order in which they were made. Two
// actors work side by side.
#include <unistd.h>
#include <weft/weft.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

using namespace std::chrono_literals;

class Account {
 public:
  Account(std::string owner, int balance) : owner_(std::move(owner)), balance_(balance) {}

  int deposit(int amount) { return balance_ += amount; }
  int withdraw(int amount) {
    if (amount > balance_) throw std::invalid_argument(owner_ + " has " + std::to_string(balance_) + " only");
    return balance_ -= amount;
  }
  weft::Returns<int, Interval> audit() const {  // two results, each with a Ref of its own
    Clock::time_point begin = Clock::now();
    std::this_thread::sleep_for(200ms);
    return {getpid(), Interval{begin, Clock::now()}};
  }

 private:
  std::string owner_;
  int balance_;
};

int main() {
  auto session = weft::init({.num_cpus = 2});

  weft::Actor<Account> ada = weft::actor<Account>("Ada", 0);
  weft::Actor<Account> ben = weft::actor<Account>("Ben", 50);
  std::vector<weft::Ref<int>> deposits;
  for (int i = 0; i < 5; ++i) deposits.push_back(ada.call<&Account::deposit>(10));
  check(weft::get(deposits) == std::vector<int>{10, 20, 30, 40, 50});
  check(weft::get(ben.call<&Account::withdraw>(20)) == 30);

  // A call that throws leaves the actor as it was.
  try {
    weft::get(ben.call<&Account::withdraw>(1000));
    check(false);
  } catch (const weft::TaskError& error) {
    check(error.is<std::invalid_argument>() && error.message() == "Ben has 30 only");
  }
  check(weft::get(ben.call<&Account::deposit>(0)) == 30);

  // Each has its own process, and they work at the same time.
  auto [ada_pid, ada_time] = ada.call<&Account::audit>();
  auto [ben_pid, ben_time] = ben.call<&Account::audit>();
  check(weft::get(ada_pid) != weft::get(ben_pid));
  check(weft::get(ada_time).overlaps(weft::get(ben_time)));
  std::puts("ok: two accounts kept their balances in two processes and were audited at the same time");
}
