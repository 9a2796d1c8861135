#include "checkpoint/state.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace lockstep {
namespace {

// A shard as other ranks hear of it.
struct Piece {
  std::int64_t unit;
  std::int64_t begin;
  std::int64_t count;
};

// Every rank's shards, in the order it owns them.
std::vector<std::vector<Piece>> pieces_of_ranks(GradientSync& sync,
                                                World& world) {
  std::vector<Piece> mine;
  for (const Shard& shard : sync.owned()) {
    mine.push_back({shard.unit->index, shard.begin, shard.count});
  }
  const std::string bytes(reinterpret_cast<const char*>(mine.data()),
                          mine.size() * sizeof(Piece));
  std::vector<std::vector<Piece>> all;
  for (const std::string& theirs : world.all_gather(bytes)) {
    all.emplace_back(theirs.size() / sizeof(Piece));
    std::memcpy(all.back().data(), theirs.data(), theirs.size());
  }
  return all;
}

void make_room(const ParameterStore& store, std::vector<UnitState>& state) {
  state.resize(store.units().size());
  for (const Unit& unit : store.units()) {
    for (auto& part : state[unit.index]) part.assign(unit.elements, 0.0f);
  }
}

}  // namespace

void gather_state(const ParameterStore& store, GradientSync& sync, World& world,
                  std::vector<UnitState>& state) {
  if (world.root()) make_room(store, state);
  const bool all_give = sync.sharded() || sync.ranks_differ();
  const auto pieces = pieces_of_ranks(sync, world);
  std::vector<float> passing;
  for (int rank = 0; rank < (all_give ? world.size() : 1); ++rank) {
    if (!world.root() && rank != world.rank()) continue;
    for (std::size_t i = 0; i < pieces[rank].size(); ++i) {
      const Piece& piece = pieces[rank][i];
      for (const StatePart part : all_state) {
        passing.resize(piece.count);
        if (rank == world.rank()) sync.read(sync.owned()[i], part, passing);
        world.to_root(rank, passing);
        if (!world.root()) continue;
        float* to = state[piece.unit][int(part)].data() + piece.begin;
        const float share = sync.ranks_differ() ? 1.0f / world.size() : 1.0f;
        for (const float value : passing) *to++ += share * value;
      }
    }
  }
}

void scatter_state(ParameterStore& store, GradientSync& sync, World& world,
                   std::span<const StatePart> parts, const FillState& fill) {
  std::vector<float> values;
  for (Unit& unit : store.units()) {
    for (const StatePart part : parts) {
      values.assign(unit.elements, 0.0f);
      world.together([&] {
        if (world.root()) fill(unit, part, values);
      });
      sync.load(unit, part, values);
    }
  }
}

}  // namespace lockstep
