// What the C++ programs of the benchmark share, weft's and Ray's alike: requests come as lines on stdin, each answered
// by one line of JSON, so that a session lives as long as its program and every system is asked the same way. C++17,
// and nothing of either system.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

namespace bench {

using Clock = std::chrono::steady_clock;

inline double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A wrong result has no speed.
inline void Check(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "wrong result: %s\n", what);
  std::exit(1);
}

// The median duration of `body`: run at least once, and again until `seconds` have passed.
template <class Body>
double MedianSeconds(double seconds, Body body) {
  std::vector<double> durations;
  auto begin = Clock::now();
  do {
    auto round = Clock::now();
    body();
    durations.push_back(SecondsSince(round));
  } while (SecondsSince(begin) < seconds);
  auto middle = durations.begin() + static_cast<long>(durations.size() / 2);
  std::nth_element(durations.begin(), middle, durations.end());
  return *middle;
}

// The mean duration of `operation`, which takes its number; timed in blocks so that the clock costs nothing.
template <class Operation>
double MeanSeconds(double seconds, Operation operation) {
  constexpr int kBlock = 20;
  int done = 0;
  auto begin = Clock::now();
  do {
    for (int i = 0; i < kBlock; ++i) operation(done++);
  } while (SecondsSince(begin) < seconds);
  return SecondsSince(begin) / done;
}

// Calls answer(workload, size, seconds), which returns a number, for every line "WORKLOAD SIZE SECONDS" until the end.
template <class Answer>
void Serve(Answer answer) {
  std::string workload;
  long size;
  double seconds;
  while (std::cin >> workload >> size >> seconds) {
    std::printf("{\"value\": %.12g}\n", answer(workload, size, seconds));
    std::fflush(stdout);
  }
}

[[noreturn]] inline void RefuseWorkload(const std::string& workload) {
  std::fprintf(stderr, "no workload %s\n", workload.c_str());
  std::exit(2);
}

}  // namespace bench
