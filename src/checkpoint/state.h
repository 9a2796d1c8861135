#pragma once

#include <array>
#include <functional>
#include <span>
#include <vector>

#include "mpi/world.h"
#include "sync/gradient_sync.h"

namespace lockstep {

// What training keeps of one unit, in host memory: by StatePart, f32
// [unit.elements] in the unit's layout.
using UnitState = std::array<std::vector<float>, state_part_names.size()>;

// Brings all units' state together on rank 0, whatever the strategy: each rank
// hands over the shards it owns. Where ranks train apart, it is their mean.
// Collective, between steps; on the other ranks `state` stays as it is.
void gather_state(const ParameterStore& store, GradientSync& sync, World& world,
                  std::vector<UnitState>& state);

// The other way round: state that rank 0 has, to every rank what it owns.
// `fill` is called on rank 0 for each unit and part with [unit.elements] zeros
// to be replaced; an Error there is one on all ranks. Collective.
using FillState = std::function<void(const Unit&, StatePart, std::span<float>)>;
void scatter_state(ParameterStore& store, GradientSync& sync, World& world,
                   std::span<const StatePart> parts, const FillState& fill);
constexpr StatePart all_state[] = {StatePart::weights, StatePart::first_moment,
                                   StatePart::second_moment};

}  // namespace lockstep
