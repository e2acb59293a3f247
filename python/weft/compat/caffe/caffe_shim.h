// A C interface to Caffe, for programs whose C++ library has the new ABI, and for Python by ctypes.
//
// The libraries that install.py fetches are compiled with the old ABI of the C++ library, in which std::string is
// another type; weft and programs that use it have the new one. Both live in one process as long as only C passes
// between them: this header. examples/caffe/net.h makes C++ of it again, weft.compat.caffe Python.
//
// Functions that return an int return 0, or -1 if they failed; those that return a pointer return NULL then. cf_error
// has the reason, until the next call in the same thread. A net or a solver is used by one thread at a time.
//
// Caffe ends the process when one of its checks fails. Here such a check leaves the call instead, by longjmp, and
// becomes an error: what the call had allocated is leaked, and the net that it was working on is not to be used any
// more. So do the checks in Caffe's own threads, which read ahead for Data, ImageData and WindowData layers: the call
// that wants the data fails.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CfNet CfNet;        // caffe::Net<float>; shared with the solver if it comes from one
typedef struct CfSolver CfSolver;  // caffe::Solver<float>
typedef struct CfBlob CfBlob;      // caffe::Blob<float>
typedef struct CfMemory CfMemory;  // the elements of a blob, or their gradients; outlives the blob

enum CfForm { CF_TEXT, CF_BYTES };   // of a protobuf message
enum CfPhase { CF_TRAIN, CF_TEST };  // the numbers are those of Caffe's enum Phase

const char* cf_error(void);
const char* cf_layer_types(void);  // all that this Caffe has, separated by spaces
const char* cf_solver_types(void);
int cf_set_random_seed(uint32_t seed);

// A net is a message caffe.NetParameter.
CfNet* cf_new_net(const char* net, size_t size, enum CfForm form, enum CfPhase phase);
void cf_delete_net(CfNet* net);
// Layers first to last, both included.
int cf_forward(CfNet* net, int first, int last, float* loss);
int cf_backward(CfNet* net, int first, int last);
int cf_clear_gradients(CfNet* net);
int cf_reshape(CfNet* net);
// Weights of layers with the same names, from a .caffemodel or an HDF5 file.
int cf_copy_from(CfNet* net, const char* path);
int cf_save(CfNet* net, const char* path);
int cf_share_with(CfNet* net, CfNet* other);

int cf_layer_count(CfNet* net);
const char* cf_layer_name(CfNet* net, int layer);
const char* cf_layer_type(CfNet* net, int layer);
int cf_blob_count(CfNet* net);
const char* cf_blob_name(CfNet* net, int blob);
// Numbers of blobs: what goes into the net and what comes out, or into and out of a layer. Returns how many there are;
// writes at most `room` of them.
enum CfSide { CF_INPUTS, CF_OUTPUTS };
int cf_ends(CfNet* net, enum CfSide side, int* blobs, int room);
int cf_layer_ends(CfNet* net, int layer, enum CfSide side, int* blobs, int room);
int cf_param_count(CfNet* net, int layer);

CfBlob* cf_blob(CfNet* net, int blob);
CfBlob* cf_param(CfNet* net, int layer, int param);
void cf_delete_blob(CfBlob* blob);
// Returns the number of dimensions; writes at most `room` lengths.
int cf_shape(CfBlob* blob, int* lengths, int room);
int cf_set_shape(CfBlob* blob, const int* lengths, int dimensions);
CfMemory* cf_memory(CfBlob* blob, int gradients, float** elements);
void cf_delete_memory(CfMemory* memory);

// A solver is a message caffe.SolverParameter.
CfSolver* cf_new_solver(const char* solver, size_t size, enum CfForm form);
void cf_delete_solver(CfSolver* solver);
int cf_step(CfSolver* solver, int steps);
int cf_solve(CfSolver* solver, const char* state);  // from the start if `state` is NULL
int cf_iteration(CfSolver* solver);
int cf_snapshot(CfSolver* solver);
int cf_restore(CfSolver* solver, const char* state);
CfNet* cf_solver_net(CfSolver* solver);
int cf_test_net_count(CfSolver* solver);
CfNet* cf_test_net(CfSolver* solver, int index);

#ifdef __cplusplus
}
#endif
