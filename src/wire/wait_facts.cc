#include "wire/wait_facts.h"

#include <utility>

#include "base/bytes.h"

namespace weft::core {
namespace {

// Each fact names its fields once, for both directions.
template <class V>
void Fields(V& v, ObjectFact& f) {
  v(f.id, f.state, f.pid, f.task, f.stamp, f.name, f.objects, f.more_objects, f.shape, f.worker, f.is_call, f.group,
    f.is_actor, f.ahead, f.front);
}
template <class V>
void Fields(V& v, WaitFact& f) {
  v(f.wait, f.execution, f.submitter, f.task, f.name, f.group, f.has_deadline, f.wanted, f.more_objects, f.for_ns,
    f.objects);
}
template <class V>
void Fields(V& v, SlotFact& f) {
  v(f.group, f.slots);
}
template <class V>
void Fields(V& v, ProcessFact& f) {
  v(f.process, f.pid, f.slots, f.waits);
}
template <class V>
void Fields(V& v, HolderFact& f) {
  v(f.lease, f.worker, f.pid, f.kept, f.actor);
}
template <class V>
void Fields(V& v, ShapeFact& f) {
  v(f.shape, f.total, f.free, f.starting, f.holders);
}

struct Writing {
  ByteWriter& out;
  template <class... T>
  void operator()(T&... fields) {
    (One(fields), ...);
  }
  template <class T>
  void One(T& value) {
    if constexpr (requires { Fields(*this, value); }) {
      Fields(*this, value);
    } else {
      out.Fixed(value);
    }
  }
  void One(std::string& s) { out.Bytes(s); }
  template <class A, class B>
  void One(std::pair<A, B>& p) {
    One(p.first);
    One(p.second);
  }
  template <class T>
  void One(std::vector<T>& list) {
    out.Fixed(static_cast<uint32_t>(list.size()));
    for (auto& item : list) One(item);
  }
};

struct Reading {
  ByteReader& in;
  template <class... T>
  void operator()(T&... fields) {
    (One(fields), ...);
  }
  template <class T>
  void One(T& value) {
    if constexpr (requires { Fields(*this, value); }) {
      Fields(*this, value);
    } else {
      value = in.Fixed<T>();
    }
  }
  void One(std::string& s) { s = in.Bytes(); }
  template <class A, class B>
  void One(std::pair<A, B>& p) {
    One(p.first);
    One(p.second);
  }
  template <class T>
  void One(std::vector<T>& list) {
    auto count = in.Fixed<uint32_t>();
    // Every item takes at least eight bytes, so a count beyond that is a lie: refused before allocating.
    if (count > in.remaining() / 8) return in.Fail();
    list.resize(count);
    for (auto& item : list) One(item);
  }
};

template <class F>
std::string EncodeAny(const F& fact) {
  ByteWriter out;
  Writing writing{out};
  Fields(writing, const_cast<F&>(fact));  // writing leaves them alone
  return out.Take();
}

template <class F>
bool DecodeAny(std::string_view bytes, F& fact) {
  ByteReader in(bytes);
  Reading reading{in};
  Fields(reading, fact);
  return in.ok() && in.AtEnd();
}

}  // namespace

std::string EncodeFact(const ObjectFact& fact) { return EncodeAny(fact); }
std::string EncodeFact(const ProcessFact& fact) { return EncodeAny(fact); }
std::string EncodeFact(const ShapeFact& fact) { return EncodeAny(fact); }
bool DecodeFact(std::string_view bytes, ObjectFact& fact) { return DecodeAny(bytes, fact); }
bool DecodeFact(std::string_view bytes, ProcessFact& fact) { return DecodeAny(bytes, fact); }
bool DecodeFact(std::string_view bytes, ShapeFact& fact) { return DecodeAny(bytes, fact); }

}  // namespace weft::core
