// Tasks: a function that runs in another process, several at a time.
//
// remote<f>(...) starts a task and returns a Ref at once; get waits for the value. Here four sensors are read. Each
// read waits for its device, so four of them should overlap.
#include <weft/weft.h>

#include <cstdio>
#include <thread>
#include <vector>

#include "check.h"

using namespace std::chrono_literals;

struct Reading {  // a plain struct needs nothing to be passed or returned
  int sensor = 0;
  double celsius = 0;
  Interval when;
};

Reading read_sensor(int number) {
  Clock::time_point begin = Clock::now();
  std::this_thread::sleep_for(300ms);  // the device takes its time
  return {number, 20.0 + number, {begin, Clock::now()}};
}

int broken_sensor() { throw std::out_of_range("no such device"); }

int main() {
  auto session = weft::init({.num_cpus = 4});

  std::vector<weft::Ref<Reading>> refs;
  for (int number = 0; number < 4; ++number) refs.push_back(weft::remote<read_sensor>(number));
  check(!refs[3].ready());  // asked, not yet answered

  std::vector<Reading> readings = weft::get(refs);  // in the order of the references
  for (int number = 0; number < 4; ++number) check(readings[number].celsius == 20 + number);

  // All four were at it at the same time.
  for (const Reading& one : readings) {
    for (const Reading& other : readings) check(one.when.overlaps(other.when));
  }

  // An exception in a task is thrown where its value is asked for.
  try {
    weft::get(weft::remote<broken_sensor>());
    check(false);
  } catch (const weft::TaskError& error) {
    check(error.is<std::out_of_range>());
    check(error.message() == "no such device");
  }
  std::puts("ok: four reads of 300 ms overlapped, and the fifth failed with the exception it threw");
}
