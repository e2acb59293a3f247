// A library of tasks for the Python rows that call C++: arrays there and back, and where in shared memory they lie.
#include <weft/library.h>
#include <weft/weft.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>

namespace {

// The file and the place in it behind an address. Processes map shared memory where they like; this is the same for
// all.
std::pair<uint64_t, uint64_t> PlaceOf(const void* data) {
  const auto address = reinterpret_cast<uint64_t>(data);
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps(std::fopen("/proc/self/maps", "re"), std::fclose);
  if (!maps) throw std::runtime_error("/proc/self/maps cannot be read");
  char line[4096];
  while (std::fgets(line, sizeof line, maps.get())) {
    uint64_t begin, end, offset, inode;
    if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %*s %" SCNu64, &begin, &end, &offset, &inode) == 4 &&
        address >= begin && address < end) {
      return {inode, offset + (address - begin)};
    }
  }
  throw std::runtime_error("the address lies in no mapping");
}

std::pair<uint64_t, uint64_t> place(std::span<const double> values) { return PlaceOf(values.data()); }

// An array as long as the given one, whose first and last elements say that both were seen.
weft::Array<double> answer(std::span<const double> values) {
  auto result = weft::empty<double>(values.size());
  result[0] = values[0] + 1;
  result[result.size() - 1] = values[values.size() - 1] + 1;
  return result;
}

// The same, with the place where it was made in its second and third elements.
weft::Array<double> placed_answer(std::span<const double> values) {
  auto result = answer(values);
  auto [file, offset] = PlaceOf(result.data());
  result[1] = static_cast<double>(file);
  result[2] = static_cast<double>(offset);
  return result;
}

const weft::Library library = weft::Library("Tasks for the benchmarks.")
                                  .function<place>("place")
                                  .function<answer>("answer")
                                  .function<placed_answer>("placed_answer");

}  // namespace
