#include "trainer/run_data.h"

namespace lockstep {
namespace {

std::unique_ptr<Batches> make_batches(const TokenSource& source,
                                      const Options& options,
                                      const BatchShape& shape) {
  return options.sampler == SamplerKind::sequential
             ? sequential_batches(source, shape)
             : random_batches(source, shape, options.seed);
}

// Opens a source on every rank and checks it, each rank its own part.
std::unique_ptr<TokenSource> open_checked(const std::string& name,
                                          const Options& options,
                                          World& world) {
  std::unique_ptr<TokenSource> source;
  world.together([&] {
    source = open_token_source(name);
    const auto part = [&](int rank) {
      return source->size() / world.size() * rank;
    };
    const bool last = world.rank() + 1 == world.size();
    check_tokens(*source, part(world.rank()),
                 last ? source->size() : part(world.rank() + 1),
                 options.model.vocab_size);
  });
  return source;
}

}  // namespace

BatchShape batch_shape(const Options& options, int rank, int world_size) {
  return {options.batch_size,
          options.model.context_length,
          options.grad_accumulation,
          options.model.vocab_size,
          rank,
          world_size};
}

RunData open_data(const Options& options, std::int64_t first_sample,
                  World& world) {
  RunData data;
  BatchShape shape = batch_shape(options, world.rank(), world.size());
  shape.first_sample = first_sample;
  if (options.data == "random") {
    data.training = noise_batches(shape, options.seed);
  } else {
    data.source = open_checked(options.data, options, world);
    world.together(
        [&] { data.training = make_batches(*data.source, options, shape); });
  }
  if (!options.validation_data.empty()) {
    data.validation_source =
        open_checked(options.validation_data, options, world);
    world.together([&] {
      BatchShape all = shape;
      all.accumulation = options.validation_batches;
      all.first_sample = 0;
      data.validation = make_batches(*data.validation_source, options, all);
    });
  }
  return data;
}

}  // namespace lockstep
