#include "config/option_table.h"

#include <limits>

#include "config/choices.h"

namespace lockstep {
namespace {

constexpr Choice<SamplerKind> samplers[] = {
    {"random", SamplerKind::random}, {"sequential", SamplerKind::sequential}};
constexpr Choice<Mode> modes[] = {{"train", Mode::train},
                                  {"forward", Mode::forward},
                                  {"forward-backward", Mode::forward_backward}};
constexpr Choice<Dtype> gradient_dtypes[] = {{"fp32", Dtype::f32},
                                             {"bf16", Dtype::bf16}};
constexpr Choice<Timing> timings[] = {{"events", Timing::events},
                                      {"sync", Timing::sync}};
constexpr Choice<GraphUse> graph_uses[] = {{"auto", GraphUse::automatic},
                                           {"on", GraphUse::on},
                                           {"off", GraphUse::off}};
constexpr Choice<OnNonFinite> on_nonfinites[] = {{"stop", OnNonFinite::stop},
                                                 {"skip", OnNonFinite::skip}};
constexpr Choice<OnDrift> on_drifts[] = {{"stop", OnDrift::stop},
                                         {"repair", OnDrift::repair}};
constexpr Choice<DryRun> dry_runs[] = {
    {"true", DryRun::text}, {"false", DryRun::off}, {"csv", DryRun::csv}};
constexpr Choice<Progress> progresses[] = {{"auto", Progress::automatic},
                                           {"plain", Progress::plain},
                                           {"off", Progress::off}};

constexpr NumberRange positive{"a number above 0",
                               [](float x) { return x > 0; }};
constexpr NumberRange non_negative{"a number of 0 or more",
                                   [](float x) { return x >= 0; }};
constexpr NumberRange fraction{"a number of at least 0 and below 1",
                               [](float x) { return x >= 0 && x < 1; }};

OptionValue count(std::int64_t& field, std::int64_t low = 1,
                  std::int64_t high = std::numeric_limits<int>::max()) {
  return whole(field, low, high);
}

OptionValue step_set(StepSet& field) {
  return {"steps such as 1,5-8",
          [&field](const std::string& given) {
            const auto steps = StepSet::parse(given);
            if (steps) field = *steps;
            return steps.has_value();
          },
          [&field] { return field.text(); }};
}

// A level by its name, or block:K.
OptionValue recompute(Recompute& field) {
  static constexpr Choice<RecomputeLevel> levels[] = {
      {"none", RecomputeLevel::none},
      {"norms", RecomputeLevel::norms},
      {"ffn", RecomputeLevel::ffn},
      {"attention", RecomputeLevel::attention},
      {"block", RecomputeLevel::block}};
  OptionValue value = choice(field.level, levels);
  const OptionValue blocks = count(field.blocks, 1, 10000);
  value.accepts += ", or block:K with K from 1 to 10000";
  value.set = [&field, level = value.set, blocks](const std::string& given) {
    constexpr std::string_view prefix = "block:";
    if (given.starts_with(prefix)) {
      return blocks.set(given.substr(prefix.size())) && level("block");
    }
    if (!level(given)) return false;
    field.blocks = 1;
    return true;
  };
  value.get = [level = value.get, blocks, &field] {
    return field.blocks == 1 ? level() : level() + ":" + blocks.get();
  };
  value.choices.clear();
  return value;
}

// A name that sets the four values of the shape.
OptionValue model_size(Options& o) {
  OptionValue value = name(o.model_size, model_size_names());
  value.set = [&o, set = value.set](const std::string& given) {
    if (!set(given)) return false;
    apply_model_size(given, o.model);
    return true;
  };
  return value;
}

}  // namespace

std::vector<OptionGroup> option_table(
    Options& o, std::span<const std::string_view> sync_names) {
  const std::vector<std::string_view> syncs(sync_names.begin(),
                                            sync_names.end());
  // Widths have a limit that keeps every product of them inside 64 bits.
  constexpr std::int64_t widest = 1 << 20;
  constexpr auto any_seed = std::numeric_limits<std::uint64_t>::max();
  return {
      {"Model",
       {{"model-size", "NAME", model_size(o),
         "sets d-model, d-ff, num-layers and num-heads, where they are not "
         "given themselves"},
        {"vocab-size", "N", count(o.model.vocab_size), "token ids are 0 … N-1"},
        {"context-length", "N", count(o.model.context_length),
         "tokens of a sequence"},
        {"d-model", "N", count(o.model.d_model, 1, widest),
         "width of the residual stream"},
        {"d-ff", "N", count(o.model.d_ff, 1, 4 * widest),
         "width of the feed-forward layer"},
        {"num-layers", "N", count(o.model.num_layers, 1, 10000),
         "transformer blocks"},
        {"num-heads", "N", count(o.model.num_heads, 1, widest),
         "attention heads; divides d-model"},
        {"rope-theta", "X", number(o.model.rope_theta, positive),
         "base of the rotary position frequencies"}}},
      {"Data",
       {{"data", "SOURCE", text(o.data),
         "tokens to train on: FILE.npy, FILE.bin, FILE.h5:/dataset, FILE.txt "
         "(bytes), or random"},
        {"validation-data", "SOURCE", text(o.validation_data),
         "tokens to validate on"},
        {"validation-every", "N", count(o.validation_every, 0),
         "steps between validations; 0: never"},
        {"validation-batches", "N", count(o.validation_batches),
         "batches per rank and validation"},
        {"sampler", "NAME", choice(o.sampler, samplers),
         "order of the sequences"}}},
      {"Run",
       {{"steps", "N", count(o.steps), "optimizer steps"},
        {"warmup-iterations", "N", count(o.warmup_iterations, 0),
         "further steps before these, which train as they do and which "
         "statistics leave out"},
        {"batch-size", "N", count(o.batch_size),
         "sequences per rank and micro-step"},
        {"grad-accumulation", "N", count(o.grad_accumulation),
         "micro-steps per step"},
        {"seed", "N", whole(o.seed, std::uint64_t{0}, any_seed),
         "of initial weights, sampling and random tokens"},
        {"recompute", "NAME", recompute(o.recompute),
         "activations to compute again in the backward pass rather than to "
         "keep: none, norms, ffn, attention, block, "
         "or block:K, which keeps every K-th block's input"},
        {"attention", "NAME", choice(o.attention, attentions),
         "tile by tile, or with scores as whole matrices, whose memory grows "
         "with the square of the context"},
        {"mode", "NAME", choice(o.mode, modes), "what a step does"}}},
      {"Optimizer",
       {{"lr", "X", number(o.lr, positive), "peak learning rate"},
        {"min-lr", "X", number(o.min_lr, non_negative),
         "learning rate after the decay", "lr/10"},
        {"warmup-steps", "N", count(o.warmup_steps, 0),
         "steps of linear warm-up"},
        {"decay-steps", "N", count(o.decay_steps),
         "step at which the cosine decay ends", "the last step"},
        {"weight-decay", "X", number(o.weight_decay, non_negative),
         "of AdamW, decoupled"},
        {"decay-norms", "[=BOOL]", choice(o.decay_norms, booleans),
         "whether weight decay applies to the norms' weights"},
        {"beta1", "X", number(o.beta1, fraction), "decay of the first moment"},
        {"beta2", "X", number(o.beta2, fraction), "decay of the second moment"},
        {"adam-eps", "X", number(o.adam_eps, positive),
         "added to the root of the second moment"},
        {"clip", "X", number(o.clip, non_negative),
         "largest global gradient norm; 0: off"}}},
      {"System",
       {{"device", "NAME", choice(o.device, devices),
         "what to compute on; auto takes a GPU where there is one"},
        {"precision", "NAME", choice(o.precision, precisions),
         "how numbers are stored and multiplied"},
        {"grad-dtype", "NAME", choice(o.grad_dtype, gradient_dtypes),
         "of the gradients that are kept and added up; bf16, with --precision "
         "bf16, halves their memory and what is sent"},
        {"sync", "NAME", name(o.sync, syncs),
         "gradient-sync module; naive on several ranks", "none"},
        {"bucket-mb", "X", number(o.bucket_mb, positive),
         "MiB of gradients in a bucket of bucketed and sharded-optimizer"},
        {"reduce-dtype", "NAME", choice(o.reduce_dtype, gradient_dtypes),
         "of gradients on the wire", "grad-dtype"},
        {"fsdp-prefetch", "N", whole(o.fsdp_prefetch, 0, 64),
         "units that fsdp gathers ahead of their use"},
        {"local-steps", "N", count(o.local_steps),
         "steps between the averages of local-sgd"},
        {"share-gpu", "[=BOOL]", choice(o.share_gpu, booleans),
         "let several ranks use one GPU"},
        {"threads", "N", whole(o.threads, 0, 4096),
         "CPU threads per rank; 0: the rank's share of the cores"},
        {"graph", "NAME", choice(o.graph, graph_uses),
         "launch a step as one CUDA graph; auto does on one rank with a GPU "
         "and --timing events"},
        {"gemm-cache", "FILE", text(o.gemm_cache),
         "measure which of cuBLASLt's algorithms is fastest for each product, "
         "and keep it in this file"},
        {"timeout", "X", number(o.timeout, non_negative),
         "seconds after which a collective counts as stuck and ends the run; "
         "0: never"}}},
      {"Checkpoints",
       {{"checkpoint", "DIR", text(o.checkpoint),
         "folder to keep checkpoints in"},
        {"checkpoint-every", "N", count(o.checkpoint_every, 0),
         "steps between checkpoints; 0: only when the run ends or is stopped"},
        {"keep", "N", count(o.keep), "newest checkpoints to keep"},
        {"resume", "auto|PATH", text(o.resume),
         "go on from a checkpoint: auto takes the newest of --checkpoint, or "
         "begins where there is none; a folder means its newest"}}},
      {"Faults",
       {{"on-nonfinite", "NAME", choice(o.on_nonfinite, on_nonfinites),
         "what to do after a step whose gradient is not finite, which changes "
         "no weights"},
        {"verify-every", "N", count(o.verify_every, 0),
         "steps between comparisons of what ranks hold alike; 0: never"},
        {"on-drift", "NAME", choice(o.on_drift, on_drifts),
         "what to do if they differ; repair copies rank 0's"}}},
      {"Planning",
       {{"print-world", "[=BOOL]", choice(o.print_world, booleans),
         "print where each rank runs and what is wrong with that, and train "
         "nothing"},
        {"dry-run", "[=BOOL|csv]", choice(o.dry_run, dry_runs),
         "print what a rank would hold and send, and train nothing; csv: in "
         "exact bytes, for programs to read"},
        {"world-size", "N", whole(o.world_size, 0, 1 << 20),
         "ranks of a dry run; 0: those that were started"}}},
      {"Output",
       {{"output", "FILE.h5", path(o.output), "the run record"},
        {"timing", "NAME", choice(o.timing, timings),
         "clock of the phases; sync waits for the device after each, which "
         "costs speed"},
        {"memory-timeline", "STEPS", step_set(o.memory_timeline),
         "record every allocation that these steps find or make: 1,5-8"},
        {"trace", "STEPS", step_set(o.trace),
         "record when phases, units and collectives of these steps began and "
         "ended"},
        {"save-weights", "FILE.h5", text(o.save_weights),
         "write the final weights"},
        {"init", "FILE.h5[:/GROUP]", text(o.init), "read the initial weights"},
        {"generate", "N", count(o.generate, 0),
         "tokens to sample from the model at the end"},
        {"progress", "NAME", choice(o.progress, progresses),
         "what to show while it runs"}}},
  };
}

}  // namespace lockstep
