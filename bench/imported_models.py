"""The models of bench/imported.py: unmodified classes with random weights, of sizes that two cores train in some tenths of a second a step, and a batch of each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
import transformers
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests/exporting"))

VOCABULARY, CLASSES = 8000, 1000
LARGE_VOCABULARY = 32_000


@dataclass
class Model:
    """`loss`: of what the module returns and of the batch, where the module has none of its own. `inputs`: those of the batch that the module takes."""

    module: nn.Module
    batch: dict[str, torch.Tensor]
    loss: Callable[[Any, Any], torch.Tensor] | None = None
    inputs: list[str] = field(default_factory=list)

    def run(self, module: Callable[..., Any]) -> torch.Tensor:
        """The loss of a module that is this one, or was made of it."""
        if self.loss is None:
            return module(**self.batch)["loss"]
        return self.loss(module(**{name: self.batch[name] for name in self.inputs}), self.batch)


def ids(samples: int, length: int, vocabulary: int = VOCABULARY) -> torch.Tensor:
    return torch.randint(3, vocabulary, (samples, length))


def classes(samples: int) -> torch.Tensor:
    return torch.randint(0, CLASSES, (samples,))


def hf(class_name: str, config_name: str, batch: dict[str, torch.Tensor], **config: Any) -> Model:
    module = getattr(transformers, class_name)(getattr(transformers, config_name)(**config))
    module.config.use_cache = False
    return Model(module, batch)


def tokens(samples: int, length: int, vocabulary: int = VOCABULARY) -> dict[str, torch.Tensor]:
    made = ids(samples, length, vocabulary)
    return {"input_ids": made, "labels": made.clone()}


def pictures(samples: int, size: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(samples, 3, size, size), "labels": classes(samples)}


def decoder(class_name: str, config_name: str, **config: Any) -> Model:
    """A language model of 384 features; Hugging Face's names of sizes are the same in all of these."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2,
             "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    return hf(class_name, config_name, tokens(4, 128), **(sizes | config))


def classified(module: nn.Module, size: int, samples: int = 8) -> Model:
    """Of torchvision, which has the logits alone."""
    batch = {"x": torch.randn(samples, 3, size, size), "labels": classes(samples)}
    return Model(module, batch, lambda logits, batch: F.cross_entropy(logits, batch["labels"]), ["x"])


def gpt2() -> Model:
    return hf("GPT2LMHeadModel", "GPT2Config", tokens(4, 256, LARGE_VOCABULARY), n_positions=256, bos_token_id=0, eos_token_id=0, n_embd=512, n_layer=6, n_head=8,
              vocab_size=LARGE_VOCABULARY)


def bert() -> Model:
    batch = tokens(8, 128, LARGE_VOCABULARY) | {"attention_mask": torch.ones(8, 128, dtype=torch.int64)}
    batch["attention_mask"][::2, 100:] = 0
    return hf("BertForMaskedLM", "BertConfig", batch, max_position_embeddings=128, hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048,
              vocab_size=LARGE_VOCABULARY)


def bert_classes() -> Model:
    batch = {"input_ids": ids(8, 128), "attention_mask": torch.ones(8, 128, dtype=torch.int64), "labels": classes(8)}
    batch["attention_mask"][::2, 100:] = 0
    return hf("BertForSequenceClassification", "BertConfig", batch, max_position_embeddings=128, hidden_size=384, num_hidden_layers=4, num_attention_heads=6,
              intermediate_size=1536, vocab_size=VOCABULARY, num_labels=CLASSES)


def vit() -> Model:
    return hf("ViTForImageClassification", "ViTConfig", pictures(8, 224), image_size=224, patch_size=16, num_labels=CLASSES, hidden_size=384, num_hidden_layers=6,
              num_attention_heads=6, intermediate_size=1536)


def whisper() -> Model:
    batch = {"input_features": torch.randn(4, 80, 1000), "labels": ids(4, 64, LARGE_VOCABULARY)}
    return hf("WhisperForConditionalGeneration", "WhisperConfig", batch, max_source_positions=500, max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=1,
              decoder_start_token_id=2, d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6, decoder_attention_heads=6, encoder_ffn_dim=1536,
              decoder_ffn_dim=1536, vocab_size=LARGE_VOCABULARY)


def t5() -> Model:
    batch = {"input_ids": ids(4, 128, LARGE_VOCABULARY), "labels": ids(4, 128, LARGE_VOCABULARY)}
    return hf("T5ForConditionalGeneration", "T5Config", batch, decoder_start_token_id=0, d_model=512, d_kv=64, d_ff=1024, num_layers=4, num_heads=8,
              vocab_size=LARGE_VOCABULARY)


def neox() -> Model:
    return hf("GPTNeoXForCausalLM", "GPTNeoXConfig", tokens(4, 128), vocab_size=VOCABULARY, hidden_size=384, intermediate_size=1536, num_hidden_layers=4,
              num_attention_heads=6, bos_token_id=0, eos_token_id=0)


def deepseek() -> Model:
    return decoder("DeepseekV3ForCausalLM", "DeepseekV3Config", num_key_value_heads=6, kv_lora_rank=64, q_lora_rank=128, qk_rope_head_dim=32, qk_nope_head_dim=32,
                   v_head_dim=64, moe_intermediate_size=256, n_routed_experts=8, num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1)


def mamba() -> Model:
    return hf("MambaForCausalLM", "MambaConfig", tokens(4, 32), vocab_size=VOCABULARY, hidden_size=256, state_size=16, num_hidden_layers=2)


def rnn() -> Model:
    import torch_models

    class Recurrent(torch_models.Recurrent):
        def __init__(self) -> None:
            super().__init__("RNN")
            self.embedding, self.layers, self.head = nn.Embedding(VOCABULARY, 256), nn.RNN(256, 256, 2, batch_first=True), nn.Linear(256, VOCABULARY)

    return Model(Recurrent(), {"tokens": ids(16, 32), "labels": ids(16, 32)})


def convnext() -> Model:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return classified(ConvNeXt([CNBlockConfig(96, 192, 2), CNBlockConfig(192, 384, 2), CNBlockConfig(384, None, 2)], num_classes=CLASSES), 96)


def efficientnet() -> Model:
    from torchvision.models.efficientnet import EfficientNet, _efficientnet_conf

    settings, last = _efficientnet_conf("efficientnet_b0", width_mult=1.0, depth_mult=1.0)
    return classified(EfficientNet(settings, dropout=0.2, num_classes=CLASSES, last_channel=last), 96)


def swin() -> Model:
    from torchvision.models.swin_transformer import SwinTransformer

    return classified(SwinTransformer([4, 4], 96, [2, 2], [3, 6], [4, 4], num_classes=CLASSES), 128)


def clip() -> Model:
    from image_models import contrast

    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4}
    text = sizes | {"vocab_size": VOCABULARY, "max_position_embeddings": 32, "eos_token_id": VOCABULARY - 1, "bos_token_id": 1, "pad_token_id": 0}
    batch = {"input_ids": ids(8, 32), "attention_mask": torch.ones(8, 32, dtype=torch.int64), "pixel_values": torch.randn(8, 3, 112, 112)}
    model = hf("CLIPModel", "CLIPConfig", batch, text_config=text, vision_config=sizes | {"image_size": 112, "patch_size": 8}, projection_dim=256)
    model.loss, model.inputs = contrast, list(batch)
    return model


_SPEECH = {"hidden_size": 256, "conv_dim": (128, 128, 128), "conv_kernel": (10, 3, 3), "conv_stride": (5, 4, 4), "num_conv_pos_embeddings": 16,
           "num_conv_pos_embedding_groups": 4, "apply_spec_augment": False, "layerdrop": 0.0}


def wav2vec2() -> Model:
    batch = {"input_values": torch.randn(4, 16_000), "labels": classes(4)}
    return hf("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", batch, num_feat_extract_layers=3, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
              classifier_proj_size=256, num_labels=CLASSES, **_SPEECH)


def speecht5() -> Model:
    batch = {"input_values": torch.randn(4, 16_000), "labels": ids(4, 32)}
    return hf("SpeechT5ForSpeechToText", "SpeechT5Config", batch, vocab_size=VOCABULARY, encoder_layers=3, encoder_attention_heads=4, encoder_ffn_dim=1024, decoder_layers=3,
              decoder_attention_heads=4, decoder_ffn_dim=1024, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2, encoder_layerdrop=0.0,
              decoder_layerdrop=0.0, **_SPEECH)


def unet() -> Model:
    from image_models import UNet

    images = {"image": torch.randn(8, 3, 64, 64), "noise": torch.randn(8, 3, 64, 64), "time": torch.rand(8)}
    return Model(UNet(32), images)


def dit() -> Model:
    from image_models import CLASSES as DIT_CLASSES
    from image_models import DiT

    images = {"image": torch.randn(8, 3, 32, 32), "noise": torch.randn(8, 3, 32, 32), "time": torch.rand(8)}
    return Model(DiT(256, 32), images | {"label": torch.randint(0, DIT_CLASSES, (8,))})


def convnext_of_timm() -> Model:
    return classified(timm.models.ConvNeXt(depths=(1, 1, 2, 1), dims=(64, 128, 256, 512), num_classes=CLASSES), 96)


def vit_of_timm() -> Model:
    return classified(timm.models.VisionTransformer(img_size=128, patch_size=16, embed_dim=384, depth=4, num_heads=6, num_classes=CLASSES), 128)


def swin_of_timm() -> Model:
    module = timm.models.SwinTransformer(
        img_size=128, patch_size=4, embed_dim=96, depths=(2, 2), num_heads=(3, 6), window_size=4, drop_path_rate=0.0, num_classes=CLASSES
    )
    return classified(module, 128)


def efficientnet_of_timm() -> Model:
    return classified(timm.models.efficientnet._gen_efficientnet("efficientnet_b0", num_classes=CLASSES), 96)


# By the names of docs/architectures.md.
MODELS: dict[str, Callable[[], Model]] = {
    "LLaMA": lambda: decoder("LlamaForCausalLM", "LlamaConfig"),
    "Qwen 3": lambda: decoder("Qwen3ForCausalLM", "Qwen3Config", head_dim=64),
    "Gemma 3": lambda: decoder("Gemma3ForCausalLM", "Gemma3TextConfig", head_dim=64, sliding_window=64, layer_types=["sliding_attention", "full_attention"] * 2),
    "GPT-2": gpt2,
    "GPT-NeoX": neox,
    "Phi-3": lambda: decoder("Phi3ForCausalLM", "Phi3Config"),
    "DeepSeek-V3": deepseek,
    "Mamba": mamba,
    "BERT, masked LM": bert,
    "BERT, classification": bert_classes,
    "T5": t5,
    "ViT": vit,
    "RNN": rnn,
    "ResNet-50": lambda: hf("ResNetForImageClassification", "ResNetConfig", pictures(4, 160), num_labels=CLASSES),
    "ConvNeXt": convnext,
    "EfficientNet": efficientnet,
    "Swin": swin,
    "CLIP": clip,
    "Whisper": whisper,
    "Wav2Vec2": wav2vec2,
    "SpeechT5": speecht5,
    "U-Net": unet,
    "DiT": dit,
    "ConvNeXt of timm": convnext_of_timm,
    "ViT of timm": vit_of_timm,
    "Swin of timm": swin_of_timm,
    "EfficientNet of timm": efficientnet_of_timm,
}
