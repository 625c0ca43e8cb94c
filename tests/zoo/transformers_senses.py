"""Vision, audio and time-series models of transformers, from tiny configurations."""

from __future__ import annotations

import torch
from entry import Refusal, add, hf_loss, hidden_square

IMAGE = {"image_size": 16, "patch_size": 8, "num_channels": 3}
SMALL = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
}  # fmt: skip
LAYERS_DIFFER = Refusal(
    "different branches", sure=False
)  # covers that skip different layers cannot meet


def vision(name: str, model: str, config: str, *, pixels: int = 16, labels: str = "class",
           loss=hf_loss, entry=None, **options):  # fmt: skip
    """Registers a model of images."""

    def build():
        import transformers

        settings = getattr(transformers, config)(**options)
        settings.num_labels = 3
        batch = {"pixel_values": torch.randn(2, 3, pixels, pixels)}
        if labels == "class":
            batch["labels"] = torch.tensor([0, 2])
        elif labels == "map":
            batch["labels"] = torch.randint(0, 3, (2, pixels, pixels))
        elif labels == "masked":
            batch["bool_masked_pos"] = torch.rand(2, (pixels // 8) ** 2) < 0.5
        return getattr(transformers, model)(settings), batch

    add("transformers", name, loss, **(entry or {}))(build)


STAGES = {
    "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_channels": 3,
    "num_stages": 2,
}  # fmt: skip
WINDOWS = {
    "image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2],
    "window_size": 4,
}  # fmt: skip

vision("vit", "ViTForImageClassification", "ViTConfig", **IMAGE, **SMALL)
vision("vit-masked", "ViTForMaskedImageModeling", "ViTConfig", labels="masked", **IMAGE, **SMALL,
       encoder_stride=8)  # fmt: skip
vision("deit", "DeiTForImageClassification", "DeiTConfig", **IMAGE, **SMALL)
vision("beit", "BeitForImageClassification", "BeitConfig", **IMAGE, **SMALL,
       use_relative_position_bias=True, drop_path_rate=0.0)  # fmt: skip
vision("dinov2", "Dinov2ForImageClassification", "Dinov2Config", **IMAGE, **SMALL)
vision("swin", "SwinForImageClassification", "SwinConfig", **WINDOWS, drop_path_rate=0.0)
vision("swinv2", "Swinv2ForImageClassification", "Swinv2Config", **WINDOWS, drop_path_rate=0.0)
vision("convnext", "ConvNextForImageClassification", "ConvNextConfig", pixels=32,
       num_stages=2, hidden_sizes=[8, 16], depths=[1, 1])  # fmt: skip
vision("convnextv2", "ConvNextV2ForImageClassification", "ConvNextV2Config", pixels=32,
       num_stages=2, hidden_sizes=[8, 16], depths=[1, 1])  # fmt: skip
vision(
    "resnet",
    "ResNetForImageClassification",
    "ResNetConfig",
    pixels=32,
    **{k: v for k, v in STAGES.items() if k != "num_stages"},
    layer_type="basic",
)
vision("mobilenet-v2", "MobileNetV2ForImageClassification", "MobileNetV2Config", pixels=32,
       depth_multiplier=0.25, min_depth=4, depth_divisible_by=4)  # fmt: skip
vision("segformer", "SegformerForSemanticSegmentation", "SegformerConfig", pixels=32, labels="map",
       num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16],
       patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2],
       decoder_hidden_size=16, drop_path_rate=0.0)  # fmt: skip
vision("poolformer", "PoolFormerForImageClassification", "PoolFormerConfig", pixels=32,
       num_encoder_blocks=2, depths=[1, 1], hidden_sizes=[8, 16], patch_sizes=[7, 3],
       strides=[4, 2], padding=[2, 1], drop_path_rate=0.0)  # fmt: skip


@add("transformers", "clip", hf_loss)
def clip():
    from transformers import CLIPConfig, CLIPModel

    text = {**SMALL, "vocab_size": 40, "max_position_embeddings": 16, "eos_token_id": 2}
    config = CLIPConfig(text_config=text, vision_config={**SMALL, **IMAGE}, projection_dim=8)
    batch = {
        "input_ids": torch.randint(3, 40, (2, 5)),
        "pixel_values": torch.randn(2, 3, 16, 16),
        "return_loss": True,
    }
    return CLIPModel(config), batch


SPEECH = {
    **SMALL, "vocab_size": 12, "conv_dim": (8, 8), "conv_stride": (4, 2), "conv_kernel": (8, 3),
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2,
    "mask_time_prob": 0.0, "mask_feature_prob": 0.0, "ctc_loss_reduction": "mean",
}  # fmt: skip


def speech(name: str, model: str, config: str, entry=None, **options):
    """Registers a model that transcribes short sounds."""

    def build():
        import transformers

        settings = getattr(transformers, config)(**{**SPEECH, "layerdrop": 0.0, **options})
        batch = {"input_values": torch.randn(2, 240), "labels": torch.randint(1, 12, (2, 4))}
        return getattr(transformers, model)(settings), batch

    add("transformers", name, hf_loss, **(entry or {}))(build)


speech("wav2vec2", "Wav2Vec2ForCTC", "Wav2Vec2Config")
speech("wav2vec2-layernorm", "Wav2Vec2ForCTC", "Wav2Vec2Config", do_stable_layer_norm=True,
       feat_extract_norm="layer", conv_bias=True)  # fmt: skip
speech(
    "wav2vec2-layerdrop",
    "Wav2Vec2ForCTC",
    "Wav2Vec2Config",
    layerdrop=0.4,
    num_hidden_layers=4,
    entry={"random": True, "refuses": {"messages": LAYERS_DIFFER}},
)
speech("hubert", "HubertForCTC", "HubertConfig")
speech("sew", "SEWForCTC", "SEWConfig", squeeze_factor=1)


def whisper(name: str, entry=None, **options):
    """Registers Whisper, with or without layerdrop."""

    def build():
        from transformers import WhisperConfig, WhisperForConditionalGeneration

        config = WhisperConfig(**{
            "vocab_size": 40, "num_mel_bins": 8, "d_model": 16, "encoder_layers": 1,
            "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
            "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_source_positions": 8,
            "max_target_positions": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
            "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None,
            **options,
        })  # fmt: skip
        batch = {"input_features": torch.randn(2, 8, 16), "labels": torch.randint(3, 40, (2, 5))}
        return WhisperForConditionalGeneration(config), batch

    add("transformers", name, hf_loss, **(entry or {}))(build)


whisper("whisper")
whisper(
    "whisper-layerdrop",
    encoder_layerdrop=0.4,
    decoder_layerdrop=0.4,
    encoder_layers=3,
    decoder_layers=3,
    entry={"random": True, "refuses": {"messages": LAYERS_DIFFER}},
)


@add("transformers", "audio-spectrogram", hf_loss)
def audio_spectrogram():
    from transformers import ASTConfig, ASTForAudioClassification

    config = ASTConfig(**SMALL, patch_size=4, max_length=16, num_mel_bins=8, num_labels=3,
                       frequency_stride=4, time_stride=4)  # fmt: skip
    batch = {"input_values": torch.randn(2, 16, 8), "labels": torch.tensor([0, 2])}
    return ASTForAudioClassification(config), batch


@add("transformers", "patch-tst", hf_loss)
def patch_tst():
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    config = PatchTSTConfig(num_input_channels=2, context_length=16, patch_length=4,
                            patch_stride=4, d_model=16, num_hidden_layers=1,
                            num_attention_heads=2, ffn_dim=32, prediction_length=4,
                            loss="mse")  # fmt: skip
    return PatchTSTForPrediction(config), {
        "past_values": torch.randn(2, 16, 2),
        "future_values": torch.randn(2, 4, 2),
    }


@add("transformers", "time-series", hf_loss)
def time_series():
    from transformers import TimeSeriesTransformerConfig, TimeSeriesTransformerForPrediction

    config = TimeSeriesTransformerConfig(
        prediction_length=4, context_length=8, lags_sequence=[1, 2], num_time_features=1,
        d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        encoder_layerdrop=0.0, decoder_layerdrop=0.0,
    )  # fmt: skip
    return TimeSeriesTransformerForPrediction(config), {
        "past_values": torch.randn(2, 10),
        "past_time_features": torch.randn(2, 10, 1),
        "past_observed_mask": torch.ones(2, 10),
        "future_values": torch.randn(2, 4),
        "future_time_features": torch.randn(2, 4, 1),
    }


@add("transformers", "clip-vision", hidden_square)
def clip_vision():
    from transformers import CLIPVisionConfig, CLIPVisionModel

    model = CLIPVisionModel(CLIPVisionConfig(**SMALL, **IMAGE))
    return model, {"pixel_values": torch.randn(2, 3, 16, 16), "output_hidden_states": True}
