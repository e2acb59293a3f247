// Caffe's nets and solvers for programs that use weft: feed, forward, backward, fetch, with arrays in shared memory.
//
// Used by tasks and actors in C++ (train.cc) and by the library for Python (tasks.cc). A net belongs to the process
// that made it and to one thread at a time: a task makes one, an actor keeps one. Failures are std::runtime_error with
// Caffe's reason; after one inside of Caffe the net or solver is not to be used any more.
#pragma once

#include <caffe_shim.h>
#include <weft/weft.h>

#include <algorithm>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

inline void CheckCaffe(bool ok) {
  if (!ok) throw std::runtime_error(cf_error());
}

// Caffe::set_mode(Caffe::GPU), as programs have it. This Caffe is compiled for CPUs.
class Caffe {
 public:
  enum Brew { CPU, GPU };
  static void set_mode(Brew mode) {
    if (mode == GPU) throw std::runtime_error("this Caffe computes on CPUs only: Caffe::set_mode(Caffe::CPU)");
  }
};

class Net {
 public:
  // A caffe.NetParameter, as protobuf's text or as its bytes.
  explicit Net(std::string_view net, CfPhase phase = CF_TEST, CfForm form = CF_TEXT)
      : Net(cf_new_net(net.data(), net.size(), form, phase)) {}

  // The elements where they lie, until the blob changes its shape.
  std::span<float> data(const std::string& blob) { return Elements(*Find(blob), false); }
  std::span<float> gradients(const std::string& blob) { return Elements(*Find(blob), true); }
  std::span<float> weights(const std::string& layer, int number) {
    return Elements(*FindWeights(layer, number), false);
  }
  std::vector<int> shape(const std::string& blob) { return Lengths(*Find(blob)); }

  // Copies the array into the blob, which takes its shape.
  template <class T>
  void feed(const std::string& blob, const weft::Array<T>& array) {
    Handle<CfBlob> found = Find(blob);
    std::vector<int> lengths(array.shape().begin(), array.shape().end());
    CheckCaffe(cf_set_shape(found.get(), lengths.data(), static_cast<int>(lengths.size())) == 0);
    std::copy_n(array.data(), array.size(), Elements(*found, false).data());
  }

  // A new array with the blob's elements and shape; a blob without dimensions is an array of one element.
  weft::Array<float> fetch(const std::string& blob) {
    Handle<CfBlob> found = Find(blob);
    weft::Array<float> array = Room(blob, Lengths(*found));
    std::copy_n(Elements(*found, false).data(), array.size(), array.data());
    return array;
  }

  // Computes all layers, and returns the sum of the losses.
  float forward() {
    float loss = 0;
    CheckCaffe(cf_forward(net_.get(), 0, cf_layer_count(net_.get()) - 1, &loss) == 0);
    return loss;
  }
  // Gradients of the weights are added up until clear_gradients.
  void backward() { CheckCaffe(cf_backward(net_.get(), cf_layer_count(net_.get()) - 1, 0) == 0); }
  void clear_gradients() { CheckCaffe(cf_clear_gradients(net_.get()) == 0); }
  void copy_from(const std::string& caffemodel) { CheckCaffe(cf_copy_from(net_.get(), caffemodel.c_str()) == 0); }
  void save(const std::string& caffemodel) { CheckCaffe(cf_save(net_.get(), caffemodel.c_str()) == 0); }

 private:
  friend class Solver;
  struct Delete {
    void operator()(CfNet* net) const { cf_delete_net(net); }
    void operator()(CfBlob* blob) const { cf_delete_blob(blob); }
  };
  template <class T>
  using Handle = std::unique_ptr<T, Delete>;

  explicit Net(CfNet* made) : net_(made) { CheckCaffe(made != nullptr); }

  Handle<CfBlob> Find(const std::string& blob) {
    for (int i = 0; i < cf_blob_count(net_.get()); ++i) {
      if (blob == cf_blob_name(net_.get(), i)) return Handle<CfBlob>(cf_blob(net_.get(), i));
    }
    throw std::out_of_range("the net has no blob '" + blob + "'");
  }
  Handle<CfBlob> FindWeights(const std::string& layer, int number) {
    for (int i = 0; i < cf_layer_count(net_.get()); ++i) {
      if (layer == cf_layer_name(net_.get(), i) && number >= 0 && number < cf_param_count(net_.get(), i)) {
        return Handle<CfBlob>(cf_param(net_.get(), i, number));
      }
    }
    throw std::out_of_range("the net has no weights " + std::to_string(number) + " of a layer '" + layer + "'");
  }
  static std::vector<int> Lengths(CfBlob& blob) {
    std::vector<int> lengths(static_cast<size_t>(cf_shape(&blob, nullptr, 0)));
    cf_shape(&blob, lengths.data(), static_cast<int>(lengths.size()));
    return lengths;
  }
  static std::span<float> Elements(CfBlob& blob, bool gradients) {
    size_t count = 1;
    for (int length : Lengths(blob)) count *= static_cast<size_t>(length);
    float* elements = nullptr;
    CfMemory* memory = cf_memory(&blob, gradients ? 1 : 0, &elements);
    CheckCaffe(memory != nullptr);
    cf_delete_memory(memory);  // the blob has it as well
    return {elements, count};
  }
  static weft::Array<float> Room(const std::string& blob, const std::vector<int>& lengths) {
    std::vector<size_t> shape(lengths.begin(), lengths.end());
    switch (shape.size()) {
      case 0:
        return weft::empty<float>(1);
      case 1:
        return weft::empty<float>(shape[0]);
      case 2:
        return weft::empty<float>({shape[0], shape[1]});
      case 3:
        return weft::empty<float>({shape[0], shape[1], shape[2]});
      case 4:
        return weft::empty<float>({shape[0], shape[1], shape[2], shape[3]});
    }
    throw std::invalid_argument("blob '" + blob + "' has " + std::to_string(shape.size()) +
                                " dimensions; 4 can be fetched");
  }

  Handle<CfNet> net_;
};

class Solver {
 public:
  // A caffe.SolverParameter, as protobuf's text or as its bytes.
  explicit Solver(std::string_view solver, CfForm form = CF_TEXT)
      : solver_(cf_new_solver(solver.data(), solver.size(), form), &cf_delete_solver),
        net_((CheckCaffe(solver_ != nullptr), cf_solver_net(solver_.get()))) {}

  Net& net() { return net_; }  // the one that is trained
  int iteration() const { return cf_iteration(solver_.get()); }
  void step(int steps) { CheckCaffe(cf_step(solver_.get(), steps) == 0); }
  void solve() { CheckCaffe(cf_solve(solver_.get(), nullptr) == 0); }
  void snapshot() { CheckCaffe(cf_snapshot(solver_.get()) == 0); }
  void restore(const std::string& solverstate) { CheckCaffe(cf_restore(solver_.get(), solverstate.c_str()) == 0); }

 private:
  std::unique_ptr<CfSolver, void (*)(CfSolver*)> solver_;
  Net net_;
};
