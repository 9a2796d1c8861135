#pragma once

#include "config/option_value.h"
#include "config/options.h"

// Names that options of several programs take, with what they stand for.
namespace lockstep {

inline constexpr Choice<bool> booleans[] = {{"true", true}, {"false", false}};
inline constexpr Choice<DeviceChoice> devices[] = {
    {"auto", DeviceChoice::automatic},
    {"cpu", DeviceChoice::cpu},
    {"cuda", DeviceChoice::cuda}};
inline constexpr Choice<Precision> precisions[] = {{"fp32", Precision::fp32},
                                                   {"tf32", Precision::tf32},
                                                   {"bf16", Precision::bf16}};
inline constexpr Choice<AttentionKind> attentions[] = {
    {"flash", AttentionKind::flash}, {"naive", AttentionKind::naive}};

}  // namespace lockstep
