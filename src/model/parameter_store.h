#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "model/model_config.h"
#include "ops/ops.h"

namespace lockstep {

struct Unit;

// One named tensor of the state dict: a place in its unit's flat buffers.
struct Parameter {
  std::string name;         // "layers.0.attn.q_proj.weight"
  Shape shape;              // [out, in], or [d] for a norm
  std::int64_t offset = 0;  // first element in the unit
  double init_std = 0;      // N(0, init_std²) truncated at ±3σ; 0: all ones
  int index = 0;            // position in the whole state dict
  Unit* unit = nullptr;

  std::int64_t elements() const { return shape.elements(); }
  bool is_norm() const { return shape.rank() == 1; }
  Tensor value() const;     // compute dtype, in the unit's parameters
  Tensor gradient() const;  // in the unit's gradients
};

// A group of parameters that are used together (the embedding, one block, or
// the final norm and the head), laid out in one flat buffer, as are their
// gradients. The layout is fixed; the memory is the gradient-sync module's,
// which points `parameters` and `gradients` at whatever it holds. Gaps and the
// tail are padding: zero from the start and never anything else.
struct Unit {
  std::string name;  // "layers.0"
  int index = 0;
  std::int64_t elements = 0;  // padded: divides by 64 and by the world size
  std::deque<Parameter> members;

  Tensor parameters;  // compute dtype [elements], or empty while not held
  Tensor gradients;   // f32 or bf16 [elements], or empty while not held
  // Whether gradients hold sums to add to. If not, what is written first
  // replaces what is there, and nobody needs to zero it.
  Accumulate accumulate = Accumulate::no;
};

// The parts of a unit's flat buffer that are padding.
std::vector<Tensor> padding_of(const Unit& unit, const Tensor& flat);

// The layout of all trainable parameters. Holds no memory on a device.
class ParameterStore {
 public:
  // Units in the order of the forward pass. q, k, v of a block are adjacent,
  // as are w1 and w3, so that one matrix product serves each group; every
  // group starts at a multiple of 64 elements.
  ParameterStore(const ModelConfig& config, int world_size);
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;
  ~ParameterStore() = default;

  std::deque<Unit>& units() { return units_; }
  const std::deque<Unit>& units() const { return units_; }
  Unit& embedding() { return units_.front(); }
  Unit& block(std::int64_t layer) { return units_[layer + 1]; }
  Unit& head() { return units_.back(); }

  // Every parameter in state-dict order, which is the order of the forward
  // pass.
  std::vector<Parameter*> parameters();
  std::int64_t elements() const;  // without padding

 private:
  std::deque<Unit> units_;
};

// Initial weights of one unit as the seed gives them, padding zero: f32
// [unit.elements] on the host. The same on every rank, device and strategy.
void initial_values(const Unit& unit, std::uint64_t seed,
                    std::span<float> values);

}  // namespace lockstep
