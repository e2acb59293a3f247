// See shim.h. The only file that includes Caffe2's headers; CMakeLists.txt compiles it with the old ABI.
#include "shim.h"

// The wheel was made with MKL, whose headers it lacks. They would only serve functions that are not called here.
#include <caffe2/core/macros.h>
#undef CAFFE2_USE_MKL

#include <caffe2/core/init.h>
#include <caffe2/core/tensor.h>
#include <caffe2/core/workspace.h>
#include <caffe2/utils/proto_utils.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

struct C2Workspace {
  caffe2::Workspace workspace;
};

namespace {

thread_local std::string error;

// No exception of the old ABI leaves this file.
template <class F>
int Guarded(F body) {
  try {
    body();
    return 0;
  } catch (const c10::Error& e) {
    error = e.what_without_backtrace();
  } catch (const std::exception& e) {
    error = e.what();
  } catch (...) {
    error = "Caffe2 threw something that is not an exception";
  }
  return -1;
}

void InitialiseOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    int argc = 1;
    char name[] = "caffe2", *arguments[] = {name, nullptr}, **argv = arguments;
    // It would say as an error that the wheel was compiled for older processors than this one.
    int level = std::exchange(FLAGS_caffe2_log_level, c10::GLOG_FATAL);
    bool initialised = caffe2::GlobalInit(&argc, &argv);
    FLAGS_caffe2_log_level = level;
    if (!initialised) throw std::runtime_error("Caffe2 could not be initialised");
  });
}

caffe2::TypeMeta TypeOf(C2Type type) {
  switch (type) {
    case C2_FLOAT:
      return caffe2::TypeMeta::Make<float>();
    case C2_DOUBLE:
      return caffe2::TypeMeta::Make<double>();
    case C2_INT32:
      return caffe2::TypeMeta::Make<int32_t>();
    case C2_INT64:
      return caffe2::TypeMeta::Make<int64_t>();
  }
  throw std::invalid_argument("a tensor cannot be fed with elements of type " + std::to_string(type) +
                              " of TensorProto");
}

C2Type TypeOf(const caffe2::TypeMeta& type, const std::string& blob) {
  for (C2Type known : {C2_FLOAT, C2_DOUBLE, C2_INT32, C2_INT64}) {
    if (TypeOf(known) == type) return known;
  }
  throw std::invalid_argument("blob '" + blob + "' has elements of type " + std::string(type.name()) +
                              "; only float, double, int and int64_t can be fetched");
}

caffe2::NetDef Parsed(const char* net, size_t size, C2Form form) {
  caffe2::NetDef parsed;
  std::string text(net, size);
  // Line, column and reason go to the standard error alone: protobuf's own parser, which could collect them as
  // examples/caffe/shim.cc does, is hidden in libtorch_cpu.so.
  if (form == C2_TEXT && !caffe2::TextFormat::ParseFromString(text, &parsed)) {
    throw std::invalid_argument(
        "the net is not a caffe2.NetDef in protobuf's text form; "
        "protobuf has written line, column and reason to the standard error");
  }
  if (form == C2_BYTES && !caffe2::ParseProtoFromLargeString(text, &parsed)) {
    throw std::invalid_argument("the net is not a caffe2.NetDef in protobuf's binary form");
  }
  return parsed;
}

}  // namespace

const char* c2_error(void) { return error.c_str(); }

C2Workspace* c2_new_workspace(void) {
  C2Workspace* made = nullptr;
  Guarded([&] {
    InitialiseOnce();
    made = new C2Workspace;
  });
  return made;
}

void c2_delete_workspace(C2Workspace* workspace) { delete workspace; }

int c2_feed(C2Workspace* workspace, const char* blob, const C2Tensor* tensor) {
  return Guarded([&] {
    auto type = TypeOf(tensor->type);
    at::IntArrayRef lengths(tensor->lengths, tensor->dimensions);
    auto* target = caffe2::BlobGetMutableTensor(workspace->workspace.CreateBlob(blob), lengths,
                                                at::TensorOptions(caffe2::CPU).dtype(type));
    std::memcpy(target->raw_mutable_data(type), tensor->data, target->nbytes());
  });
}

int c2_fetch(C2Workspace* workspace, const char* name, C2Tensor* tensor) {
  return Guarded([&] {
    const auto* blob = workspace->workspace.GetBlob(name);
    if (!blob) throw std::out_of_range("the workspace has no blob '" + std::string(name) + "'");
    if (!caffe2::BlobIsTensorType(*blob, caffe2::CPU)) {
      throw std::invalid_argument("blob '" + std::string(name) + "' is no tensor but " + std::string(blob->TypeName()));
    }
    const auto& found = blob->Get<caffe2::Tensor>();
    if (!found.dtype_initialized() || !found.storage_initialized()) {
      throw std::invalid_argument("nothing has been written to blob '" + std::string(name) + "' yet");
    }
    *tensor = {TypeOf(found.dtype(), name), found.raw_data(), found.sizes().data(), found.sizes().size()};
  });
}

int c2_create_net(C2Workspace* workspace, const char* net, size_t size, C2Form form) {
  return Guarded([&] {
    caffe2::NetDef parsed = Parsed(net, size, form);
    if (!workspace->workspace.CreateNet(parsed, true)) {
      throw std::runtime_error("Caffe2 could not create the net '" + parsed.name() + "'");
    }
  });
}

int c2_run_net(C2Workspace* workspace, const char* name) {
  return Guarded([&] {
    const auto& nets = workspace->workspace.Nets();
    if (std::find(nets.begin(), nets.end(), name) == nets.end()) {
      throw std::out_of_range("the workspace has no net '" + std::string(name) + "'");
    }
    if (!workspace->workspace.RunNet(name)) throw std::runtime_error("the net '" + std::string(name) + "' failed");
  });
}

int c2_run_net_once(C2Workspace* workspace, const char* net, size_t size, C2Form form) {
  return Guarded([&] {
    caffe2::NetDef parsed = Parsed(net, size, form);
    if (!workspace->workspace.RunNetOnce(parsed)) throw std::runtime_error("the net '" + parsed.name() + "' failed");
  });
}
