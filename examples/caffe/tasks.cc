// Caffe as a library of tasks for Python: weft.cpp.library("libcaffe_tasks.so").
//
// Nets and solvers are messages in protobuf's text form, as in prototxt files; arrays are of float.
#include <weft/library.h>
#include <weft/weft.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "net.h"

namespace {

// What the net makes of one array: its blob `output`, if its blob `input` has the array. Weights come from a
// caffemodel, unless its path is empty.
weft::Array<float> forward(const std::string& net, const std::string& caffemodel, const std::string& input,
                           weft::Array<const float> array, const std::string& output) {
  Net made(net);
  if (!caffemodel.empty()) made.copy_from(caffemodel);
  made.feed(input, array);
  made.forward();
  return made.fetch(output);
}

class SolverActor {
 public:
  void create(const std::string& solver) { solver_ = std::make_unique<Solver>(solver); }
  void feed(const std::string& blob, weft::Array<const float> array) { made().net().feed(blob, array); }
  weft::Array<float> fetch(const std::string& blob) { return made().net().fetch(blob); }
  int step(int steps) {
    made().step(steps);
    return made().iteration();
  }
  void save(const std::string& caffemodel) { made().net().save(caffemodel); }

 private:
  Solver& made() {
    if (!solver_) throw std::logic_error("there is no solver yet: call create first");
    return *solver_;
  }
  std::unique_ptr<Solver> solver_;
};

const weft::Library tasks =
    weft::Library("Caffe's nets and solvers.")
        .function<forward>("forward")
        .actor<SolverActor>(
            "Solver", weft::methods<&SolverActor::create, &SolverActor::feed, &SolverActor::fetch, &SolverActor::step,
                                    &SolverActor::save>("create", "feed", "fetch", "step", "save"));

}  // namespace
