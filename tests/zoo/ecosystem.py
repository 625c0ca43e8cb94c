"""Models of monai, torch_geometric, diffusers, x-transformers, brevitas, torchao and others."""

from __future__ import annotations

import importlib

import torch
import torch.nn.functional as F  # noqa: N812
from entry import ZOO, add, first_square, hf_loss, sample_square, square
from torch import nn


def image(channels: int = 1, pixels: int = 16) -> torch.Tensor:
    return torch.randn(2, channels, pixels, pixels)


def made(name: str, path: str, batch, loss=square, **options) -> None:
    """Registers a model that is made of options; its package is imported only then."""

    def build():
        module, _, kind = path.rpartition(".")
        return getattr(importlib.import_module(module), kind)(**options), batch()

    add(path.partition(".")[0], name, loss)(build)


def images(*shape: int):
    return lambda: (image(*shape),)


made("monai-unet", "monai.networks.nets.UNet", images(), spatial_dims=2, in_channels=1,
     out_channels=2, channels=(8, 16), strides=(2,), num_res_units=1)  # fmt: skip
made("monai-segresnet", "monai.networks.nets.SegResNet", images(), spatial_dims=2, init_filters=8,
     blocks_down=(1, 1), blocks_up=(1,))  # fmt: skip
made("monai-densenet", "monai.networks.nets.DenseNet", images(), spatial_dims=2, in_channels=1,
     out_channels=3, init_features=8, growth_rate=4, block_config=(2, 2))  # fmt: skip
made("monai-vit", "monai.networks.nets.ViT", images(), first_square, in_channels=1, img_size=16,
     patch_size=8, hidden_size=16, mlp_dim=32, num_layers=2, num_heads=2, classification=True,
     num_classes=3, spatial_dims=2)  # fmt: skip
made("monai-swin-unetr", "monai.networks.nets.SwinUNETR", images(1, 32), in_channels=1,
     out_channels=2, patch_size=2, depths=(1, 1, 1, 1), num_heads=(1, 1, 1, 1), window_size=2,
     feature_size=12, norm_name="batch", spatial_dims=2)  # fmt: skip
made("monai-unet-3d", "monai.networks.nets.BasicUNet", lambda: (torch.randn(2, 1, 16, 16, 16),),
     spatial_dims=3, in_channels=1, out_channels=2, features=(4, 4, 8, 8, 8, 4),
     norm="batch")  # fmt: skip


def graph() -> tuple[torch.Tensor, torch.Tensor]:
    """Features of six nodes and a ring of edges with two chords, both ways."""
    one = torch.tensor([0, 1, 2, 3, 4, 5, 0, 1])
    other = torch.tensor([1, 2, 3, 4, 5, 0, 3, 4])
    return torch.randn(6, 8), torch.stack([torch.cat([one, other]), torch.cat([other, one])])


def pyg(kind: str, **options):
    """Registers one of torch_geometric's basic networks."""

    def build():
        from torch_geometric.nn import models

        net = getattr(models, kind)(8, 16, num_layers=2, out_channels=3, **options)
        return net, graph()

    add("torch_geometric", f"pyg-{kind.lower()}", square)(build)


pyg("GCN")
pyg("GAT", heads=2)
pyg("GraphSAGE")
pyg("GIN")


@add("torch_geometric", "pyg-linear", square)
def pyg_linear():
    from torch_geometric.nn import Linear

    return nn.Sequential(Linear(8, 16), nn.ReLU(), Linear(16, 3)), (graph()[0],)


@add("torch_geometric", "pyg-transformer-conv", square)
def pyg_transformer():
    from torch_geometric.nn import Sequential, TransformerConv

    net = Sequential("x, edge_index", [
        (TransformerConv(8, 8, heads=2), "x, edge_index -> x"),
        nn.ReLU(inplace=True),
        (TransformerConv(16, 3), "x, edge_index -> x"),
    ])  # fmt: skip
    return net, graph()


made("diffusers-unet", "diffusers.UNet2DModel",
     lambda: {"sample": image(1, 8), "timestep": torch.tensor([3, 7])}, sample_square,
     sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(8, 16),
     norm_num_groups=4, attention_head_dim=8, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
     up_block_types=("AttnUpBlock2D", "UpBlock2D"))  # fmt: skip
made("diffusers-unet-text", "diffusers.UNet2DConditionModel",
     lambda: {"sample": image(4, 8), "timestep": 5, "encoder_hidden_states": torch.randn(2, 3, 8)},
     sample_square, sample_size=8, in_channels=4, out_channels=4, layers_per_block=1,
     block_out_channels=(8, 16), norm_num_groups=4, attention_head_dim=4, cross_attention_dim=8,
     down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
     up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"))  # fmt: skip
made("diffusers-autoencoder", "diffusers.AutoencoderKL", lambda: {"sample": image(1, 8)},
     sample_square, in_channels=1, out_channels=1, block_out_channels=(8, 16),
     down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
     latent_channels=2, norm_num_groups=4, sample_size=8)  # fmt: skip
made("diffusers-dit", "diffusers.DiTTransformer2DModel",
     lambda: {"hidden_states": image(2, 8), "timestep": torch.tensor([3, 7]),
              "class_labels": torch.tensor([1, 2])},
     sample_square, num_attention_heads=2, attention_head_dim=8, in_channels=2, out_channels=2,
     num_layers=1, norm_num_groups=4, sample_size=8, patch_size=2,
     num_embeds_ada_norm=10)  # fmt: skip


@add("x_transformers", "x-transformers-decoder", square)
def x_decoder():
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True)
    net = TransformerWrapper(num_tokens=40, max_seq_len=16, attn_layers=layers)
    return net, (torch.randint(0, 40, (2, 7)),)


@add("x_transformers", "x-transformers-autoregressive", lambda loss: loss)
def x_autoregressive():
    from x_transformers import AutoregressiveWrapper

    net, batch = x_decoder()
    return AutoregressiveWrapper(net), batch


@add("x_transformers", "x-transformers-vit", square)
def x_vit():
    from x_transformers import Encoder, ViTransformerWrapper

    layers = Encoder(dim=16, depth=2, heads=2, attn_dim_head=8, ff_glu=True, use_rmsnorm=True)
    net = ViTransformerWrapper(image_size=16, patch_size=8, num_classes=3, attn_layers=layers)
    return net, (image(3),)


@add("brevitas", "brevitas-linear", square, tolerance=2e-2, smooth=False, loads=False)
def brevitas_linear():
    from brevitas.nn import QuantLinear, QuantReLU

    net = nn.Sequential(
        QuantLinear(8, 16, bias=True, weight_bit_width=4),
        QuantReLU(bit_width=4),
        QuantLinear(16, 3, bias=True, weight_bit_width=4),
    )
    return net, (torch.randn(3, 8),)


@add("brevitas", "brevitas-conv", square, tolerance=2e-2, smooth=False, loads=False)
def brevitas_conv():
    from brevitas.nn import QuantConv2d, QuantIdentity, QuantLinear, QuantReLU

    net = nn.Sequential(
        QuantIdentity(bit_width=8),
        QuantConv2d(1, 8, 3, weight_bit_width=8),
        nn.BatchNorm2d(8),
        QuantReLU(bit_width=8),
        nn.Flatten(),
        QuantLinear(8 * 36, 3, bias=True, weight_bit_width=8),
    )
    return net, (image(1, 8),)


def torchao_net(config) -> nn.Module:
    from torchao.quantization import quantize_
    from torchao.quantization.qat import QATConfig

    net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    quantize_(net, QATConfig(config, step="prepare"))
    return net


@add("torchao", "torchao-qat-int8-int4", square, tolerance=2e-2, smooth=False)
def torchao_int4():
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig
    from torchao.quantization.granularity import PerGroup

    config = Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(16)
    )
    return torchao_net(config), (torch.randn(3, 32),)


@add("torchao", "torchao-qat-weight-only", square, tolerance=2e-2, smooth=False)
def torchao_weight_only():
    from torchao.quantization import IntxWeightOnlyConfig
    from torchao.quantization.granularity import PerAxis

    config = IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0))
    return torchao_net(config), (torch.randn(3, 32),)


def lora(name: str, base: str, targets: list[str], **options):
    """Registers LoRA on a model of the zoo; everything else is frozen."""

    def build():
        from peft import LoraConfig, get_peft_model

        model, batch = ZOO[base].build()
        config = LoraConfig(r=4, lora_alpha=8, target_modules=targets, lora_dropout=0.0, **options)
        model = get_peft_model(model, config)
        with torch.no_grad():  # B starts at zero, which would leave A without gradients
            for key, value in model.named_parameters():
                if "lora_B" in key:
                    value.normal_(std=0.1)
        return model, batch

    add("peft", name, hf_loss)(build)


lora("lora-bert", "bert-classification", ["query", "value"], modules_to_save=["classifier"])
lora("lora-gpt2", "gpt2", ["c_attn"], fan_in_fan_out=True)
lora("lora-vit", "vit", ["q_proj", "v_proj"])


def lightning_net() -> nn.Module:
    import lightning

    global Network  # pickle finds classes by their name
    if "Network" not in globals():

        class Network(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.save_hyperparameters()
                self.body = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))

            def forward(self, x):
                return self.body(x)

            def training_step(self, batch, index):
                return F.cross_entropy(self(batch[0]), batch[1])

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.1)

        Network.__qualname__ = "Network"
    return Network()


@add("lightning", "lightning-module", square)
def lightning_module():
    return lightning_net(), (torch.randn(3, 8),)
