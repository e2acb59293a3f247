// The functions and the class that Ray's C++ workers run; they load the library of functions.cc for it.
#pragma once

int Increment(int x);

class Counter {
 public:
  static Counter* Create(int start);
  int Add(int x);

 private:
  int count_ = 0;
};
