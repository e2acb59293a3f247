// See caffe_shim.h. The only file that includes Caffe's headers; install.py compiles it with the old ABI.
#include "caffe_shim.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <atomic>
#include <caffe/caffe.hpp>
#include <caffe/layers/data_layer.hpp>
#include <caffe/layers/image_data_layer.hpp>
#include <caffe/layers/window_data_layer.hpp>
#include <caffe/util/db.hpp>
#include <caffe/util/upgrade_proto.hpp>
#include <csetjmp>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

using boost::shared_ptr;

struct CfNet {
  shared_ptr<caffe::Net<float> > net;
};
struct CfSolver {
  shared_ptr<caffe::Solver<float> > solver;
};
struct CfBlob {
  shared_ptr<caffe::Blob<float> > blob;
};
struct CfMemory {
  shared_ptr<caffe::SyncedMemory> memory;
};

namespace {

thread_local std::string error;
thread_local std::jmp_buf* way_out = nullptr;  // of the call into Caffe that this thread is in

// Keeps what Caffe says last before it gives up.
class LastWords : public google::LogSink {
 public:
  void send(google::LogSeverity severity, const char*, const char* file, int line, const struct ::tm*,
            const char* message, size_t size) override {
    if (severity < google::GLOG_FATAL) return;
    error.assign(message, size);
    error += " (" + std::string(file) + ":" + std::to_string(line) + ")";
  }
};

// glog calls this instead of abort(), with no lock held. An exception could not pass its destructors.
void Leave() {
  if (way_out) std::longjmp(*way_out, 1);
  std::abort();
}

// Runs the body, and turns exceptions and failed checks into -1, with the reason in `error`.
template <class F>
int Caught(F body) {
  std::jmp_buf here;
  std::jmp_buf* const outer = way_out;
  if (setjmp(here) != 0) {
    way_out = outer;
    return -1;
  }
  way_out = &here;
  int code = -1;
  try {
    body();
    code = 0;
  } catch (const std::exception& e) {
    error = e.what();
  }
  way_out = outer;
  return code;
}

// A layer that reads ahead in a thread of its own, where a failed check would end the process: here the batch fails,
// and the thread that wants it is told why.
template <class Layer>
class ReadsAhead : public Layer {
 public:
  explicit ReadsAhead(const caffe::LayerParameter& param) : Layer(param) {}
  ~ReadsAhead() override { this->StopInternalThread(); }  // before load_batch is the base's again

 protected:
  void load_batch(caffe::Batch<float>* batch) override {
    if (!failed_ && Caught([&] { Layer::load_batch(batch); }) != 0) {
      reason_ = error;
      failed_ = true;  // after reason_: pairs with Forward_cpu
    }
  }
  void Forward_cpu(const std::vector<caffe::Blob<float>*>& bottom,
                   const std::vector<caffe::Blob<float>*>& top) override {
    // Batches that were read before the failure are lost with it.
    if (!failed_) Layer::Forward_cpu(bottom, top);
    if (failed_) throw std::runtime_error("layer '" + this->layer_param_.name() + "' cannot read its data: " + reason_);
  }

 private:
  std::string reason_;
  std::atomic<bool> failed_{false};
};

template <class Layer>
shared_ptr<caffe::Layer<float> > Made(const caffe::LayerParameter& param) {
  return shared_ptr<caffe::Layer<float> >(new ReadsAhead<Layer>(param));
}

void InitialiseOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (!std::getenv("GLOG_minloglevel")) FLAGS_minloglevel = google::GLOG_ERROR;  // Caffe prints each layer otherwise
    FLAGS_logtostderr = true;                                                      // instead of files
    google::InitGoogleLogging("caffe");
    google::InstallFailureFunction(reinterpret_cast<void (*)()>(&Leave));
    google::AddLogSink(new LastWords);
    google::protobuf::SetLogHandler(nullptr);  // what it would print is in the errors of Parsed
    auto& registry = caffe::LayerRegistry<float>::Registry();
    registry["Data"] = &Made<caffe::DataLayer<float> >;
    registry["ImageData"] = &Made<caffe::ImageDataLayer<float> >;
    registry["WindowData"] = &Made<caffe::WindowDataLayer<float> >;
  });
}

// No exception of the old ABI leaves this file, and no failed check ends the process.
template <class F>
int Guarded(F body) {
  InitialiseOnce();
  return Caught(body);
}

class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (text.empty()) {
      text = "line " + std::to_string(line + 1) + ", column " + std::to_string(column + 1) + ": " + message;
    }
  }
  std::string text;
};

template <class Message>
Message Parsed(const char* data, size_t size, CfForm form) {
  Message message;
  const std::string name = message.GetTypeName();
  if (form == CF_TEXT) {
    google::protobuf::TextFormat::Parser parser;
    FirstError first;
    parser.RecordErrorsTo(&first);
    if (!parser.ParseFromString(std::string(data, size), &message)) {
      throw std::invalid_argument("not a " + name + " in protobuf's text form: " + first.text);
    }
  } else if (!message.ParseFromArray(data, static_cast<int>(size))) {
    throw std::invalid_argument("not a " + name + " in protobuf's binary form");
  }
  return message;
}

template <class Message>
Message ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("there is no file '" + path + "', or it cannot be read");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  try {
    return Parsed<Message>(text.data(), text.size(), CF_TEXT);
  } catch (const std::exception& e) {
    throw std::invalid_argument(path + " is " + e.what());
  }
}

void Upgrade(caffe::NetParameter* net) {
  if (!caffe::UpgradeNetAsNeeded("the net", net)) throw std::invalid_argument("the old net cannot be upgraded");
}

// Caffe would read the first record of an empty database, and more bytes than a record has.
void CheckDatabase(const caffe::LayerParameter& layer) {
  const std::string& path = layer.data_param().source();
  const std::string where = "layer '" + layer.name() + "' reads '" + path + "', ";
  std::unique_ptr<caffe::db::DB> database(caffe::db::GetDB(layer.data_param().backend()));
  if (Caught([&] { database->Open(path, caffe::db::READ); }) != 0) {
    database.release();  // left half open
    throw std::runtime_error(where + "which cannot be opened: " + error);
  }
  std::unique_ptr<caffe::db::Cursor> cursor(database->NewCursor());
  if (!cursor->valid()) throw std::runtime_error(where + "which is empty");
  caffe::Datum datum;
  if (!datum.ParseFromString(cursor->value())) throw std::runtime_error(where + "whose records are not Datums");
  long count = long{datum.channels()} * datum.height() * datum.width();
  long found = datum.data().empty() ? datum.float_data_size() : static_cast<long>(datum.data().size());
  if (!datum.encoded() && (count <= 0 || count != found)) {
    throw std::runtime_error(where + "whose first record has " + std::to_string(found) +
                             " elements where its shape has " + std::to_string(count));
  }
}

// What Caffe does not check itself, or without a name in the message.
void CheckNet(caffe::NetParameter net, caffe::Phase phase) {
  Upgrade(&net);
  net.mutable_state()->set_phase(phase);
  caffe::NetParameter used;
  caffe::Net<float>::FilterNet(net, &used);
  for (const auto& layer : used.layer()) {
    std::vector<std::string> paths;
    if (layer.has_transform_param() && layer.transform_param().has_mean_file()) {
      paths.push_back(layer.transform_param().mean_file());
    }
    if (layer.type() == "Data") {
      bool lmdb = layer.data_param().backend() == caffe::DataParameter::LMDB;
      paths.push_back(layer.data_param().source() + (lmdb ? "/data.mdb" : ""));
    }
    if (layer.type() == "ImageData") paths.push_back(layer.image_data_param().source());
    if (layer.type() == "WindowData") paths.push_back(layer.window_data_param().source());
    if (layer.type() == "HDF5Data") paths.push_back(layer.hdf5_data_param().source());
    for (const auto& path : paths) {
      if (!std::ifstream(path)) {
        throw std::runtime_error("layer '" + layer.name() + "' reads '" + path + "', which is not there");
      }
    }
    if (layer.type() == "Data") CheckDatabase(layer);
    if (layer.convolution_param().group() == 0) {
      throw std::invalid_argument("layer '" + layer.name() + "' has 0 groups");  // it would divide by them
    }
  }
}

// The solver with its nets inside instead of their paths.
void ReadNets(caffe::SolverParameter* solver) {
  if (solver->has_net()) {
    *solver->mutable_net_param() = ReadText<caffe::NetParameter>(solver->net());
    solver->clear_net();
  }
  if (solver->has_train_net()) {
    *solver->mutable_train_net_param() = ReadText<caffe::NetParameter>(solver->train_net());
    solver->clear_train_net();
  }
  for (const auto& path : solver->test_net()) *solver->add_test_net_param() = ReadText<caffe::NetParameter>(path);
  solver->clear_test_net();
}

std::string Joined(const std::vector<std::string>& names) {
  std::string all;
  for (const auto& name : names) all += (all.empty() ? "" : " ") + name;
  return all;
}

int Written(const std::vector<int>& numbers, int* out, int room) {
  for (int i = 0; i < room && i < static_cast<int>(numbers.size()); ++i) out[i] = numbers[i];
  return static_cast<int>(numbers.size());
}

// Caffe's own check of a layer's number comes after it was used.
void CheckLayers(const caffe::Net<float>& net, int first, int last) {
  int count = static_cast<int>(net.layers().size());
  if (first < 0 || first >= count || last < 0 || last >= count) {
    throw std::out_of_range("layers " + std::to_string(first) + " to " + std::to_string(last) + " of a net that has " +
                            std::to_string(count));
  }
}

}  // namespace

const char* cf_error(void) { return error.c_str(); }

const char* cf_layer_types(void) {
  static const std::string all = Joined(caffe::LayerRegistry<float>::LayerTypeList());
  return all.c_str();
}

const char* cf_solver_types(void) {
  static const std::string all = Joined(caffe::SolverRegistry<float>::SolverTypeList());
  return all.c_str();
}

int cf_set_random_seed(uint32_t seed) {
  return Guarded([&] { caffe::Caffe::set_random_seed(seed); });
}

CfNet* cf_new_net(const char* text, size_t size, CfForm form, CfPhase phase) {
  CfNet* made = nullptr;
  Guarded([&] {
    auto param = Parsed<caffe::NetParameter>(text, size, form);
    Upgrade(&param);
    CheckNet(param, phase == CF_TRAIN ? caffe::TRAIN : caffe::TEST);
    param.mutable_state()->set_phase(phase == CF_TRAIN ? caffe::TRAIN : caffe::TEST);
    made = new CfNet{shared_ptr<caffe::Net<float> >(new caffe::Net<float>(param))};
  });
  return made;
}

void cf_delete_net(CfNet* net) {
  Guarded([&] { delete net; });
}

int cf_forward(CfNet* net, int first, int last, float* loss) {
  return Guarded([&] {
    CheckLayers(*net->net, first, last);
    *loss = net->net->ForwardFromTo(first, last);
  });
}

int cf_backward(CfNet* net, int first, int last) {
  return Guarded([&] {
    CheckLayers(*net->net, first, last);
    net->net->BackwardFromTo(first, last);
  });
}

int cf_clear_gradients(CfNet* net) {
  return Guarded([&] { net->net->ClearParamDiffs(); });
}

int cf_reshape(CfNet* net) {
  return Guarded([&] { net->net->Reshape(); });
}

int cf_copy_from(CfNet* net, const char* path) {
  return Guarded([&] { net->net->CopyTrainedLayersFrom(path); });
}

int cf_save(CfNet* net, const char* path) {
  return Guarded([&] {
    caffe::NetParameter param;
    net->net->ToProto(&param, false);
    caffe::WriteProtoToBinaryFile(param, path);
  });
}

int cf_share_with(CfNet* net, CfNet* other) {
  return Guarded([&] { net->net->ShareTrainedLayersWith(other->net.get()); });
}

int cf_layer_count(CfNet* net) { return static_cast<int>(net->net->layers().size()); }
const char* cf_layer_name(CfNet* net, int layer) { return net->net->layer_names()[layer].c_str(); }
const char* cf_layer_type(CfNet* net, int layer) { return net->net->layers()[layer]->type(); }
int cf_blob_count(CfNet* net) { return static_cast<int>(net->net->blobs().size()); }
const char* cf_blob_name(CfNet* net, int blob) { return net->net->blob_names()[blob].c_str(); }

int cf_ends(CfNet* net, CfSide side, int* blobs, int room) {
  return Written(side == CF_INPUTS ? net->net->input_blob_indices() : net->net->output_blob_indices(), blobs, room);
}

int cf_layer_ends(CfNet* net, int layer, CfSide side, int* blobs, int room) {
  return Written(side == CF_INPUTS ? net->net->bottom_ids(layer) : net->net->top_ids(layer), blobs, room);
}

int cf_param_count(CfNet* net, int layer) { return static_cast<int>(net->net->layers()[layer]->blobs().size()); }

CfBlob* cf_blob(CfNet* net, int blob) { return new CfBlob{net->net->blobs()[blob]}; }
CfBlob* cf_param(CfNet* net, int layer, int param) { return new CfBlob{net->net->layers()[layer]->blobs()[param]}; }
void cf_delete_blob(CfBlob* blob) { delete blob; }

int cf_shape(CfBlob* blob, int* lengths, int room) { return Written(blob->blob->shape(), lengths, room); }

int cf_set_shape(CfBlob* blob, const int* lengths, int dimensions) {
  return Guarded([&] { blob->blob->Reshape(std::vector<int>(lengths, lengths + dimensions)); });
}

CfMemory* cf_memory(CfBlob* blob, int gradients, float** elements) {
  CfMemory* held = nullptr;
  Guarded([&] {
    *elements = gradients ? blob->blob->mutable_cpu_diff() : blob->blob->mutable_cpu_data();
    held = new CfMemory{gradients ? blob->blob->diff() : blob->blob->data()};
  });
  return held;
}

void cf_delete_memory(CfMemory* memory) { delete memory; }

CfSolver* cf_new_solver(const char* text, size_t size, CfForm form) {
  CfSolver* made = nullptr;
  Guarded([&] {
    auto param = Parsed<caffe::SolverParameter>(text, size, form);
    if (!caffe::UpgradeSolverAsNeeded("the solver", &param)) {
      throw std::invalid_argument("the old solver cannot be upgraded");
    }
    if (param.solver_mode() == caffe::SolverParameter::GPU && param.has_solver_mode()) {
      throw std::invalid_argument("solver_mode is GPU, but this Caffe computes on CPUs only");
    }
    param.set_solver_mode(caffe::SolverParameter::CPU);
    if (param.lr_policy() == "step" && param.stepsize() <= 0) {
      throw std::invalid_argument("lr_policy is \"step\", but there is no stepsize");  // it would divide by it
    }
    ReadNets(&param);
    for (const auto* net : {&param.net_param(), &param.train_net_param()}) CheckNet(*net, caffe::TRAIN);
    for (const auto& net : param.test_net_param()) CheckNet(net, caffe::TEST);
    if (param.test_iter_size() > param.test_net_param_size()) CheckNet(param.net_param(), caffe::TEST);
    made = new CfSolver{shared_ptr<caffe::Solver<float> >(caffe::SolverRegistry<float>::CreateSolver(param))};
  });
  return made;
}

void cf_delete_solver(CfSolver* solver) {
  Guarded([&] { delete solver; });
}

int cf_step(CfSolver* solver, int steps) {
  return Guarded([&] { solver->solver->Step(steps); });
}

int cf_solve(CfSolver* solver, const char* state) {
  return Guarded([&] { solver->solver->Solve(state); });
}

int cf_iteration(CfSolver* solver) { return solver->solver->iter(); }

int cf_snapshot(CfSolver* solver) {
  return Guarded([&] { solver->solver->Snapshot(); });
}

int cf_restore(CfSolver* solver, const char* state) {
  return Guarded([&] { solver->solver->Restore(state); });
}

CfNet* cf_solver_net(CfSolver* solver) { return new CfNet{solver->solver->net()}; }
int cf_test_net_count(CfSolver* solver) { return static_cast<int>(solver->solver->test_nets().size()); }
CfNet* cf_test_net(CfSolver* solver, int index) { return new CfNet{solver->solver->test_nets()[index]}; }
