// `weft._core`: the functions of the extension, and the common parts of its types.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "api_python/actor.h"
#include "api_python/buffers.h"
#include "api_python/codec.h"
#include "api_python/completions.h"
#include "api_python/cpp_library.h"
#include "api_python/language_runner.h"
#include "api_python/object_ref.h"
#include "api_python/observe.h"
#include "api_python/outside_inquiry.h"
#include "api_python/python_runner.h"
#include "api_python/remote_function.h"
#include "api_python/state.h"
#include "base/clock.h"
#include "os/cpu_count.h"
#include "wire/value_format.h"

namespace nb = nanobind;

namespace weft::python {

Runtime* g_runtime = nullptr;
uint32_t g_epoch = 0;
uint64_t g_views = 0;

namespace {

// Ended sessions whose memory is still used by arrays, or by calls that are about to return.
std::vector<Runtime*> g_ended;

void DeleteEnded() {
  if (g_views > 0) return;
  std::erase_if(g_ended, [](Runtime* ended) {
    if (ended->users.load() > 0) return false;
    delete ended;
    return true;
  });
}

}  // namespace

PyObject* Callback(const char* module, const char* name) {
  static std::map<std::pair<const char*, const char*>, PyObject*> found;  // by address: both are literals
  PyObject*& function = found[{module, name}];
  if (!function) {
    Owned imported(PyImport_ImportModule(module));
    if (!imported) return nullptr;
    function = PyObject_GetAttrString(imported.get(), name);
  }
  return function;
}

Runtime* NeedRuntime() {
  if (g_runtime && !Runtime::forked() && !g_runtime->stopped()) [[likely]]
    return g_runtime;
  if (Runtime::forked()) {
    PyErr_SetString(
        PyExc_RuntimeError,
        "this process was forked from a weft driver and cannot use its session; call weft in the parent, or "
        "start this process by multiprocessing's 'spawn' method and call weft.init() in it");
    return nullptr;
  }
  if (g_runtime) {
    std::string why = g_runtime->why_stopped();
    RaiseSystemError("WeftError\nthe session has ended (" + (why.empty() ? "it was shut down" : why) +
                     "); call weft.shutdown() and then weft.init() to begin a new one");
    return nullptr;
  }
  PyObject* init = Callback("weft._api", "auto_init");
  Owned done(init ? PyObject_CallNoArgs(init) : nullptr);
  if (!done) return nullptr;
  if (!g_runtime) PyErr_SetString(PyExc_RuntimeError, "weft.init() did not start a session");
  return g_runtime;
}

namespace {

// The exception was raised by a helper of ours; the user's traceback begins at the user's call.
void ForgetOurFrames() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (value) PyException_SetTraceback(value, Py_None);
  Py_XDECREF(traceback);
  PyErr_Restore(type, value, nullptr);
}

}  // namespace

void RaiseTaskError(std::string_view payload) {
  PyObject* raise = Callback("weft._errors", "raise_task_error");
  if (!raise) return;
  Owned never(PyObject_CallFunction(raise, "y#", payload.data(), static_cast<Py_ssize_t>(payload.size())));
  if (never) PyErr_SetString(PyExc_SystemError, "raise_task_error returned");
  ForgetOurFrames();
}

void RaiseSystemError(std::string_view name_and_message) {
  PyObject* raise = Callback("weft._errors", "raise_system_error");
  if (!raise) return;
  size_t end = std::min(name_and_message.find('\n'), name_and_message.size());
  std::string_view message = end < name_and_message.size() ? name_and_message.substr(end + 1) : "";
  // After a NUL: the packed exception of user code that led to it, such as that of an actor's constructor.
  size_t text_end = std::min(message.find('\0'), message.size());
  std::string_view cause = text_end < message.size() ? message.substr(text_end + 1) : "";
  message = message.substr(0, text_end);
  Owned never(PyObject_CallFunction(raise, "s#s#y#", name_and_message.data(), static_cast<Py_ssize_t>(end),
                                    message.data(), static_cast<Py_ssize_t>(message.size()), cause.data(),
                                    static_cast<Py_ssize_t>(cause.size())));
  if (never) PyErr_SetString(PyExc_SystemError, "raise_system_error returned");
  ForgetOurFrames();
}

void RaiseCoreError(const core::Error& error) {
  std::string name = error.kind == core::ErrorKind::kFull   ? "ObjectStoreFullError"
                     : error.kind == core::ErrorKind::kGone ? "ObjectLostError"
                                                            : "WeftError";
  RaiseSystemError(name + "\n" + error.message);
}

bool Interrupted() {
  PyGILState_STATE state = PyGILState_Ensure();
  const bool raised = PyErr_CheckSignals() != 0;
  PyGILState_Release(state);
  return raised;
}

int64_t DeadlineOf(PyObject* timeout, bool* ok) {
  *ok = true;
  if (!timeout || timeout == Py_None) return -1;
  double seconds = PyFloat_AsDouble(timeout);
  if (PyErr_Occurred()) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "timeout must be a number of seconds or None, not %.100s", Py_TYPE(timeout)->tp_name);
    *ok = false;
    return 0;
  }
  if (std::isnan(seconds) || seconds < 0) {
    PyErr_SetString(PyExc_ValueError, "timeout must not be negative or NaN; None waits without limit");
    *ok = false;
    return 0;
  }
  if (seconds == 0) return 0;
  if (seconds > 1e9) return -1;
  return core::NowNs() + static_cast<int64_t>(seconds * 1e9);
}

namespace {

// ---- put, get, wait -----------------------------------------------------------------------------------------------

PyObject* Put(PyObject*, PyObject* value) {
  Runtime* runtime = NeedRuntime();
  if (!runtime) return nullptr;
  if (IsRef(value)) {
    PyErr_SetString(PyExc_TypeError,
                    "put() of an ObjectRef: the object is stored already; pass the reference itself, or put([ref]) to "
                    "store the reference as a value");
    return nullptr;
  }
  static thread_local std::string scratch;
  static thread_local std::vector<Object*> scratch_references;
  scratch.clear();
  scratch_references.clear();
  scratch.push_back(static_cast<char>(core::ValueFormat::kNative));
  // The GIL is held until the object has the references, so none of them is dropped before.
  if (EncodeNative(value, scratch, scratch_references, core::kMaxInlineBytes) &&
      scratch.size() <= core::kMaxInlineBytes) {
    return NewRef(runtime->PutInline(scratch, scratch_references), false);
  }
  if (PyErr_Occurred()) return nullptr;
  Contained inside;
  Encoded encoded;
  if (!EncodeValue(value, {}, encoded)) return nullptr;
  Object* object;
  if (encoded.room.data) {
    object = runtime->PutStored(encoded.room, inside.objects);
    if (encoded.sealed_room) {
      Runtime::AddReference(object);
      reinterpret_cast<RoomObject*>(encoded.room_object)->object = object;
    }
  } else {
    object = runtime->PutInline(encoded.bytes, inside.objects);
  }
  return NewRef(object, false);
}

PyObject* ValueOf(Runtime* runtime, Object* object) {
  Inside inside(runtime);
  for (;;) {
    core::Result<core::ValueView> view = core::Error{};
    const core::ValueKind kind = object->value.kind();
    // An object that was lost with its node may be pending again.
    if (kind == core::ValueKind::kStored || kind == core::ValueKind::kPending) {
      Py_BEGIN_ALLOW_THREADS view = runtime->Read(object);
      Py_END_ALLOW_THREADS
    } else {
      view = runtime->Read(object);
    }
    if (!view) {
      if (view.error().kind != core::ErrorKind::kTimeout) return RaiseCoreError(view.error()), nullptr;
      if (PyErr_CheckSignals() != 0) return nullptr;
      continue;
    }
    switch (view->kind) {
      case core::ValueKind::kInline:
      case core::ValueKind::kStored:
        return DecodeValue(view->bytes, view->stored, object);
      case core::ValueKind::kTaskError:
        return RaiseTaskError(view->bytes), nullptr;
      case core::ValueKind::kSystemError:
        return RaiseSystemError(view->bytes), nullptr;
      case core::ValueKind::kPending:
        break;
    }
    PyErr_SetString(PyExc_SystemError, "weft: value of a pending object");
    return nullptr;
  }
}

// False with an exception set.
bool TellOfLongWait(const core::WaitReport& report) {
  PyObject* tell = Callback("weft._explain", "tell_of_long_wait");
  Owned done(tell ? PyObject_CallFunction(tell, "ds", static_cast<double>(core::NowNs() - report.began_ns) / 1e9,
                                          report.text.c_str())
                  : nullptr);
  return static_cast<bool>(done);
}

// False with an exception set, unless all is ready.
bool WaitForObjects(Runtime* runtime, const std::vector<Object*>& objects, int64_t deadline, PyObject* timeout) {
  Inside inside(runtime);
  core::WaitReport report;
  for (;;) {
    core::WaitOutcome outcome;
    Py_BEGIN_ALLOW_THREADS outcome = runtime->WaitForAll(objects, deadline, &report, true);
    Py_END_ALLOW_THREADS switch (outcome) {
      case core::WaitOutcome::kReady:
        return true;
      case core::WaitOutcome::kFailed: {
        auto failed = std::find_if(objects.begin(), objects.end(), [](Object* object) { return object->failed(); });
        if (failed == objects.end()) continue;  // it is being made again
        Owned value(ValueOf(runtime, *failed));
        if (!value) return false;
        continue;
      }
      case core::WaitOutcome::kInterrupted:
        if (PyErr_CheckSignals() != 0) return false;
        continue;
      case core::WaitOutcome::kStuck:
        RaiseSystemError(report.text);
        return false;
      case core::WaitOutcome::kNotice:
        if (!TellOfLongWait(report)) return false;
        continue;
      case core::WaitOutcome::kTimedOut: {
        size_t pending = 0;
        for (Object* object : objects) pending += !object->settled();
        double seconds = timeout && timeout != Py_None ? PyFloat_AsDouble(timeout) : 0;
        char text[160];
        std::snprintf(text, sizeof text,
                      "GetTimeoutError\n%zu of %zu objects were not ready after %g s; the tasks that make them go on",
                      pending, objects.size(), seconds);
        RaiseSystemError(text);
        return false;
      }
      case core::WaitOutcome::kStopped:
        NeedRuntime();
        if (!PyErr_Occurred()) RaiseSystemError("WeftError\nthe session was shut down while get() waited");
        return false;
    }
  }
}

PyObject* NotARef(const char* call, PyObject* value) {
  const char* type = Py_TYPE(value)->tp_name;
  // An object with .remote was probably meant to be called.
  std::string_view name = type;
  const char* hint = name == "weft.RemoteFunction" || name == "weft.ActorMethod" ? "; call it first: .remote(...)"
                     : name == "weft.ActorHandle" ? "; call one of its methods first: .method.remote(...)"
                                                  : "";
  PyErr_Format(PyExc_TypeError, "%s expects an ObjectRef or a list of them, not %.100s%s", call, type, hint);
  return nullptr;
}

PyObject* Get(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* refs = nargs > 0 ? args[0] : nullptr;
  PyObject* timeout = nargs > 1 ? args[1] : nullptr;
  if (nargs > 2) {
    PyErr_Format(PyExc_TypeError,
                 "get() takes a reference or a list, and timeout=; %zd positional arguments were given", nargs);
    return nullptr;
  }
  for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); ++i) {
    const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(kwnames, i));
    if (!name) return nullptr;
    PyObject** slot = std::strcmp(name, "timeout") == 0 ? &timeout : std::strcmp(name, "refs") == 0 ? &refs : nullptr;
    if (!slot || *slot) {
      PyErr_Format(PyExc_TypeError, "get() got an unexpected argument '%s'; it takes refs and timeout", name);
      return nullptr;
    }
    *slot = args[nargs + i];
  }
  if (!refs) {
    PyErr_SetString(PyExc_TypeError, "get() needs an ObjectRef or a list of them");
    return nullptr;
  }
  Runtime* runtime = NeedRuntime();
  if (!runtime) return nullptr;
  if (IsRef(refs)) {
    Object* object = ObjectOf(refs);
    if (!object) return nullptr;
    bool ok = true;
    int64_t deadline = timeout ? DeadlineOf(timeout, &ok) : -1;
    if (!ok) return nullptr;
    if (!object->here() && !WaitForObjects(runtime, {object}, deadline, timeout)) return nullptr;
    return ValueOf(runtime, object);
  }
  if (!PyList_Check(refs) && !PyTuple_Check(refs)) return NotARef("get()", refs);
  bool ok;
  int64_t deadline = DeadlineOf(timeout, &ok);
  if (!ok) return nullptr;
  // A copy keeps the references alive, whatever other threads do to the list meanwhile.
  Owned items(PySequence_Tuple(refs));
  if (!items) return nullptr;
  Py_ssize_t count = PyTuple_GET_SIZE(items.get());
  std::vector<Object*> objects(static_cast<size_t>(count));
  bool all_ready = true;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PyTuple_GET_ITEM(items.get(), i);
    if (!IsRef(item)) {
      PyErr_Format(PyExc_TypeError, "get() expects ObjectRefs; item %zd of the list is a %.100s", i,
                   Py_TYPE(item)->tp_name);
      return nullptr;
    }
    objects[static_cast<size_t>(i)] = ObjectOf(item);
    if (!objects[static_cast<size_t>(i)]) return nullptr;
    all_ready = all_ready && objects[static_cast<size_t>(i)]->here();
  }
  if (!all_ready && !WaitForObjects(runtime, objects, deadline, timeout)) return nullptr;
  Owned values(PyList_New(count));
  if (!values) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* value = ValueOf(runtime, objects[static_cast<size_t>(i)]);
    if (!value) return nullptr;
    PyList_SET_ITEM(values.get(), i, value);
  }
  return values.Release();
}

PyObject* Wait(PyObject*, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"refs", "num_returns", "timeout", "fetch_local", nullptr};
  PyObject *refs, *num_returns_object = nullptr, *timeout = nullptr, *fetch_local = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$OOO:wait", const_cast<char**>(names), &refs, &num_returns_object,
                                   &timeout, &fetch_local)) {
    return nullptr;
  }
  Py_ssize_t wanted = 1;
  if (num_returns_object) {
    if (!PyLong_Check(num_returns_object) || PyBool_Check(num_returns_object)) {
      PyErr_Format(PyExc_TypeError, "num_returns must be an int, not %.100s", Py_TYPE(num_returns_object)->tp_name);
      return nullptr;
    }
    wanted = PyLong_AsSsize_t(num_returns_object);
    if (wanted == -1 && PyErr_Occurred()) return nullptr;
  }
  if (IsRef(refs)) {
    PyErr_SetString(PyExc_TypeError, "wait() expects a list of ObjectRefs, not a single one: write wait([ref])");
    return nullptr;
  }
  if (!PyList_Check(refs) && !PyTuple_Check(refs)) {
    PyErr_Format(PyExc_TypeError, "wait() expects a list of ObjectRefs, not %.100s", Py_TYPE(refs)->tp_name);
    return nullptr;
  }
  bool ok;
  int64_t deadline = DeadlineOf(timeout, &ok);
  if (!ok) return nullptr;
  const int fetches = fetch_local ? PyObject_IsTrue(fetch_local) : 1;
  if (fetches < 0) return nullptr;
  const bool to_look = fetches != 0;
  Runtime* runtime = NeedRuntime();
  if (!runtime) return nullptr;
  Py_ssize_t count = PySequence_Fast_GET_SIZE(refs);
  PyObject** items = PySequence_Fast_ITEMS(refs);
  if (wanted < 1 || wanted > count) {
    PyErr_Format(PyExc_ValueError, "num_returns must be between 1 and the number of references (%zd), not %zd", count,
                 wanted);
    return nullptr;
  }
  // One pass over the handles does it if enough are ready: checks types, sessions and duplicates, and divides the list.
  uint32_t stamp = NextStamp();
  bool aliases = false;
  Owned done(PyList_New(wanted)), rest(PyList_New(count - wanted));
  if (!done || !rest) return nullptr;
  Py_ssize_t at_done = 0, at_rest = 0;
  // What the loop needs in locals: it runs for every reference of every call, and is compared with copying the list.
  PyTypeObject* const ref_type = g_ref_type;
  const uint32_t epoch = g_epoch;
  PyObject** const rest_items = reinterpret_cast<PyListObject*>(rest.get())->ob_item;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = items[i];
    auto* ref = reinterpret_cast<RefObject*>(item);
    if (Py_TYPE(item) != ref_type) {
      PyErr_Format(PyExc_TypeError, "wait() expects ObjectRefs; item %zd of the list is a %.100s", i,
                   Py_TYPE(item)->tp_name);
      return nullptr;
    }
    if (ref->epoch != epoch) return ObjectOf(item), nullptr;
    if (ref->stamp == stamp) {
      PyErr_Format(PyExc_ValueError, "wait() was given the same reference twice (item %zd)", i);
      return nullptr;
    }
    ref->stamp = stamp;
    aliases |= ref->alias;
    if (at_done < wanted && ref->object->ready(to_look)) {
      Py_INCREF(item);
      PyList_SET_ITEM(done.get(), at_done++, item);
    } else if (at_rest < count - wanted) {
      Py_INCREF(item);
      rest_items[at_rest++] = item;
    }
  }
  if (aliases) {
    std::vector<Object*> sorted(static_cast<size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      sorted[static_cast<size_t>(i)] = reinterpret_cast<RefObject*>(items[i])->object;
    }
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
      PyErr_SetString(PyExc_ValueError, "wait() was given two references to the same object");
      return nullptr;
    }
  }
  if (at_done == wanted) return PyTuple_Pack(2, done.get(), rest.get());

  Owned keep(PySequence_Tuple(refs));  // the list may change while we wait
  if (!keep) return nullptr;
  items = &PyTuple_GET_ITEM(keep.get(), 0);
  auto ready_count = [&](Py_ssize_t limit) {
    Py_ssize_t found = 0;
    for (Py_ssize_t i = 0; i < count && found < limit; ++i) {
      found += reinterpret_cast<RefObject*>(items[i])->object->ready(to_look);
    }
    return found;
  };
  if (ready_count(wanted) < wanted) {
    std::vector<Object*> objects(static_cast<size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i)
      objects[static_cast<size_t>(i)] = reinterpret_cast<RefObject*>(items[i])->object;
    Inside inside(runtime);
    core::WaitReport report;
    for (bool again = true; again;) {
      again = false;
      core::WaitOutcome outcome;
      Py_BEGIN_ALLOW_THREADS outcome =
          runtime->WaitFor(objects, static_cast<size_t>(wanted), deadline, &report, to_look);
      Py_END_ALLOW_THREADS if (outcome == core::WaitOutcome::kInterrupted) {
        if (PyErr_CheckSignals() != 0) return nullptr;
        again = true;
      }
      else if (outcome == core::WaitOutcome::kStuck) {
        RaiseSystemError(report.text);
        return nullptr;
      }
      else if (outcome == core::WaitOutcome::kNotice) {
        if (!TellOfLongWait(report)) return nullptr;
        again = true;
      }
      else if (outcome == core::WaitOutcome::kStopped) {
        NeedRuntime();
        if (!PyErr_Occurred()) RaiseSystemError("WeftError\nthe session was shut down while wait() waited");
        return nullptr;
      }
    }
  }
  // At most num_returns count as ready, the first in the list's order.
  Py_ssize_t ready = ready_count(wanted);
  done = Owned(PyList_New(ready));
  rest = Owned(PyList_New(count - ready));
  if (!done || !rest) return nullptr;
  at_done = at_rest = 0;
  Py_ssize_t i = 0;
  for (; i < count && at_done < ready; ++i) {
    Py_INCREF(items[i]);
    if (reinterpret_cast<RefObject*>(items[i])->object->ready(to_look)) {
      PyList_SET_ITEM(done.get(), at_done++, items[i]);
    } else if (at_rest < count - ready) {
      PyList_SET_ITEM(rest.get(), at_rest++, items[i]);
    }
  }
  for (; i < count; ++i) {
    Py_INCREF(items[i]);
    PyList_SET_ITEM(rest.get(), at_rest++, items[i]);
  }
  return PyTuple_Pack(2, done.get(), rest.get());
}

PyObject* Explain(PyObject*, PyObject* ref) {
  if (!IsRef(ref)) {
    PyErr_Format(PyExc_TypeError, "explain() expects an ObjectRef, not %.100s", Py_TYPE(ref)->tp_name);
    return nullptr;
  }
  Runtime* runtime = NeedRuntime();
  if (!runtime) return nullptr;
  Object* object = ObjectOf(ref);
  if (!object) return nullptr;
  Inside inside(runtime);
  std::string text;
  Py_BEGIN_ALLOW_THREADS text = runtime->Explain(object);
  Py_END_ALLOW_THREADS return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

// ---- sessions -----------------------------------------------------------------------------------------------------

core::ResourceAmounts Resources(nb::dict resources) {
  core::ResourceAmounts amounts;
  for (auto [name, amount] : resources) {
    auto units =
        static_cast<int64_t>(std::llround(nb::cast<double>(amount) * static_cast<double>(core::kResourceUnit)));
    if (units > 0) amounts.emplace_back(nb::cast<std::string>(name), units);
  }
  std::sort(amounts.begin(), amounts.end());
  return amounts;
}

// Paths and environment variables may hold any bytes.
std::string FileSystemText(nb::handle text) {
  Owned bytes(PyUnicode_EncodeFSDefault(text.ptr()));
  if (!bytes) throw nb::python_error();
  return {PyBytes_AS_STRING(bytes.get()), static_cast<size_t>(PyBytes_GET_SIZE(bytes.get()))};
}

std::vector<std::string> FileSystemTexts(nb::list texts) {
  std::vector<std::string> result;
  for (nb::handle text : texts) result.push_back(FileSystemText(text));
  return result;
}

nb::dict Start(nb::dict config) {
  if (g_runtime) throw nb::value_error("a session is open already");
  DeleteEnded();
  core::SessionOptions options;
  options.daemon_path = FileSystemText(config["daemon"]);
  options.address = nb::cast<std::string>(config["address"]);
  options.open.pid = getpid();
  options.open.resources = Resources(nb::cast<nb::dict>(config["resources"]));
  options.open.object_store_bytes = nb::cast<uint64_t>(config["object_store_memory"]);
  options.open.python_workers = 1;
  options.open.worker_command = FileSystemTexts(nb::cast<nb::list>(config["worker_command"]));
  options.open.environment = FileSystemTexts(nb::cast<nb::list>(config["environment"]));
  options.open.working_directory = FileSystemText(config["working_directory"]);
  options.open.forward_output = nb::cast<bool>(config["forward_output"]) ? 1 : 0;
  options.open.preload = FileSystemTexts(nb::cast<nb::list>(config["preload"]));
  core::Result<std::unique_ptr<Runtime>> runtime = core::Error{};
  {
    nb::gil_scoped_release release;
    runtime = Runtime::StartSession(std::move(options));
  }
  if (!runtime) throw std::runtime_error(runtime.error().message);
  g_runtime = runtime->release();
  g_runtime->set_notice_after(static_cast<int64_t>(nb::cast<double>(config["notice_after"]) * 1e9));
  ++g_epoch;
  nb::dict result;
  result["cpus"] = g_runtime->welcome().cpus;
  result["object_store_memory"] = g_runtime->welcome().object_store_bytes;
  result["daemon_pid"] = g_runtime->daemon_pid();
  return result;
}

void Stop() {
  if (!g_runtime || Runtime::forked()) return;
  Runtime* runtime = g_runtime;
  g_runtime = nullptr;  // references that are dropped from now on are of an ended session
  ++g_epoch;
  {
    nb::gil_scoped_release release;
    runtime->Stop();
  }
  g_ended.push_back(runtime);
  DeleteEnded();
}

nb::object NextEvent() {
  // A thread that takes events stays with the session it began with, to its last event.
  static thread_local Runtime* runtime = nullptr;
  if (!runtime) {
    if (!g_runtime) return nb::none();
    runtime = g_runtime;
    ++runtime->users;
  }
  core::RuntimeEvent event;
  bool more;
  {
    nb::gil_scoped_release release;
    more = runtime->NextEvent(&event);
  }
  const bool calls_back = event.kind == core::RuntimeEvent::kReady || event.kind == core::RuntimeEvent::kStuck;
  if (!more || (calls_back && runtime != g_runtime)) {
    --runtime->users;
    runtime = nullptr;
    DeleteEnded();
    return nb::none();
  }
  if (event.kind == core::RuntimeEvent::kOutput) {
    nb::object text =
        nb::steal(PyUnicode_DecodeUTF8(event.text.data(), static_cast<Py_ssize_t>(event.text.size()), "replace"));
    nb::object name =
        nb::steal(PyUnicode_DecodeUTF8(event.name.data(), static_cast<Py_ssize_t>(event.name.size()), "replace"));
    return nb::make_tuple("output", event.pid, event.is_stderr, text, name);
  }
  nb::object callback = nb::steal(static_cast<PyObject*>(event.cookie));
  nb::object ref = nb::steal(NewRef(event.object, true));
  if (event.kind == core::RuntimeEvent::kStuck) return nb::make_tuple("stuck", callback, ref, Text(event.text));
  return nb::make_tuple("ready", callback, ref);
}

// For `await` in the event loop of this actor. The number is for end_await.
uint64_t AwaitWhenReady(nb::object ref, nb::object callback, bool by_its_call) {
  if (!IsRef(ref.ptr())) throw nb::type_error("await_when_ready() expects an ObjectRef");
  Object* object = ObjectOf(ref.ptr());
  if (!object) throw nb::python_error();
  const PythonCall* call = by_its_call && g_runner ? g_runner->Current() : nullptr;
  return g_runtime->Await(object, callback.release().ptr(), call ? call->execution : 0);
}

void EndAwait(uint64_t number) {
  if (g_runtime && number != 0) g_runtime->EndAwait(number);
}

void CallWhenReady(nb::object ref, nb::object callback) {
  if (!IsRef(ref.ptr())) throw nb::type_error("call_when_ready() expects an ObjectRef");
  Object* object = ObjectOf(ref.ptr());
  if (!object) throw nb::python_error();
  g_runtime->CallWhenReady(object, callback.release().ptr());
}

bool IsReady(nb::object ref) {
  if (!IsRef(ref.ptr())) throw nb::type_error("is_ready() expects an ObjectRef");
  Object* object = ObjectOf(ref.ptr());
  if (!object) throw nb::python_error();
  return object->settled();
}

// A plain function, because a pickle names it.
PyObject* RestoreReference(PyObject*, PyObject* args) {
  unsigned long long owner, index;
  if (!PyArg_ParseTuple(args, "KK", &owner, &index)) return nullptr;
  Runtime* runtime = NeedRuntime();
  if (!runtime) return nullptr;
  Held* held = Held::Current();
  Object* object = held ? held->Next({{owner}, index}) : nullptr;
  if (!object) object = runtime->FindReference({{owner}, index});
  if (!object) {
    RaiseSystemError("ObjectLostError\na value refers to an object that no longer exists");
    return nullptr;
  }
  return NewRef(object, true);
}

// weft._functions.export where references can be pickled. Those that the body captures are kept for good: any worker
// may load it at any time.
PyObject* Export(PyObject*, PyObject* function) {
  if (!NeedRuntime()) return nullptr;
  PyObject* export_function = Callback("weft._functions", "export");
  if (!export_function) return nullptr;
  Contained captured;
  PyObject* exported = PyObject_CallFunctionObjArgs(export_function, function, nullptr);
  if (exported) captured.objects.clear();
  return exported;
}

nb::object Empty(uint32_t dimensions, uint64_t nbytes) {
  PyObject* room = NewRoom(core::ArrayHead::DataOffset(dimensions), nbytes);
  if (!room) throw nb::python_error();
  return nb::steal(room);
}

void RunWorker(int fd) {
  auto runtime = Runtime::JoinAsWorker(core::UniqueFd(fd));
  if (!runtime) throw std::runtime_error(runtime.error().message);
  g_runtime = runtime->release();
  ++g_epoch;
  // Never destroyed: threads of a threaded actor wait in the runner for calls, or are on their way out of one.
  auto* runner = new LanguageRunner(*g_runtime);
  auto* executor = new core::Executor(*g_runtime, *runner);
  runner->SetExecutor(executor);
  executor->Run();
  runner->Leave();
}

nb::dict Stats() {
  nb::dict result;
  if (!g_runtime) return result;
  core::RuntimeStats stats = g_runtime->Stats();
  result["live_tasks"] = stats.live_tasks;
  result["live_objects"] = stats.live_objects;
  result["ready_tasks"] = stats.ready_tasks;
  result["leased_workers"] = stats.leased_workers;
  result["tasks_submitted"] = stats.tasks_submitted;
  result["replies"] = stats.replies;
  result["background_wakeups"] = stats.background_wakeups;
  result["revoked"] = stats.revoked;
  result["handed_back"] = stats.handed_back;
  result["messages_sent"] = stats.messages_sent;
  result["store_bytes"] = stats.store_allocated;
  result["daemon_pid"] = g_runtime->daemon_pid();
  return result;
}

PyMethodDef fast_methods[] = {
    {"put", Put, METH_O, "put(value): stores a value and returns an ObjectRef to it."},
    {"get", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Get)), METH_FASTCALL | METH_KEYWORDS,
     "get(refs, timeout=None): the value of a reference, or the values of a list of references."},
    {"wait", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Wait)), METH_VARARGS | METH_KEYWORDS,
     "wait(refs, *, num_returns=1, timeout=None, fetch_local=True): (ready, not ready)."},
    {"explain", Explain, METH_O, "explain(ref): what the object waits for, as text of several lines."},
    {"_restore_reference", RestoreReference, METH_VARARGS, nullptr},
    {"_export", Export, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace
}  // namespace weft::python

NB_MODULE(_core, m) {
  using namespace weft::python;
  if (!InitRefType(m.ptr()) || !InitBufferTypes(m.ptr()) || !InitRemoteFunctionType(m.ptr()) ||
      !InitActorTypes(m.ptr()) || !InitCompletionsType(m.ptr()) || !AddWorkerFunctions(m.ptr()) ||
      !AddCppFunctions(m.ptr()) || PyModule_AddFunctions(m.ptr(), fast_methods) != 0) {
    throw nb::python_error();
  }
  m.def("start", &Start);
  m.def("stop", &Stop);
  m.def("is_started", [] { return g_runtime != nullptr && !Runtime::forked(); });
  m.def("allowed_cpus", [] { return weft::core::AllowedCpus(); });
  m.def("next_event", &NextEvent);
  m.def("call_when_ready", &CallWhenReady);
  m.def("await_when_ready", &AwaitWhenReady);
  m.def("end_await", &EndAwait);
  m.def("loop_is_asked", [] { return g_runtime && g_runtime->LoopIsAsked(); });
  m.def("is_ready", &IsReady);
  m.def("empty", &Empty);
  m.def("run_worker", &RunWorker);
  m.def("stats", &Stats);
  DefineObserve(m);
  DefineOutsideInquiry(m);
}
