// A C interface to Caffe2, for programs whose C++ library has the new ABI.
//
// PyTorch's wheels of Caffe2's time are compiled with the old ABI of the C++ library, in which std::string is another
// type; weft and programs that use it have the new one. Both live in one process as long as only C passes between them:
// this header. workspace.h makes C++ of it again; nothing else includes it.
//
// Every function but c2_error may be called from any thread; a workspace is used by one thread at a time. Those that
// return an int return 0, or -1 if they failed: c2_error has the reason, until the next call in the same thread.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct C2Workspace C2Workspace;  // caffe2::Workspace

// The elements of a tensor. The numbers are those of Caffe2's TensorProto.DataType.
enum C2Type { C2_FLOAT = 1, C2_INT32 = 2, C2_INT64 = 10, C2_DOUBLE = 12 };

typedef struct C2Tensor {
  enum C2Type type;
  const void* data;  // rows first, without gaps
  const int64_t* lengths;
  size_t dimensions;
} C2Tensor;

const char* c2_error(void);

C2Workspace* c2_new_workspace(void);  // NULL if it failed
void c2_delete_workspace(C2Workspace* workspace);

// Copies the tensor into the blob, which is made if there is none of this name.
int c2_feed(C2Workspace* workspace, const char* blob, const C2Tensor* tensor);
// Shows the tensor of the blob where it lies; it stays there until the workspace is used again.
int c2_fetch(C2Workspace* workspace, const char* blob, C2Tensor* tensor);

// A net is a message caffe2.NetDef, as protobuf's text or as its bytes.
enum C2Form { C2_TEXT, C2_BYTES };
int c2_create_net(C2Workspace* workspace, const char* net, size_t size,
                  enum C2Form form);  // instead of one of its name
int c2_run_net(C2Workspace* workspace, const char* name);
int c2_run_net_once(C2Workspace* workspace, const char* net, size_t size, enum C2Form form);

#ifdef __cplusplus
}
#endif
