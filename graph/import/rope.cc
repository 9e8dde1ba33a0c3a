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

// What cosines and sines are multiplied by, and scores where mscale_all_dim is for them (Rotary::score_scale).
struct YarnScales {
  double attention = 1, score = 1;
};
YarnScales ReadYarnScales(ConfigReader& rope, double factor) {
  const auto given = rope.OptionalFloat("attention_factor", 0, kAny);
  const double mscale = rope.Float("mscale", 0, kAny, 0.0);
  const double mscale_all_dim = rope.Float("mscale_all_dim", 0, kAny, 0.0);
  auto get = [&](double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; };
  YarnScales scales;
  if (mscale_all_dim != 0) scales.score = get(mscale_all_dim) * get(mscale_all_dim);
  scales.attention = given.value_or(mscale != 0 && mscale_all_dim != 0 ? get(mscale) / get(mscale_all_dim) : get(1.0));
  return scales;
}

// What the kinds are made of.
struct PlainRope {
  ConfigReader& config;
  ConfigReader& rope;  // the object that says the kind and its numbers
  const RotaryModel& model;
  std::string kind;
  double theta;
  int64_t dim;
  Rotary rotary;  // of kind default

  double max_length() const { return static_cast<double>(model.max_position_embeddings); }
  // `made` of the plain one by these numbers.
  Rotary With(Rotary made, const std::map<std::string, double>& numbers) const {
    made.facts = rotary.facts;
    made.facts["rope_type"] = kind;
    for (const auto& [name, number] : numbers) made.facts[absl::StrCat("rope_", name)] = Print(Attr(number));
    return made;
  }
};

Rotary ReadLinear(PlainRope& plain) {
  const auto factor = static_cast<float>(plain.rope.Float("factor", 1e-6, kAny));
  Rotary made = plain.rotary;
  for (double& f : made.inv_freq) f = static_cast<float>(f) / factor;
  return plain.With(std::move(made), {{"factor", factor}});
}

Rotary ReadDynamic(PlainRope& plain) {
  const double factor = plain.rope.Float("factor", 1e-6, kAny);
  Rotary made = plain.rotary;
  const RotaryModel& model = plain.model;
  if (model.seq_len > model.max_position_embeddings && plain.dim > 2) {
    // transformers holds the length in a tensor here, so the base is an fp32 number.
    const float stretch =
        static_cast<float>(factor) * static_cast<float>(model.seq_len) / static_cast<float>(plain.max_length()) -
        static_cast<float>(factor - 1);
    const auto dim = static_cast<double>(plain.dim);
    made =
        PlainRotary(static_cast<float>(plain.theta) * Power(stretch, static_cast<float>(dim / (dim - 2))), plain.dim);
  }
  made.any_length = true;
  return made;
}

Rotary ReadLlama3(PlainRope& plain) {
  ConfigReader& rope = plain.rope;
  Llama3 llama3;
  llama3.factor = rope.Float("factor", 1e-6, kAny);
  llama3.low_freq_factor = rope.Float("low_freq_factor", 1e-6, kAny);
  llama3.high_freq_factor = rope.Float("high_freq_factor", 1e-6, kAny);
  llama3.original_length = rope.Float("original_max_position_embeddings", 1, kAny, plain.max_length());
  if (llama3.high_freq_factor <= llama3.low_freq_factor) {
    rope.Fail("high_freq_factor", absl::StrCat("wanted more than low_freq_factor = ", llama3.low_freq_factor));
  }
  return plain.With(Llama3Rotary(plain.theta, plain.dim, llama3), {{"factor", llama3.factor},
                                                                   {"low_freq_factor", llama3.low_freq_factor},
                                                                   {"high_freq_factor", llama3.high_freq_factor},
                                                                   {"original_length", llama3.original_length}});
}

Rotary ReadYarn(PlainRope& plain) {
  ConfigReader& rope = plain.rope;
  Yarn yarn;
  if (plain.theta <= 1) {
    (rope.Has("rope_theta") ? rope : plain.config)
        .Fail("rope_theta", "rotary embeddings of kind yarn need more than 1");
  }
  yarn.original_length = rope.Float("original_max_position_embeddings", 1, kAny, plain.max_length());
  yarn.factor = rope.Float("factor", 1e-6, kAny, plain.max_length() / yarn.original_length);
  const YarnScales scales = ReadYarnScales(rope, yarn.factor);
  yarn.attention_factor = scales.attention;
  yarn.beta_fast = rope.Float("beta_fast", 0, kAny, 32.0);
  yarn.beta_slow = rope.Float("beta_slow", 0, kAny, 1.0);
  if (yarn.beta_fast == 0) yarn.beta_fast = 32.0;
  if (yarn.beta_slow == 0) yarn.beta_slow = 1.0;
  yarn.bounds = rope.Bool("truncate", true) ? Yarn::kWholeBounds : Yarn::kExactBounds;
  rope.RefuseUnless("finetuned", true, "only frequencies that the weights were finetuned with are supported");
  Rotary made = plain.With(YarnRotary(plain.theta, plain.dim, yarn), {{"factor", yarn.factor},
                                                                      {"attention_factor", yarn.attention_factor},
                                                                      {"beta_fast", yarn.beta_fast},
                                                                      {"beta_slow", yarn.beta_slow},
                                                                      {"original_length", yarn.original_length}});
  if (yarn.bounds == Yarn::kExactBounds) made.facts["rope_truncate"] = "false";
  made.score_scale = scales.score;
  return made;
}

// Each frequency is divided by a factor of its own, those of short samples or those of long ones.
Rotary ReadLongrope(PlainRope& plain) {
  ConfigReader& rope = plain.rope;
  const double given = rope.Float("original_max_position_embeddings", 1, kAny, plain.max_length());
  const double original = plain.model.original_length > 0 ? static_cast<double>(plain.model.original_length) : given;
  const double factor = rope.Float("factor", 1e-6, kAny, plain.max_length() / original);
  const auto wanted = rope.OptionalFloat("attention_factor", 0, kAny);
  if (!wanted.has_value() && factor > 1 && original <= 1) {
    rope.Fail("original_max_position_embeddings", "wanted more than 1, or attention_factor beside it");
  }
  const double attention = wanted.value_or(factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(original)));
  const std::string read = static_cast<double>(plain.model.seq_len) > original ? "long_factor" : "short_factor";
  const size_t count = plain.rotary.inv_freq.size();
  std::vector<double> factors;
  for (const char* name : {"short_factor", "long_factor"}) {
    const std::vector<double> given_factors = rope.Floats(name, 1e-6, kAny);
    if (given_factors.size() != count) {
      rope.Fail(name, absl::StrCat("has ", given_factors.size(), " entries; wanted one for each of ", count, " pairs"));
    }
    if (name == read) factors = given_factors;
  }
  if (factors.size() != count) return plain.rotary;
  const std::vector<float> frequencies = PositionFrequencies(static_cast<float>(plain.theta), plain.dim);
  std::vector<float> inverse;
  for (size_t i = 0; i < count; ++i) inverse.push_back(1.0f / (static_cast<float>(factors[i]) * frequencies[i]));
  Rotary made = plain.With(ToRotary(inverse, attention), {{"attention_factor", attention}});
  made.facts[absl::StrCat("rope_", read)] = Print(Attr(factors));
  return made;
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
  const std::string& key = model.partial_key;
  if (!model.partial_factor.has_value()) {
    for (ConfigReader* reader : {&config, rope}) {
      if (reader != nullptr)
        reader->RefuseUnless("partial_rotary_factor", 1.0, "this family rotates whole heads; only 1.0 is possible");
    }
    return model.head_dim;
  }
  double factor = config.Float(key, 0, 1, *model.partial_factor);
  ConfigReader* reader = &config;
  std::string said = key;
  if (rope != nullptr) {
    if (rope->Has("partial_rotary_factor")) {
      reader = rope;
      said = "partial_rotary_factor";
    }
    factor = rope->Float("partial_rotary_factor", 0, 1, factor);
  }
  const auto dim = static_cast<int64_t>(static_cast<double>(model.head_dim) * factor);
  if (dim < 1 || (dim + 1) / 2 * 2 > model.head_dim) {
    reader->Fail(said, absl::StrCat("rotates ", dim, " of the ", model.head_dim,
                                    " dims of a head; wanted at least one pair, and no more than there are"));
  }
  return dim;
}

// What the object in `rope` says; config.json's problems and its theta are the defaults.
Rotary ReadRotaryObject(ConfigReader& config, ConfigReader& rope, double default_theta, const RotaryModel& model) {
  static const std::map<std::string, Rotary (*)(PlainRope&)> kKinds = {{"dynamic", ReadDynamic},
                                                                       {"linear", ReadLinear},
                                                                       {"llama3", ReadLlama3},
                                                                       {"longrope", ReadLongrope},
                                                                       {"yarn", ReadYarn}};
  const std::string old_kind = rope.String("type", "default");
  std::string kind = rope.String("rope_type", old_kind);
  if (rope.Has("type") && old_kind != kind) rope.Fail("type", absl::StrCat("rope_type says \"", kind, "\""));
  if (model.kinds == RotaryModel::kLong && (kind == "su" || kind == "yarn")) kind = "longrope";
  const int64_t dim = ReadRotaryDim(config, &rope, model);
  const double theta = rope.Float("rope_theta", 1e-6, kAny, default_theta);
  PlainRope plain{config, rope, model, kind, theta, dim, PlainRotary(theta, dim)};
  Rotary rotary = plain.rotary;
  const auto read = kKinds.find(kind);
  const bool is_known = read != kKinds.end() && (model.kinds == RotaryModel::kAll || kind == "longrope");
  if (is_known) {
    rotary = read->second(plain);
  } else if (kind != "default") {
    const char* kinds =
        model.kinds == RotaryModel::kAll ? "default, dynamic, linear, llama3, longrope, yarn" : "default, longrope";
    rope.Fail("rope_type", absl::StrCat("the kind \"", kind, "\" is not supported; wanted one of ", kinds));
    config.Adopt(rope);
    return rotary;  // an unknown kind's own keys would only be noise
  }
  rope.Finish(absl::StrCat("rotary embeddings of kind ", kind)).IgnoreError();
  config.Adopt(rope);
  return rotary;
}

}  // namespace

Rotary PlainRotary(double theta, int64_t dim) {
  Rotary rotary = ToRotary(InverseFrequencies(static_cast<float>(theta), dim), 1.0);
  rotary.facts = {{"rope_theta", Print(Attr(theta))}, {"rope_dim", absl::StrCat(dim)}};
  return rotary;
}

Rotary ReadRotary(ConfigReader& config, const RotaryModel& model) {
  const double theta = config.Float(model.theta_key, 1e-6, kAny, model.default_theta);
  const nlohmann::json* object = RotaryObject(config);
  if (object == nullptr && model.absent.is_object()) object = &model.absent;
  if (object == nullptr) return PlainRotary(theta, ReadRotaryDim(config, nullptr, model));
  ConfigReader rope(*object,
                    absl::StrCat("config.json: ", config.Has("rope_scaling") ? "rope_scaling" : "rope_parameters"));
  return ReadRotaryObject(config, rope, theta, model);
}

LayerRotaries ReadLayerRotaries(ConfigReader& config, const RotaryModel& model, double full_theta,
                                double sliding_theta) {
  const nlohmann::json* scaling = config.Object("rope_scaling");
  const nlohmann::json* parameters = config.Object("rope_parameters");
  const nlohmann::json empty = nlohmann::json::object();
  const nlohmann::json* objects[2] = {&empty, &empty};
  constexpr const char* kTypes[2] = {"full_attention", "sliding_attention"};
  std::string places[2] = {"config.json: rope_scaling", "config.json: rope_parameters: sliding_attention"};
  if (scaling != nullptr && parameters != nullptr)
    config.Fail("rope_scaling", "rope_parameters is given too; keep one of them");
  if (scaling != nullptr) {
    objects[0] = scaling;
  } else if (parameters != nullptr) {
    ConfigReader by_type(*parameters, "config.json: rope_parameters");
    for (int i = 0; i < 2; ++i) {
      places[i] = absl::StrCat("config.json: rope_parameters: ", kTypes[i]);
      if (const nlohmann::json* object = by_type.Object(kTypes[i]); object != nullptr) objects[i] = object;
    }
    by_type.Finish("rotary embeddings by type of layer (full_attention, sliding_attention)").IgnoreError();
    config.Adopt(by_type);
  }
  ConfigReader full(*objects[0], places[0]), sliding(*objects[1], places[1]);
  LayerRotaries rotaries;
  rotaries.full = ReadRotaryObject(config, full, full_theta, model);
  rotaries.sliding = ReadRotaryObject(config, sliding, sliding_theta, model);
  return rotaries;
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
