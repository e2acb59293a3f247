#include "api_python/buffers.h"

namespace weft::python {

PyTypeObject* g_room_type = nullptr;

namespace {

struct ViewObject {
  PyObject_HEAD Object* object;
  const uint8_t* data;
  size_t size;
  uint32_t epoch;
};
PyTypeObject* g_view_type = nullptr;

void ViewDealloc(PyObject* self) {
  auto* view = reinterpret_cast<ViewObject*>(self);
  if (view->epoch == g_epoch && g_runtime && !Runtime::forked()) g_runtime->DropReference(view->object);
  --g_views;
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

int ViewGetBuffer(PyObject* self, Py_buffer* buffer, int flags) {
  auto* view = reinterpret_cast<ViewObject*>(self);
  return PyBuffer_FillInfo(buffer, self, const_cast<uint8_t*>(view->data), static_cast<Py_ssize_t>(view->size), 1,
                           flags);
}

PyType_Slot view_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(ViewDealloc)},
                            {Py_bf_getbuffer, reinterpret_cast<void*>(ViewGetBuffer)},
                            {Py_tp_doc, const_cast<char*>("Read-only memory of a stored object.")},
                            {0, nullptr}};
PyType_Spec view_spec = {"weft._core.StoredView", sizeof(ViewObject), 0, Py_TPFLAGS_DEFAULT, view_slots};

void RoomDealloc(PyObject* self) {
  auto* room = reinterpret_cast<RoomObject*>(self);
  if (room->epoch == g_epoch && g_runtime && !Runtime::forked()) {
    if (room->object) {
      g_runtime->DropReference(room->object);
    } else if (!room->sealed) {
      g_runtime->Abandon(room->room);
    }
  }
  --g_views;
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

int RoomGetBuffer(PyObject* self, Py_buffer* buffer, int flags) {
  auto* room = reinterpret_cast<RoomObject*>(self);
  return PyBuffer_FillInfo(buffer, self, room->room.data + room->data_offset, static_cast<Py_ssize_t>(room->data_size),
                           room->sealed ? 1 : 0, flags);
}

PyType_Slot room_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(RoomDealloc)},
                            {Py_bf_getbuffer, reinterpret_cast<void*>(RoomGetBuffer)},
                            {Py_tp_doc, const_cast<char*>("Memory of the object store that is being filled.")},
                            {0, nullptr}};
PyType_Spec room_spec = {"weft._core.StoreRoom", sizeof(RoomObject), 0, Py_TPFLAGS_DEFAULT, room_slots};

}  // namespace

bool InitBufferTypes(PyObject*) {
  g_view_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&view_spec));
  g_room_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&room_spec));
  return g_view_type && g_room_type;
}

PyObject* NewView(Object* object, const uint8_t* data, size_t size) {
  auto* view = PyObject_New(ViewObject, g_view_type);
  if (!view) {
    g_runtime->DropReference(object);
    return nullptr;
  }
  view->object = object;
  view->data = data;
  view->size = size;
  view->epoch = g_epoch;
  ++g_views;
  return reinterpret_cast<PyObject*>(view);
}

PyObject* NewRoom(uint64_t data_offset, uint64_t data_size) {
  Runtime* runtime = NeedRuntime();
  if (!runtime) return nullptr;
  for (;;) {
    core::Result<core::StoreRoom> room = core::Error{};
    Py_BEGIN_ALLOW_THREADS room = runtime->Allocate(data_offset + data_size, {}, core::Populate::kNow);
    Py_END_ALLOW_THREADS if (!room) {
      if (room.error().kind == core::ErrorKind::kTimeout) {
        if (PyErr_CheckSignals() != 0) return nullptr;
        continue;
      }
      RaiseCoreError(room.error());
      return nullptr;
    }
    auto* object = PyObject_New(RoomObject, g_room_type);
    if (!object) {
      runtime->Abandon(*room);
      return nullptr;
    }
    object->room = *room;
    object->data_offset = data_offset;
    object->data_size = data_size;
    object->epoch = g_epoch;
    object->sealed = false;
    object->object = nullptr;
    ++g_views;
    return reinterpret_cast<PyObject*>(object);
  }
}

}  // namespace weft::python
