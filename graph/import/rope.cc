#include "graph/import/rope.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "graph/ir/text.h"

namespace tacc::graph {
namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr double kAny = 1e30;

// base^exponent rounded to fp32 once.
float Power(double base, double exponent) { return static_cast<float>(std::pow(base, exponent)); }

// theta^(2i/dim) in fp32.
std::vector<float> PositionFrequencies(float theta, int64_t dim) {
  std::vector<float> result;
  for (int64_t i = 0; i < dim; i += 2) result.push_back(Power(theta, static_cast<float>(i) / static_cast<float>(dim)));
  return result;
}

std::vector<float> InverseFrequencies(float theta, int64_t dim) {
  std::vector<float> result = PositionFrequencies(theta, dim);
  for (float& f : result) f = 1.0f / f;
  return result;
}

Rotary ToRotary(const std::vector<float>& inv_freq, double attention_scale) {
  Rotary rotary;
  rotary.inv_freq.assign(inv_freq.begin(), inv_freq.end());
  rotary.attention_scale = attention_scale;
  return rotary;
}

struct Yarn {
  double factor, attention_factor;
  double beta_fast, beta_slow;
  double original_length;
  enum Bounds { kWholeBounds, kExactBounds } bounds;
};

Rotary YarnRotary(double theta, int64_t dim, const Yarn& yarn) {
  auto correction_dim = [&](double rotations) {
    return dim * std::log(yarn.original_length / (rotations * 2 * kPi)) / (2 * std::log(theta));
  };
  double low = correction_dim(yarn.beta_fast);
  double high = correction_dim(yarn.beta_slow);
  if (yarn.bounds == Yarn::kWholeBounds) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  const std::vector<float> frequency = PositionFrequencies(static_cast<float>(theta), dim);
  std::vector<float> result;
  for (size_t i = 0; i < frequency.size(); ++i) {
    const float ramp = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float extrapolation_share = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
    const float extrapolation = 1.0f / frequency[i];
    const float interpolation = 1.0f / (static_cast<float>(yarn.factor) * frequency[i]);
    result.push_back(interpolation * (1.0f - extrapolation_share) + extrapolation * extrapolation_share);
  }
  return ToRotary(result, yarn.attention_factor);
}

struct Llama3 {
  double factor, low_freq_factor, high_freq_factor, original_length;
};

Rotary Llama3Rotary(double theta, int64_t dim, const Llama3& llama3) {
  const float low_wavelength = static_cast<float>(llama3.original_length / llama3.low_freq_factor);
  const float high_wavelength = static_cast<float>(llama3.original_length / llama3.high_freq_factor);
  const float factor = static_cast<float>(llama3.factor);
  std::vector<float> result;
  for (float f : InverseFrequencies(static_cast<float>(theta), dim)) {
    const float wavelength = (1.0f / f) * static_cast<float>(2 * kPi);
    if (wavelength > low_wavelength) {
      f = f / factor;
    } else if (!(wavelength < high_wavelength)) {
      const float smooth = ((1.0f / wavelength) * static_cast<float>(llama3.original_length) -
                            static_cast<float>(llama3.low_freq_factor)) /
                           static_cast<float>(llama3.high_freq_factor - llama3.low_freq_factor);
      f = (1.0f - smooth) * f / factor + smooth * f;
    }
    result.push_back(f);
  }
  return ToRotary(result, 1.0);
}

double YarnAttentionFactor(ConfigReader& rope, double factor) {
  const auto given = rope.OptionalFloat("attention_factor", 0, kAny);
  const double mscale = rope.Float("mscale", 0, kAny, 0.0);
  const double mscale_all_dim = rope.Float("mscale_all_dim", 0, kAny, 0.0);
  if (given.has_value()) return *given;
  auto get = [&](double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; };
  return mscale != 0 && mscale_all_dim != 0 ? get(mscale) / get(mscale_all_dim) : get(1.0);
}

// The object that holds the kind and its numbers: rope_parameters (transformers 5) or rope_scaling (4), or null.
const nlohmann::json* RotaryObject(ConfigReader& config) {
  const nlohmann::json* scaling = config.Object("rope_scaling");
  const nlohmann::json* parameters = config.Object("rope_parameters");
  if (scaling != nullptr && parameters != nullptr) {
    config.Fail("rope_scaling", "rope_parameters is given too, and says the same in transformers 5; keep one of them");
  }
  return scaling != nullptr ? scaling : parameters;
}

// How many dims of a head are rotated, of which an odd last one pairs with the next.
int64_t ReadRotaryDim(ConfigReader& config, ConfigReader* rope, const RotaryModel& model) {
  if (!model.partial_factor.has_value()) {
    for (ConfigReader* reader : {&config, rope}) {
      if (reader != nullptr)
        reader->RefuseUnless("partial_rotary_factor", 1.0, "this family rotates whole heads; only 1.0 is possible");
    }
    return model.head_dim;
  }
  double factor = config.Float("partial_rotary_factor", 0, 1, *model.partial_factor);
  ConfigReader* reader = &config;
  if (rope != nullptr) {
    if (rope->Has("partial_rotary_factor")) reader = rope;
    factor = rope->Float("partial_rotary_factor", 0, 1, factor);
  }
  const auto dim = static_cast<int64_t>(static_cast<double>(model.head_dim) * factor);
  if (dim < 1 || (dim + 1) / 2 * 2 > model.head_dim) {
    reader->Fail("partial_rotary_factor", absl::StrCat("rotates ", dim, " of the ", model.head_dim,
                                                       " dims of a head; wanted at least one pair, and no more than "
                                                       "there are"));
  }
  return dim;
}

}  // namespace

Rotary PlainRotary(double theta, int64_t dim) {
  Rotary rotary = ToRotary(InverseFrequencies(static_cast<float>(theta), dim), 1.0);
  rotary.facts = {{"rope_theta", Print(Attr(theta))}, {"rope_dim", absl::StrCat(dim)}};
  return rotary;
}

Rotary ReadRotary(ConfigReader& config, const RotaryModel& model) {
  const double outer_theta = config.Float("rope_theta", 1e-6, kAny, model.default_theta);
  const nlohmann::json* object = RotaryObject(config);
  if (object == nullptr) return PlainRotary(outer_theta, ReadRotaryDim(config, nullptr, model));

  ConfigReader rope(*object,
                    absl::StrCat("config.json: ", config.Has("rope_scaling") ? "rope_scaling" : "rope_parameters"));
  const std::string old_kind = rope.String("type", "default");
  const std::string kind = rope.String("rope_type", old_kind);
  if (rope.Has("type") && old_kind != kind) rope.Fail("type", absl::StrCat("rope_type says \"", kind, "\""));
  const int64_t dim = ReadRotaryDim(config, &rope, model);
  const double theta = rope.Float("rope_theta", 1e-6, kAny, outer_theta);
  Rotary rotary = PlainRotary(theta, dim);
  // Made of the plain one by these numbers.
  const auto scaled = [&](Rotary made, const std::map<std::string, double>& numbers) {
    made.facts = rotary.facts;
    made.facts["rope_type"] = kind;
    for (const auto& [name, number] : numbers) made.facts[absl::StrCat("rope_", name)] = Print(Attr(number));
    return made;
  };
  const auto max_length = static_cast<double>(model.max_position_embeddings);
  if (kind == "linear") {
    const auto factor = static_cast<float>(rope.Float("factor", 1e-6, kAny));
    for (double& f : rotary.inv_freq) f = static_cast<float>(f) / factor;
    rotary = scaled(rotary, {{"factor", factor}});
  } else if (kind == "dynamic") {
    const double factor = rope.Float("factor", 1e-6, kAny);
    if (model.seq_len > model.max_position_embeddings && dim > 2) {
      // transformers holds the length in a tensor here, so the base is an fp32 number.
      const float stretch =
          static_cast<float>(factor) * static_cast<float>(model.seq_len) / static_cast<float>(max_length) -
          static_cast<float>(factor - 1);
      rotary =
          PlainRotary(static_cast<float>(theta) *
                          Power(stretch, static_cast<float>(static_cast<double>(dim) / static_cast<double>(dim - 2))),
                      dim);
    }
    rotary.any_length = true;
  } else if (kind == "llama3") {
    Llama3 llama3;
    llama3.factor = rope.Float("factor", 1e-6, kAny);
    llama3.low_freq_factor = rope.Float("low_freq_factor", 1e-6, kAny);
    llama3.high_freq_factor = rope.Float("high_freq_factor", 1e-6, kAny);
    llama3.original_length = rope.Float("original_max_position_embeddings", 1, kAny, max_length);
    if (llama3.high_freq_factor <= llama3.low_freq_factor) {
      rope.Fail("high_freq_factor", absl::StrCat("wanted more than low_freq_factor = ", llama3.low_freq_factor));
    }
    rotary = scaled(Llama3Rotary(theta, dim, llama3), {{"factor", llama3.factor},
                                                       {"low_freq_factor", llama3.low_freq_factor},
                                                       {"high_freq_factor", llama3.high_freq_factor},
                                                       {"original_length", llama3.original_length}});
  } else if (kind == "yarn") {
    Yarn yarn;
    if (theta <= 1) {
      (rope.Has("rope_theta") ? rope : config).Fail("rope_theta", "rotary embeddings of kind yarn need more than 1");
    }
    yarn.original_length = rope.Float("original_max_position_embeddings", 1, kAny, max_length);
    yarn.factor = rope.Float("factor", 1e-6, kAny, max_length / yarn.original_length);
    yarn.attention_factor = YarnAttentionFactor(rope, yarn.factor);
    yarn.beta_fast = rope.Float("beta_fast", 0, kAny, 32.0);
    yarn.beta_slow = rope.Float("beta_slow", 0, kAny, 1.0);
    if (yarn.beta_fast == 0) yarn.beta_fast = 32.0;
    if (yarn.beta_slow == 0) yarn.beta_slow = 1.0;
    yarn.bounds = rope.Bool("truncate", true) ? Yarn::kWholeBounds : Yarn::kExactBounds;
    rope.RefuseUnless("finetuned", true, "only frequencies that the weights were finetuned with are supported");
    rotary = scaled(YarnRotary(theta, dim, yarn), {{"factor", yarn.factor},
                                                   {"attention_factor", yarn.attention_factor},
                                                   {"beta_fast", yarn.beta_fast},
                                                   {"beta_slow", yarn.beta_slow},
                                                   {"original_length", yarn.original_length}});
    if (yarn.bounds == Yarn::kExactBounds) rotary.facts["rope_truncate"] = "false";
  } else if (kind != "default") {
    rope.Fail("rope_type", absl::StrCat("the kind \"", kind,
                                        "\" is not supported; wanted one of default, dynamic, linear, llama3, yarn"));
    config.Adopt(rope);
    return rotary;  // an unknown kind's own keys would only be noise
  }
  rope.Finish(absl::StrCat("rotary embeddings of kind ", kind)).IgnoreError();
  config.Adopt(rope);
  return rotary;
}

std::vector<double> AlibiSlopes(int64_t num_heads) {
  int64_t power_of_two = 1;
  while (power_of_two * 2 <= num_heads) power_of_two *= 2;
  auto base = [](int64_t heads) {
    return static_cast<float>(std::exp2(-std::exp2(-(std::log2(static_cast<double>(heads)) - 3))));
  };
  std::vector<double> slopes;
  for (int64_t i = 1; i <= power_of_two; ++i) slopes.push_back(Power(base(power_of_two), static_cast<double>(i)));
  for (int64_t i = 1; static_cast<int64_t>(slopes.size()) < num_heads; i += 2) {
    slopes.push_back(Power(base(2 * power_of_two), static_cast<double>(i)));
  }
  return slopes;
}

std::vector<double> OlmoAlibiSlopes(int64_t num_heads, double max_bias) {
  std::vector<double> slopes;
  for (int64_t h = 1; h <= num_heads; ++h) {
    const float exponent = static_cast<float>(h) * static_cast<float>(max_bias / static_cast<double>(num_heads));
    slopes.push_back(1.0f / Power(2.0, exponent));
  }
  return slopes;
}

}  // namespace tacc::graph
