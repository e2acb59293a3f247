#include "wire/actor_recipe.h"

#include "base/bytes.h"
#include "wire/fields.h"
#include "wire/task_frame.h"

namespace weft::core {
namespace {

constexpr uint32_t kTemplate = 0;     // the only one on its channel
constexpr uint8_t kCreationKind = 1;  // TemplateKind::kCreation

template <class V>
void Fields(V& v, ActorRecipe& m) {
  v(m.key, m.function_name, m.body, m.name, m.actor_options, m.shape, m.depth, m.arguments, m.dependencies);
}

}  // namespace

std::string EncodeRecipe(const ActorRecipe& recipe) {
  ByteWriter out;
  FieldWriter writer{out};
  Fields(writer, const_cast<ActorRecipe&>(recipe));
  return out.Take();
}

bool DecodeRecipe(std::string_view bytes, ActorRecipe* recipe) {
  ByteReader in(bytes);
  FieldReader reader{in};
  Fields(reader, *recipe);
  return in.ok() && in.AtEnd();
}

RecipeFrames FramesOf(const ActorRecipe& recipe, ObjectId actor, uint32_t incarnation, const AssignedGpus& gpus) {
  ByteWriter define;
  define.Fixed(kTemplate);
  define.Fixed(kCreationKind);
  define.Fixed(recipe.key);
  define.Fixed(uint32_t{0});  // returns
  define.Fixed(int32_t{0});   // retries
  define.Bytes("");           // method
  define.Bytes("");           // group
  define.Bytes(recipe.actor_options);
  define.Bytes(recipe.name);
  define.Bytes(recipe.function_name);
  define.Bytes("");  // exceptions to retry
  define.Fixed(Location{});
  define.Bytes(recipe.body);

  ByteWriter lease;
  lease.Fixed(LeaseId{});
  lease.Fixed(actor);
  lease.Fixed(incarnation);
  lease.Fixed(static_cast<uint32_t>(recipe.shape.size()));
  for (const auto& [name, amount] : recipe.shape) {
    lease.Bytes(name);
    lease.Fixed(amount);
  }
  lease.Fixed(static_cast<uint32_t>(gpus.size()));
  for (const auto& [number, amount] : gpus) {
    lease.Fixed(number);
    lease.Fixed(amount);
  }

  ByteWriter task;
  task.Fixed(TaskHead{.task = 1,
                      .template_number = kTemplate,
                      .arguments_size = static_cast<uint32_t>(recipe.arguments.size()),
                      .num_returns = 0,
                      .num_dependencies = static_cast<uint32_t>(recipe.dependencies.size()),
                      .num_borrowed = 0,
                      .attempt = incarnation - 1,
                      .depth = recipe.depth,
                      .may_spin = 0});
  for (const auto& value : recipe.dependencies) {
    task.Fixed(DependencyHead{
        .id = {}, .kind = static_cast<uint32_t>(DependencyKind::kInline), .size = static_cast<uint32_t>(value.size())});
    task.Raw(value);
  }
  task.Raw(recipe.arguments);
  return {define.Take(), lease.Take(), task.Take()};
}

}  // namespace weft::core
