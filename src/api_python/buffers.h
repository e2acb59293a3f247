// Python objects that own memory of the object store: a read-only view of a stored object, and room to be filled.
#pragma once

#include "api_python/state.h"

namespace weft::python {

bool InitBufferTypes(PyObject* module);

// A read-only buffer over [data, data + size) inside a stored object; keeps the object (takes over one local
// reference).
PyObject* NewView(Object* object, const uint8_t* data, size_t size);

// A writable array's memory in the store, before it is put.
struct RoomObject {
  PyObject_HEAD core::StoreRoom room;
  uint64_t data_offset;  // of the array's data in the room
  uint64_t data_size;
  uint32_t epoch;
  bool sealed;     // belongs to `object` now
  Object* object;  // after put
};
extern PyTypeObject* g_room_type;
PyObject* NewRoom(uint64_t data_offset, uint64_t data_size);

}  // namespace weft::python
