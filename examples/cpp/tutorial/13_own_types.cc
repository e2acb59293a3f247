// Types of your own: what is passed, returned and put, and what a class says about itself for that.
//
// Numbers, strings, standard containers and plain structs travel as they are. A class with private members names them
// in one function, weft_fields, which serves both ways.
#include <weft/weft.h>

#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "check.h"

enum class Unit { kPiece, kGram };

struct Item {  // an aggregate of anything, containers and other structs too
  std::string name;
  Unit unit = Unit::kPiece;
  std::optional<double> price;
  std::map<std::string, std::vector<int>> stock;
  bool operator==(const Item&) const = default;
};

class Money {
 public:
  Money() = default;
  Money(std::string currency, long cents) : currency_(std::move(currency)), cents_(cents) {}
  long cents() const { return cents_; }
  const std::string& currency() const { return currency_; }
  friend auto weft_fields(Money& money) { return std::tie(money.currency_, money.cents_); }

 private:
  std::string currency_;
  long cents_ = 0;
};

struct Tree {  // owns its branches, so it can only be moved
  int value = 0;
  std::unique_ptr<Tree> left = nullptr, right = nullptr;
};

Item restock(Item item, const std::string& place, int count) {
  item.stock[place].push_back(count);
  return item;
}
Money half(const Money& money) { return {money.currency(), money.cents() / 2}; }
int sum(const Tree& tree) {
  return tree.value + (tree.left ? sum(*tree.left) : 0) + (tree.right ? sum(*tree.right) : 0);
}
std::unique_ptr<Tree> grow(int levels) {
  if (levels == 0) return nullptr;
  return std::make_unique<Tree>(Tree{levels, grow(levels - 1), grow(levels - 1)});
}
std::variant<int, std::string> parse(const std::string& text) {
  if (text.find_first_not_of("0123456789") == std::string::npos) return std::stoi(text);
  return text;
}

int main() {
  auto session = weft::init({.num_cpus = 2});

  Item item{"flour", Unit::kGram, 1.25, {{"cellar", {10, 20}}}};
  check(weft::get(weft::put(item)) == item);
  Item restocked = weft::get(weft::remote<restock>(item, "kitchen", 5));
  check(restocked.stock.size() == 2 && restocked.unit == Unit::kGram && item.stock.size() == 1);  // a copy was changed

  Money money = weft::get(weft::remote<half>(weft::remote<half>(Money("EUR", 1000))));
  check(money.cents() == 250 && money.currency() == "EUR");

  check(weft::get(weft::remote<sum>(Tree{1, grow(3), nullptr})) == 1 + 11);  // moved into the call
  std::unique_ptr<Tree> tree = weft::get(weft::remote<grow>(10));
  check(sum(*tree) == 2036);

  check(std::get<int>(weft::get(weft::remote<parse>("42"))) == 42);
  check(std::get<std::string>(weft::get(weft::remote<parse>("forty-two"))) == "forty-two");
  std::puts("ok: structs, a class with private members, a tree that can only be moved and a variant came back whole");
}
