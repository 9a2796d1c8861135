#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/device.h"
#include "model/parameter_store.h"

namespace lockstep {

// The fp32 values that training keeps for each parameter.
enum class StatePart { weights, first_moment, second_moment };
constexpr std::array<std::string_view, 3> state_part_names = {
    "weights", "first_moment", "second_moment"};

// The part of a unit that this rank updates, with the state the optimizer
// needs for it. Whole units for replicated strategies, 1/W of each for sharded
// ones, single parameters for greedy assignment.
class Shard {
 public:
  // Elements [begin, begin + count) of the unit. parameters: compute dtype
  // [count]; gradients: f32 or bf16 [count], or empty where nothing is trained;
  // both are the caller's memory. Allocates the moments, and what bf16
  // parameters lack of fp32 ones; without gradients, neither.
  Shard(Device& device, Unit& unit, std::int64_t begin, Tensor parameters,
        Tensor gradients);

  Unit* unit;
  std::int64_t begin;
  std::int64_t count;
  Tensor parameters;
  Tensor gradients;
  Tensor remainder;  // i16 [count] of bf16 parameters (SplitWeight), or empty
  Tensor first_moment;   // f32 [count]
  Tensor second_moment;  // f32 [count]

 private:
  Buffer remainder_memory_;
  Buffer moments_memory_;
};

}  // namespace lockstep
