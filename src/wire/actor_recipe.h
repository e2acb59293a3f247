// All that it takes to construct an actor without its creator: the class, the arguments by value, and what the worker
// must know. The creator of a detached actor in a cluster makes it, the actor's home keeps it as opaque bytes (also in
// the control store), and the daemon of each worker that the actor gets turns it into frames.
//
// Pure. The frames are those that a creator would push itself (runtime_frames.cc): a template, the lease, the task.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "wire/ids.h"
#include "wire/messages.h"

namespace weft::core {

struct ActorRecipe {
  FunctionKey key;  // of the class
  std::string function_name;
  std::string body;
  std::string name;           // of the constructor, for messages and events
  std::string actor_options;  // for the front end in the worker
  ResourceAmounts shape;      // as the worker is told
  uint32_t depth = 0;
  std::string arguments;
  std::vector<std::string> dependencies;  // the values of references among the arguments, in their order
};

std::string EncodeRecipe(const ActorRecipe& recipe);
bool DecodeRecipe(std::string_view bytes, ActorRecipe* recipe);

struct RecipeFrames {
  std::string define;
  std::string lease;
  std::string task;
};
RecipeFrames FramesOf(const ActorRecipe& recipe, ObjectId actor, uint32_t incarnation, const AssignedGpus& gpus);

}  // namespace weft::core
