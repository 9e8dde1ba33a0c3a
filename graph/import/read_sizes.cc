#include "graph/import/read_sizes.h"

#include "absl/strings/str_cat.h"
#include "graph/ir/text.h"

namespace tacc::graph {

void ReadHeads(ConfigReader& config, const HeadKeys& keys, int64_t default_heads, DecoderSpec& spec) {
  spec.num_heads = config.Int(keys.heads, 1, kMaxWidth, default_heads);
  spec.num_kv_heads = config.Int(keys.kv_heads, 1, kMaxWidth, spec.num_heads);
  if (spec.num_heads % spec.num_kv_heads != 0) {
    config.Fail(keys.kv_heads, absl::StrCat("does not divide ", keys.heads, " = ", spec.num_heads));
  }
  if (const auto given = config.OptionalInt(keys.head_dim, 1, kMaxWidth)) {
    spec.head_dim = *given;
  } else if (spec.head_dim == 0) {
    SetHeadDim(config, keys.heads, spec);
  }
}

void SetHeadDim(ConfigReader& config, const std::string& heads_key, DecoderSpec& spec) {
  if (spec.hidden_size % spec.num_heads != 0) {
    config.Fail(heads_key, absl::StrCat(spec.num_heads, " heads do not divide the hidden size ", spec.hidden_size));
  }
  spec.head_dim = std::max<int64_t>(1, spec.hidden_size / spec.num_heads);
}

int64_t ReadRenamed(ConfigReader& config, const std::string& key, const std::string& other, int64_t max,
                    int64_t fallback) {
  const auto first = config.OptionalInt(key, 1, max);
  const auto second = config.OptionalInt(other, 1, max);
  if (first.has_value() && second.has_value() && *first != *second) {
    config.Fail(other, absl::StrCat("says another size than ", key, " = ", *first));
  }
  return first.value_or(second.value_or(fallback));
}

Bias ReadBias(ConfigReader& config, const std::string& key, Bias fallback) {
  return config.Bool(key, fallback == Bias::kPresent) ? Bias::kPresent : Bias::kNone;
}

double ReadDropout(ConfigReader& config, const std::string& key, double fallback) {
  return config.Float(key, 0.0, 0.999, fallback);
}

void RefuseAttentionDropout(ConfigReader& config, double fallback) {
  const bool given = config.Has("attention_dropout");
  if (config.Float("attention_dropout", 0.0, 1.0, given ? 0.0 : fallback) == 0.0) return;
  config.Fail("attention_dropout",
              absl::StrCat(given ? "" : absl::StrCat("its default of ", fallback, " applies, but "),
                           "dropout inside attention is not supported; set it to 0"));
}

DecoderSpec::Activation ReadActivation(ConfigReader& config, const std::string& key, const std::string& fallback) {
  return config.Choice<DecoderSpec::Activation>(key,
                                                {{"silu", DecoderSpec::kSilu},
                                                 {"swish", DecoderSpec::kSilu},
                                                 {"gelu", DecoderSpec::kGelu},
                                                 {"gelu_new", DecoderSpec::kGeluTanh},
                                                 {"gelu_pytorch_tanh", DecoderSpec::kGeluTanh},
                                                 {"relu", DecoderSpec::kRelu}},
                                                fallback);
}

std::string NormalInit(double std) { return std == 0 ? "zeros" : absl::StrCat("normal(", Print(Attr(std)), ")"); }

}  // namespace tacc::graph
