// Caffe2 as a library of tasks for Python: weft.cpp.library("libcaffe2_tasks.so").
//
// It serves any Python that weft supports: Caffe2's own Python package needs CPython 3.9. Nets are caffe2.NetDef in
// protobuf's text form; arrays are of float.
#include <weft/library.h>
#include <weft/weft.h>

#include <string>

#include "workspace.h"

namespace {

// What the net makes of one array: its blob `output`, if its blob `input` has the array.
weft::Array<float> run_net_once(const std::string& net, const std::string& input, weft::Array<const float> array,
                                const std::string& output) {
  Workspace workspace;
  workspace.feed(input, array);
  workspace.run_net_once(net);
  return workspace.fetch<float>(output);
}

class WorkspaceActor {
 public:
  void feed(const std::string& blob, weft::Array<const float> array) { workspace_.feed(blob, array); }
  weft::Array<float> fetch(const std::string& blob) { return workspace_.fetch<float>(blob); }
  void create_net(const std::string& net) { workspace_.create_net(net); }
  void run_net(const std::string& name) { workspace_.run_net(name); }

 private:
  Workspace workspace_;
};

const weft::Library tasks =
    weft::Library("Caffe2's nets.")
        .function<run_net_once>("run_net_once")
        .actor<WorkspaceActor>("Workspace",
                               weft::methods<&WorkspaceActor::feed, &WorkspaceActor::fetch, &WorkspaceActor::create_net,
                                             &WorkspaceActor::run_net>("feed", "fetch", "create_net", "run_net"));

}  // namespace
