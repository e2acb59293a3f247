// Sharing data: an array in shared memory is written once and looked at by every process where it lies.
//
// A vector passed as it is gets copied for every call. weft::empty gives room in the store; when it was filled, put
// makes it an object without a copy, and tasks that take a std::span<const T> or a weft::Array<const T> see the same
// bytes, read-only because others look at them too.
#include <weft/weft.h>

#include <cstdio>
#include <numeric>
#include <span>
#include <vector>

#include "check.h"

double column_sum(weft::Array<const double> table, int column) {
  double sum = 0;
  for (size_t row = 0; row < table.shape(0); ++row) sum += table(row, column);
  return sum;
}

double total(std::span<const double> values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// Returned without a copy as well.
weft::Array<double> doubled(std::span<const double> values) {
  auto result = weft::empty<double>(values.size());
  for (size_t i = 0; i < values.size(); ++i) result[i] = 2 * values[i];
  return result;
}

int main() {
  auto session = weft::init({.num_cpus = 4});
  auto seconds_since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };

  constexpr size_t kRows = 500'000;
  weft::Array<double> table = weft::empty<double>({kRows, 4});  // 16 MB
  std::iota(table.begin(), table.end(), 0.0);
  weft::Ref<weft::Array<double>> ref = weft::put(std::move(table));
  check(table.empty());  // it was handed over

  Clock::time_point begin = Clock::now();
  weft::Array<const double> view = weft::get(ref), again = weft::get(ref);
  double seconds = seconds_since(begin);
  check(view.data() == again.data());  // the same memory, not two copies
  check(view(2, 3) == 11);
  check(seconds < 0.01);  // generous: it takes microseconds, whatever the size

  std::vector<weft::Ref<double>> sums;
  for (int i = 0; i < 20; ++i) sums.push_back(weft::remote<column_sum>(ref, i % 4));
  double rows = kRows;
  for (int i = 0; i < 20; ++i) check(weft::get(sums[i]) == rows * (i % 4) + 4 * rows * (rows - 1) / 2);

  // Rows of numbers convert: an array arrives as a span, a vector as well.
  check(weft::get(weft::remote<total>(ref)) == 4 * rows * (4 * rows - 1) / 2);
  check(weft::get(weft::remote<total>(std::vector<double>{1, 2, 3})) == 6);

  // From task to task, and the driver looks at it in place. The view keeps it, without any Ref.
  weft::Array<const double> twice = weft::get(weft::remote<doubled>(ref));
  check(twice[4 * kRows - 1] == 2 * view[4 * kRows - 1]);
  std::printf("ok: 16 MB were read by 21 tasks where they lie; two gets here took %.0f us\n", 1e6 * seconds);
}
