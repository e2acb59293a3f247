// Caffe2's workspace for programs that use weft: feed, run, fetch, with arrays in shared memory.
//
// Used by tasks and actors in C++ (train.cc) and by the library for Python (tasks.cc). A workspace belongs to the
// process that made it and to one thread at a time: a task makes one, an actor keeps one. Tensors are copied into it,
// since operators may write to their inputs, and fetched straight into weft's store. Failures are std::runtime_error
// with Caffe2's reason.
#pragma once

#include <weft/weft.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "shim.h"

class Workspace {
 public:
  Workspace() : workspace_(c2_new_workspace(), &c2_delete_workspace) { Check(workspace_ ? 0 : -1); }

  template <class T>
  void feed(const std::string& blob, std::span<const T> values, const std::vector<size_t>& shape) {
    std::vector<int64_t> lengths(shape.begin(), shape.end());
    size_t count = 1;
    for (size_t length : shape) count *= length;
    if (count != values.size()) {
      throw std::invalid_argument("blob '" + blob + "': the shape has " + std::to_string(count) +
                                  " elements, the array " + std::to_string(values.size()));
    }
    C2Tensor tensor{TypeOf<T>(), values.data(), lengths.data(), lengths.size()};
    Check(c2_feed(workspace_.get(), blob.c_str(), &tensor));
  }
  template <class T>
  void feed(const std::string& blob, const weft::Array<T>& array) {
    using Element = std::remove_const_t<T>;
    feed<Element>(blob, std::span<const Element>(array.data(), array.size()),
                  std::vector<size_t>(array.shape().begin(), array.shape().end()));
  }

  // A new array with the blob's elements and shape; a tensor without dimensions is an array of one element.
  template <class T>
  weft::Array<T> fetch(const std::string& blob) {
    C2Tensor tensor;
    Check(c2_fetch(workspace_.get(), blob.c_str(), &tensor));
    if (tensor.type != TypeOf<T>()) {
      throw std::invalid_argument("blob '" + blob + "' has elements of another type than was asked for");
    }
    weft::Array<T> array = Room<T>(blob, {tensor.lengths, tensor.lengths + tensor.dimensions});
    std::copy_n(static_cast<const T*>(tensor.data), array.size(), array.data());
    return array;
  }

  void create_net(std::string_view net, C2Form form = C2_TEXT) {
    Check(c2_create_net(workspace_.get(), net.data(), net.size(), form));
  }
  void run_net(const std::string& name) { Check(c2_run_net(workspace_.get(), name.c_str())); }
  void run_net_once(std::string_view net, C2Form form = C2_TEXT) {
    Check(c2_run_net_once(workspace_.get(), net.data(), net.size(), form));
  }

 private:
  static void Check(int code) {
    if (code != 0) throw std::runtime_error(c2_error());
  }
  template <class T>
  static constexpr C2Type TypeOf() {
    if constexpr (std::is_same_v<T, float>) return C2_FLOAT;
    if constexpr (std::is_same_v<T, double>) return C2_DOUBLE;
    if constexpr (std::is_same_v<T, int32_t>) return C2_INT32;
    if constexpr (std::is_same_v<T, int64_t>) return C2_INT64;
  }
  template <class T>
  static weft::Array<T> Room(const std::string& blob, const std::vector<size_t>& shape) {
    switch (shape.size()) {
      case 0:
        return weft::empty<T>(1);
      case 1:
        return weft::empty<T>(shape[0]);
      case 2:
        return weft::empty<T>({shape[0], shape[1]});
      case 3:
        return weft::empty<T>({shape[0], shape[1], shape[2]});
      case 4:
        return weft::empty<T>({shape[0], shape[1], shape[2], shape[3]});
    }
    throw std::invalid_argument("blob '" + blob + "' has " + std::to_string(shape.size()) +
                                " dimensions; 4 can be fetched");
  }

  std::unique_ptr<C2Workspace, void (*)(C2Workspace*)> workspace_;
};
